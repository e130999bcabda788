//! The I/O of settings: reads what entries are about, checks new content by its own program, writes it, and puts everything
//! back when one write fails.

mod boot;
mod files;

use super::effect::{Seen, Written};
use super::plan::{FileChange, Plan, name, rejected};
use super::sysctl::KernelFact;
use super::{EntryResult, Facts, Item, Model, Target, sysctl};
use crate::error::{AgentError, Result};
use crate::ports::Settings;
use crate::slots::Region;
use crate::sys::{atomic, cmd, units};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use std::io::Write as _;
use std::time::Duration;

/// How long a program may check a file.
const CHECK_LIMIT: Duration = Duration::from_secs(30);

/// The running system, or a disk that does not run here.
pub struct System {
    root: Utf8PathBuf,
    kept: Utf8PathBuf,
    boot: Result<Region>,
    containerd: Vec<Utf8PathBuf>,
    check_limit: Duration,
    offline: Option<String>,
}

impl System {
    /// The running system: files below /, contents before a change kept in `<state>/settings`, arguments on BOOT.
    pub fn online(state: &Utf8Path, boot: Result<Region>) -> System {
        System {
            root: "/".into(),
            kept: state.join("settings"),
            boot,
            containerd: ["/usr/bin/containerd", "/usr/local/bin/containerd"]
                .map(Into::into)
                .to_vec(),
            check_limit: CHECK_LIMIT,
            offline: None,
        }
    }

    /// A disk that does not run here: only what lies on BOOT can be changed.
    pub fn offline(state: &Utf8Path, disk: &Utf8Path, boot: Result<Region>) -> System {
        System {
            offline: Some(format!(
                "only the running system of {disk} can be asked for this setting; with --disk the models grub.cmdline.current and grub.cmdline.next work"
            )),
            ..System::online(state, boot)
        }
    }

