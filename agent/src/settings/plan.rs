//! PURE: entries and what they are about → every new content, every refusal.

use super::sysctl::{self, KernelFact};
use super::{EntryResult, Item, Model, Outcome, Target, Verdict, containerd, grub, keypath, kubelet, limits};
use crate::error::AgentError;
use os_proto::codes::Code;
use std::collections::BTreeMap;

/// A file: its bytes, `None` where it does not exist, or why it cannot be had.
pub type FileFact = Result<Option<Vec<u8>>, String>;

/// What the entries are about, as it is now.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Files by target.
    pub files: BTreeMap<Target, FileFact>,
    /// Kernel settings by key as given.
    pub kernel: BTreeMap<String, KernelFact>,
    /// What the running kernel was started with.
    pub cmdline: String,
    /// Why the running system cannot be asked or changed (a disk that does not run here).
    pub no_system: Option<String>,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Which.
    pub target: Target,
    /// Its model.
    pub model: Model,
    /// What it held.
    pub old: Option<Vec<u8>>,
    /// What it is to hold.
    pub new: Vec<u8>,
    /// Kernel settings that it now names: path below /proc/sys and value.
    pub values: Vec<(String, String)>,
}

/// A kernel setting to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelChange {
    /// Path below /proc/sys.
    pub path: String,
    /// What it held, where it can be read.
    pub old: Option<String>,
    /// What it is to hold.
    pub new: String,
    /// Index in [`Plan::entries`].
    pub entry: usize,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// One result per entry, in order.
    pub entries: Vec<EntryResult>,
    /// Files to write; empty when anything was rejected.
    pub files: Vec<FileChange>,
    /// Kernel settings to write; empty when anything was rejected.
    pub kernel: Vec<KernelChange>,
}

impl Plan {
    /// The error of a plan with rejected entries: all of them, each by its place, model and key.
    pub fn error(&self) -> Option<AgentError> {
        let bad: Vec<String> = self
            .entries
            .iter()
            .filter(|e| e.outcome == Outcome::Rejected)
            .map(|e| format!("{}: {}", name(e), e.message))
            .collect();
        (!bad.is_empty()).then(|| rejected(&bad.join("; ")))
    }
}

/// The refusal of a call.
pub(super) fn rejected(why: &str) -> AgentError {
    AgentError::new(Code::SettingRejected, format!("{why}; nothing was changed"))
}

/// An entry for messages.
pub(super) fn name(e: &EntryResult) -> String {
    format!(
        "configs[{}].contents[{}] ({} {:?})",
        e.config, e.content, e.model, e.key
    )
}

/// Decides.
pub fn plan(items: &[Item], facts: &Facts) -> Plan {
    let mut verdicts: Vec<Option<Verdict>> = vec![None; items.len()];
    let mut pending = vec![false; items.len()];
    let mut out = Plan::default();
    let mut groups: Vec<(Target, Vec<usize>)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let later = items
            .iter()
            .skip(i + 1)
            .find(|l| l.bad.is_none() && same_setting(item, l, facts));
        if let Some(why) = &item.bad {
            put(&mut verdicts, i, Verdict::rejected(why.clone()));
        } else if let Some(l) = later {
            put(
                &mut verdicts,
                i,
                Verdict::unchanged(format!("configs[{}].contents[{}] says it again", l.at.0, l.at.1)),
            );
        } else if item.model == Model::Sysctl {
            kernel(i, item, facts, &mut verdicts, &mut out.kernel);
        } else {
            match groups.iter_mut().find(|(t, _)| *t == item.target) {
                Some((_, list)) => list.push(i),
                None => groups.push((item.target.clone(), vec![i])),
            }
        }
    }
    for (target, list) in groups {
        let members: Vec<&Item> = list.iter().filter_map(|i| items.get(*i)).collect();
        let (change, results) = file(&target, &members, facts);
        let waits = change.as_ref().is_some_and(|c| waits(c, facts));
        for (i, v) in list.into_iter().zip(results) {
            if let Some(p) = pending.get_mut(i) {
                *p = waits && v.outcome == Outcome::Changed;
            }
            put(&mut verdicts, i, v);
        }
        out.files.extend(change);
    }
    out.entries = items
        .iter()
        .zip(verdicts)
        .zip(pending)
        .map(|((item, v), pending)| {
            let v = v.unwrap_or_else(|| Verdict::unchanged(""));
            let message = [v.message.as_str(), item.note.as_str()]
                .into_iter()
                .filter(|m| !m.is_empty())
                .collect::<Vec<_>>()
                .join("; ");
            EntryResult {
                config: item.at.0,
                content: item.at.1,
                model: item.model.as_str().to_owned(),
                key: item.key.clone(),
                outcome: v.outcome,
                message,
                pending,
            }
        })
        .collect();
    if out.error().is_some() {
        out.files.clear();
        out.kernel.clear();
    }
    out
}