    /// Another root directory and another containerd, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn at(
        root: &Utf8Path,
        state: &Utf8Path,
        boot: Result<Region>,
        containerd: Vec<Utf8PathBuf>,
    ) -> System {
        System {
            root: root.to_owned(),
            kept: state.join("settings"),
            boot,
            containerd,
            check_limit: CHECK_LIMIT,
            offline: None,
        }
    }

    fn inside(&self, path: &str) -> Utf8PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn proc_sys(&self, path: &str) -> Utf8PathBuf {
        self.inside("/proc/sys").join(path)
    }

    fn kernel_fact(&self, key: &str) -> KernelFact {
        let exists = |p: &str| self.proc_sys(p).exists();
        let path = match sysctl::resolve(key, &exists) {
            Ok(p) => p,
            Err(_) => return KernelFact::default(),
        };
        let Some(p) = &path else {
            return KernelFact::default();
        };
        let file = self.proc_sys(p);
        if file.is_dir() {
            return KernelFact {
                trouble: Some(format!("{file} is a directory of settings, not one of them")),
                path,
                ..KernelFact::default()
            };
        }
        KernelFact {
            // Some settings can only be written.
            value: std::fs::read_to_string(&file)
                .ok()
                .map(|v| v.trim_end_matches('\n').to_owned()),
            path,
            trouble: None,
        }
    }

    fn read(&self, model: Model, target: &Target) -> std::result::Result<Option<Vec<u8>>, String> {
        match target {
            Target::Kernel => Ok(None),
            Target::Arguments(slot) => {
                let region = self.boot.as_ref().map_err(|e| e.message.clone())?;
                boot::read(region, os_proto::kernel_args::user_file(*slot)).map_err(|e| e.message)
            }
            Target::File(path) => match &self.offline {
                Some(why) => Err(why.clone()),
                None => files::locate(&self.root, model, path).and_then(|f| files::read(&f)),
            },
        }
    }

    fn write(&self, change: &FileChange, content: &[u8]) -> Result<()> {
        match &change.target {
            Target::Kernel => Ok(()),
            Target::Arguments(slot) => {
                let region = self.boot.as_ref().map_err(Clone::clone)?;
                boot::write(region, os_proto::kernel_args::user_file(*slot), content)
            }
            Target::File(path) => {
                let file = files::locate(&self.root, change.model, path)
                    .map_err(|e| AgentError::new(Code::StateWriteFailed, e))?;
                atomic::replace_like(&file, content, 0o644)?;
                match files::read(&file) {
                    Ok(Some(back)) if back == content => Ok(()),
                    Ok(_) => Err(AgentError::new(
                        Code::StateWriteFailed,
                        format!("{file} reads back differently from what was written"),
                    )),
                    Err(e) => Err(AgentError::new(Code::StateWriteFailed, e)),
                }
            }
        }
    }

    /// Takes a written file back.
    fn restore(&self, change: &FileChange) {
        let done = match (&change.old, &change.target) {
            (Some(old), _) => self.write(change, old),
            (None, Target::File(path)) => files::locate(&self.root, change.model, path)
                .map_err(|e| AgentError::new(Code::StateWriteFailed, e))
                .and_then(|f| atomic::remove(&f)),
            (None, _) => self.write(
                change,
                &os_proto::env_block::single(os_proto::kernel_args::USER_KEY, ""),
            ),
        };
        if let Err(e) = done {
            tracing::error!(%e, target = %change.target, "the content before the change could not be put back");
        }
    }

    /// New content is first judged by the program that will read it, where that is installed.
    fn check(&self, change: &FileChange) -> Result<()> {
        let (Model::Containerd, Target::File(path)) = (change.model, &change.target) else {
            return Ok(());
        };
        let Some(program) = self.containerd.iter().find(|p| p.exists()) else {
            return Ok(());
        };
        let file = files::locate(&self.root, change.model, path)
            .map_err(|e| AgentError::new(Code::StateWriteFailed, e))?;
        // In the same directory, because imports are relative to it.
        let draft = file.with_file_name(format!(".{}.draft", file.file_name().unwrap_or_default()));
        atomic::replace(&draft, &change.new, 0o600)?;
        let ended = cmd::run(
            program.as_str(),
            &["--config", draft.as_str(), "config", "dump"],
            self.check_limit,
        );
        let removed = atomic::remove(&draft);
        let refused = |why: String| {
            rejected(&format!(
                "{path}: {program} does not accept the new content: {why}"
            ))
        };
        match ended {
            Ok(e) if e.ok() => removed,
            Ok(e) if e.timed_out => Err(refused(format!("no answer in {} s", self.check_limit.as_secs()))),
            Ok(e) => Err(refused(tail(&e.output))),
            Err(e) => Err(refused(e)),
        }
    }

    fn write_kernel(&self, path: &str, value: &str) -> std::io::Result<()> {
        let mut f = std::fs::OpenOptions::new()
            .write(true)
            .open(self.proc_sys(path))?;
        f.write_all(format!("{value}\n").as_bytes())
    }

    fn keep(&self, change: &FileChange, kept: &[Written]) -> Result<String> {
        let target = change.target.to_string();
        if let Some(w) = kept.iter().find(|w| w.target == target) {
            return Ok(w.previous.clone());
        }
        let Some(old) = &change.old else {
            return Ok(String::new());
        };
        files::make_dir(&self.kept)?;
        let file = self
            .kept
            .join(format!("{}.previous", target.replace(['/', ':'], "+")));
        atomic::replace(&file, old, 0o600)?;
        Ok(file.into_string())
    }
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines
        .iter()
        .rev()
        .take(3)
        .rev()
        .copied()
        .collect::<Vec<_>>()
        .join(" | ")
}