fn put(verdicts: &mut [Option<Verdict>], i: usize, v: Verdict) {
    if let Some(slot) = verdicts.get_mut(i) {
        *slot = Some(v);
    }
}

/// Whether two entries set the same thing; the later one wins.
fn same_setting(a: &Item, b: &Item, facts: &Facts) -> bool {
    let id = |i: &Item| match i.model {
        Model::Sysctl | Model::SysctlPersist => facts
            .kernel
            .get(&i.key)
            .and_then(|f| f.path.clone())
            .or_else(|| sysctl::parts(&i.key).ok().map(|p| p.join("/"))),
        Model::Kubelet | Model::Containerd => keypath::parse(&i.key).ok().map(|p| p.join("\0")),
        Model::Limits => Some(limits::line_key(i)),
        Model::GrubCurrent | Model::GrubNext => Some(i.key.clone()),
    };
    a.model == b.model && a.target == b.target && id(a).is_some() && id(a) == id(b)
}

fn kernel(
    i: usize,
    item: &Item,
    facts: &Facts,
    verdicts: &mut [Option<Verdict>],
    writes: &mut Vec<KernelChange>,
) {
    let none = KernelFact::default();
    let fact = facts.kernel.get(&item.key).unwrap_or(&none);
    let (verdict, new) = match &facts.no_system {
        Some(why) => (Verdict::rejected(why.clone()), None),
        None => sysctl::kernel(item, fact),
    };
    if let (Some(new), Some(path)) = (new, &fact.path) {
        writes.push(KernelChange {
            path: path.clone(),
            old: fact.value.clone(),
            new,
            entry: i,
        });
    }
    put(verdicts, i, verdict);
}

fn file(target: &Target, items: &[&Item], facts: &Facts) -> (Option<FileChange>, Vec<Verdict>) {
    let all = |why: String| (None, vec![Verdict::rejected(why); items.len()]);
    let Some(model) = items.first().map(|i| i.model) else {
        return (None, Vec::new());
    };
    let old = match facts.files.get(target) {
        Some(Ok(old)) => old.clone(),
        Some(Err(why)) => return all(why.clone()),
        None => return all(format!("{target} was not read")),
    };
    if old.is_none() && matches!(model, Model::Kubelet | Model::Limits) {
        return all(format!("{target} does not exist"));
    }
    let (new, verdicts) = if let Target::Arguments(_) = target {
        grub::edit(old.as_deref(), items, &facts.cmdline)
    } else {
        let Ok(text) = std::str::from_utf8(old.as_deref().unwrap_or_default()) else {
            return all(format!("{target} is not UTF-8 text"));
        };
        let (new, verdicts) = match model {
            Model::SysctlPersist => sysctl::edit(text, items, &facts.kernel),
            Model::Kubelet => kubelet::edit(text, items),
            Model::Containerd => containerd::edit(text, items),
            _ => limits::edit(text, items),
        };
        (new.into_bytes(), verdicts)
    };
    let same = old.as_deref().unwrap_or_default() == new.as_slice();
    let changed = verdicts.iter().any(|v| v.outcome == Outcome::Changed);
    if same || !changed {
        // Entries that cancel each other out changed nothing.
        let verdicts = verdicts
            .into_iter()
            .map(|v| match v.outcome {
                Outcome::Changed => Verdict::unchanged(""),
                _ => v,
            })
            .collect();
        return (None, verdicts);
    }
    let values = items
        .iter()
        .filter(|i| i.model == Model::SysctlPersist && i.op == super::Op::Set)
        .filter_map(|i| {
            Some((
                facts.kernel.get(&i.key)?.path.clone()?,
                super::plain(&i.value).ok()?,
            ))
        })
        .collect();
    let change = FileChange {
        target: target.clone(),
        model,
        old,
        new,
        values,
    };
    (Some(change), verdicts)
}

/// Whether a changed file counts only after a restart.
fn waits(change: &FileChange, facts: &Facts) -> bool {
    match change.model {
        Model::Kubelet | Model::Containerd | Model::GrubCurrent | Model::GrubNext => true,
        Model::SysctlPersist => change.values.iter().any(|(path, value)| {
            !facts.kernel.values().any(|f| {
                f.path.as_ref() == Some(path)
                    && f.value
                        .as_deref()
                        .is_some_and(|v| super::lines::squeezed(v) == super::lines::squeezed(value))
            })
        }),
        Model::Sysctl | Model::Limits => false,
    }
}