impl Settings for System {
    fn gather(&self, items: &[Item]) -> Facts {
        let mut facts = Facts {
            no_system: self.offline.clone(),
            ..Facts::default()
        };
        if self.offline.is_none() {
            facts.cmdline = std::fs::read_to_string(self.inside("/proc/cmdline")).unwrap_or_default();
        }
        for item in items.iter().filter(|i| i.bad.is_none()) {
            if matches!(item.model, Model::Sysctl | Model::SysctlPersist) && self.offline.is_none() {
                facts
                    .kernel
                    .entry(item.key.clone())
                    .or_insert_with(|| self.kernel_fact(&item.key));
            }
            if item.target != Target::Kernel {
                facts
                    .files
                    .entry(item.target.clone())
                    .or_insert_with(|| self.read(item.model, &item.target));
            }
        }
        facts
    }

    fn apply(&self, plan: &Plan, waiting: &[Written]) -> Result<Vec<Written>> {
        for change in &plan.files {
            self.check(change)?;
        }
        let mut written = Vec::new();
        for change in &plan.files {
            written.push(Written {
                target: change.target.to_string(),
                model: change.model.as_str().to_owned(),
                previous: self.keep(change, waiting)?,
                at_unix: 0,
                at_secs: 0,
                boot_id: String::new(),
                unit: change.model.unit().unwrap_or_default().to_owned(),
                slot: match change.target {
                    Target::Arguments(s) => Some(s),
                    _ => None,
                },
                values: change.values.clone(),
                unknown: Default::default(),
            });
        }
        // The kernel judges its own values, so it comes first.
        let take_back = |n: usize| {
            for done in plan.kernel.iter().take(n).rev() {
                if let Some(old) = &done.old
                    && let Err(e) = self.write_kernel(&done.path, old)
                {
                    tracing::error!(%e, path = done.path, "the value before the change could not be put back");
                }
            }
        };
        for (n, change) in plan.kernel.iter().enumerate() {
            let wrote = self.write_kernel(&change.path, &change.new);
            let now = self.kernel_fact(&change.path).value;
            let ignored = change.old.is_some() && now == change.old;
            let why = match wrote {
                Ok(()) if !ignored => continue,
                Ok(()) => "it kept the value that it had".to_owned(),
                Err(e) => e.to_string(),
            };
            take_back(n);
            let entry = plan.entries.get(change.entry).map(name).unwrap_or_default();
            return Err(rejected(&format!(
                "{entry}: the kernel does not accept {:?}: {why}",
                change.new
            )));
        }
        for (n, change) in plan.files.iter().enumerate() {
            if let Err(e) = self.write(change, &change.new) {
                for done in plan.files.iter().take(n + 1) {
                    self.restore(done);
                }
                take_back(plan.kernel.len());
                return Err(e.context(format!("{} was not changed, nor anything else", change.target)));
            }
        }
        Ok(written)
    }

    fn seen(&self, records: &[Written], boot_id: &str, running: Option<Slot>) -> Seen {
        let mut seen = Seen {
            boot_id: boot_id.to_owned(),
            running,
            ..Seen::default()
        };
        if self.offline.is_some() {
            return seen;
        }
        for r in records {
            if !r.unit.is_empty()
                && let Some(secs) = units::started_secs(&self.root, &r.unit)
            {
                seen.started_secs.insert(r.unit.clone(), secs);
            }
            for (path, _) in &r.values {
                if let Some(v) = self.kernel_fact(path).value {
                    seen.kernel.insert(path.clone(), v);
                }
            }
        }
        seen
    }

    fn forget(&self, record: &Written) {
        if record.previous.is_empty() {
            return;
        }
        if let Err(e) = atomic::remove(Utf8Path::new(&record.previous)) {
            tracing::warn!(%e, "content that is no longer needed stays");
        }
    }
}

/// How many entries ended how, for the history.
pub fn summary(entries: &[EntryResult]) -> String {
    let changed = entries
        .iter()
        .filter(|e| e.outcome == super::Outcome::Changed)
        .count();
    format!("{changed} of {} settings changed", entries.len())
}

#[cfg(test)]
mod tests;
