//! PURE: a spec as users write it → a [`Wish`] with every default filled in, or everything that is wrong with it at once.

mod configs;
mod duration;
mod policy;
mod select;
mod source;

#[cfg(test)]
mod tests;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::{Configs, GrantKind, NodePolicy, OsSpec, Source};
use crate::window::Schedule;

use super::facts::Settings;
use duration::seconds;
use policy::policy;
pub use select::{Select, select};

/// What is wrong with one field, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field below `spec`.
    pub field: String,
    /// What was found and what is expected.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.text)
    }
}

/// A number, or a share of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// That many.
    Count(u32),
    /// Per cent, 0 to 100.
    Percent(u32),
}

impl Amount {
    /// Of `total`: a share is rounded down, but is at least one; 0 stays 0.
    pub fn of(self, total: usize) -> usize {
        match self {
            Amount::Count(n) => n as usize,
            Amount::Percent(0) => 0,
            Amount::Percent(p) => (total * p as usize / 100).max(1),
        }
    }

    /// Of `total`: a share is rounded up.
    pub fn of_rounded_up(self, total: usize) -> usize {
        match self {
            Amount::Count(n) => n as usize,
            Amount::Percent(p) => (total * p as usize).div_ceil(100),
        }
    }
}

/// One step of the roll-out.
#[derive(Clone, Debug)]
pub struct Wave {
    /// Which nodes it holds.
    pub cap: WaveCap,
    /// Wait after it, seconds.
    pub soak_secs: i64,
}

/// Which nodes a wave holds.
#[derive(Clone, Debug)]
pub enum WaveCap {
    /// So many, all earlier waves included.
    Nodes(Amount),
    /// Those that match.
    Matching(Select),
}

/// A validated spec.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Upgrade, Rollback or Config.
    pub kind: GrantKind,
    /// What is rolled out: a digest, `rollback:VERSION` or `config:VERSION`.
    pub key: String,
    /// osversion.
    pub version: String,
    /// Where the payload comes from (upgrade).
    pub source: Option<Source>,
    /// maxunavailable.
    pub limit: Amount,
    /// One node at a time.
    pub serial: bool,
    /// topologykey and maxunavailablepergroup.
    pub group: Option<(String, Amount)>,
    /// failurebudget; `None` = the default by size.
    pub budget: Option<Amount>,
    /// maxattempts.
    pub max_attempts: u32,
    /// windows, exclusions, timewindow.
    pub schedule: Schedule,
    /// What the node's proxy must know.
    pub policy: NodePolicy,
    /// Canary first, then the waves.
    pub waves: Vec<Wave>,
    /// paused.
    pub paused: bool,
    /// pausepolicy abort.
    pub abort_on_pause: bool,
    /// sysconfigs as ordered (for upgrade and rollback the two grub models are exchanged).
    pub sysconfigs: Option<Configs>,
    /// upgradeconfigs as ordered.
    pub upgradeconfigs: Option<Configs>,
    /// Accepted, but worth a word.
    pub warnings: Vec<String>,
}

impl Wish {
    /// Failed nodes at which the roll-out halts.
    pub fn budget_of(&self, total: usize) -> usize {
        match self.budget {
            Some(b) => b.of(total).max(1),
            None if total <= 10 => 1,
            None => Amount::Percent(5).of(total),
        }
    }
}

/// Collects problems and warnings on the way.
#[derive(Default)]
struct Notes {
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Notes {
    fn wrong(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.problems.push(Problem {
            field: field.into(),
            text: text.into(),
        });
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// Validates a spec.
pub fn check(spec: &OsSpec, settings: &Settings) -> Result<Wish, Vec<Problem>> {
    let mut n = Notes::default();
    let kind = match spec.opstype.as_str() {
        "upgrade" => GrantKind::Upgrade,
        "rollback" => GrantKind::Rollback,
        "config" => GrantKind::Config,
        other => {
            n.wrong("opstype", expected("upgrade, rollback or config", other));
            GrantKind::Upgrade
        }
    };
    version(spec, &mut n);
    let mut source = None;
    let mut key = String::new();
    match kind {
        GrantKind::Upgrade => {
            if let Some((digest, from)) = source::source(spec, &mut n) {
                key = digest;
                source = Some(from);
            }
        }
        GrantKind::Rollback => key = format!("rollback:{}", spec.osversion),
        _ => {
            let wanted = spec
                .sysconfigs
                .as_ref()
                .and_then(|c| c.version.clone())
                .filter(|v| !v.is_empty());
            match wanted {
                Some(v) => key = format!("config:{v}"),
                None => n.wrong(
                    "sysconfigs.version",
                    "opstype config needs a version; a new version triggers",
                ),
            }
        }
    }
    if let Err(problem) = select(spec) {
        n.problems.push(problem);
    }
    if spec.selector.is_some() && spec.nodeselector.is_some() {
        n.warn("selector replaces nodeselector, which is ignored");
    }
    let serial = one_of(
        spec.executionmode.as_deref(),
        "executionmode",
        &["parallel", "serial"],
        &mut n,
    ) == "serial";
    let abort_on_pause = one_of(
        spec.pausepolicy.as_deref(),
        "pausepolicy",
        &["finish", "abort"],
        &mut n,
    ) == "abort";
    let limit = spec
        .maxunavailable
        .as_ref()
        .and_then(|v| amount(v, "maxunavailable", 0, &mut n));
    if spec.maxunavailable.is_none() {
        n.wrong(
            "maxunavailable",
            "is missing; write a number of nodes or a percentage such as \"10%\"",
        );
    }
    let group = group(spec, &mut n);
    let budget = spec
        .failurebudget
        .as_ref()
        .and_then(|v| amount(v, "failurebudget", 1, &mut n));
    let max_attempts = bounded(spec.maxattempts, "maxattempts", 1, 1, 10, &mut n) as u32;
    let schedule = Schedule::parse(
        &spec.windows,
        &spec.exclusions,
        spec.timewindow.as_ref(),
        &settings.timewindow_zone,
    )
    .map_err(|e| n.wrong(e.field, e.problem))
    .unwrap_or_default();
    if spec.timewindow.is_some() {
        n.warn(format!(
            "timewindow is read in time zone {}",
            settings.timewindow_zone_name
        ));
    }
    let policy = policy(spec, serial, settings, &mut n);
    let waves = waves(spec, &mut n);
    for (i, f) in spec.forgive.iter().enumerate() {
        if f != "any"
            && source::digest(f).is_none()
            && !f.starts_with("config:")
            && !f.starts_with("rollback:")
        {
            n.wrong(format!("forgive[{i}]"), expected("a SHA-256 in hex, or any", f));
        }
    }
    let swap = kind != GrantKind::Config;
    let sysconfigs = configs::ordered(spec.sysconfigs.as_ref(), "sysconfigs", swap, &mut n);
    let upgradeconfigs = configs::ordered(spec.upgradeconfigs.as_ref(), "upgradeconfigs", false, &mut n);
    if !n.problems.is_empty() {
        return Err(n.problems);
    }
    Ok(Wish {
        kind,
        key,
        version: spec.osversion.clone(),
        source,
        limit: limit.unwrap_or(Amount::Count(0)),
        serial,
        group,
        budget,
        max_attempts,
        schedule,
        policy,
        waves,
        paused: spec.paused,
        abort_on_pause,
        sysconfigs,
        upgradeconfigs: upgradeconfigs.filter(|_| kind == GrantKind::Upgrade),
        warnings: n.warnings,
    })
}

fn expected(what: &str, found: &str) -> String {
    format!("expected {what}, found {found:?}")
}

fn version(spec: &OsSpec, n: &mut Notes) {
    let v = &spec.osversion;
    if v.is_empty() {
        if spec.opstype != "config" {
            n.wrong(
                "osversion",
                "is empty; write the PRETTY_NAME of the wanted system, for example \"KubeOS 7.3\"",
            );
        }
    } else if v.len() > 512 || v.chars().any(char::is_control) || v.trim() != v {
        n.wrong(
            "osversion",
            format!(
                "{v:?} can never be a node's osImage: control characters, blanks at an end or over 512 bytes"
            ),
        );
    }
}

/// The given word if it is allowed; the first allowed one is the default.
fn one_of<'a>(value: Option<&'a str>, field: &str, allowed: &[&'a str], n: &mut Notes) -> &'a str {
    match value.filter(|v| !v.is_empty()) {
        None => allowed[0],
        Some(v) if allowed.contains(&v) => v,
        Some(v) => {
            n.wrong(field, expected(&allowed.join(" or "), v));
            allowed[0]
        }
    }
}

fn bounded(value: Option<i64>, field: &str, default: i64, min: i64, max: i64, n: &mut Notes) -> i64 {
    match value {
        None => default,
        Some(v) if (min..=max).contains(&v) => v,
        Some(v) => {
            n.wrong(field, format!("expected {min} to {max}, found {v}"));
            default
        }
    }
}

fn amount(value: &IntOrString, field: &str, min: u32, n: &mut Notes) -> Option<Amount> {
    let found = match value {
        IntOrString::Int(i) => u32::try_from(*i).ok().map(Amount::Count),
        IntOrString::String(s) => match s.trim().strip_suffix('%') {
            Some(p) => p.parse().ok().filter(|p| *p <= 100).map(Amount::Percent),
            None => {
                let count = s.trim().parse().ok().map(Amount::Count);
                if count.is_some() {
                    n.warn(format!("{field} is the text {s:?}; a number needs no quotes"));
                }
                count
            }
        },
    };
    let found = found.filter(|a| matches!(a, Amount::Count(c) | Amount::Percent(c) if *c >= min));
    if found.is_none() {
        let text = match value {
            IntOrString::Int(i) => i.to_string(),
            IntOrString::String(s) => format!("{s:?}"),
        };
        n.wrong(
            field,
            format!(
                "expected a number of nodes (at least {min}) or a percentage up to \"100%\", found {text}"
            ),
        );
    }
    found
}

fn group(spec: &OsSpec, n: &mut Notes) -> Option<(String, Amount)> {
    match (&spec.topologykey, &spec.maxunavailablepergroup) {
        (Some(key), Some(v)) if !key.is_empty() => {
            Some((key.clone(), amount(v, "maxunavailablepergroup", 0, n)?))
        }
        (Some(key), None) if !key.is_empty() => {
            n.warn("topologykey without maxunavailablepergroup only spreads the order");
            Some((key.clone(), Amount::Percent(100)))
        }
        (_, Some(_)) => {
            n.wrong(
                "maxunavailablepergroup",
                "needs topologykey, the node label whose values form the groups",
            );
            None
        }
        _ => None,
    }
}

fn waves(spec: &OsSpec, n: &mut Notes) -> Vec<Wave> {
    let mut waves = Vec::new();
    if let Some(c) = &spec.canary {
        let soak_secs = span(c.soak.as_deref(), "canary.soak", 0, n);
        match (&c.selector, c.nodes) {
            (Some(_), Some(_)) => n.wrong("canary", "has both nodes and selector; keep one"),
            (Some(s), None) => match select::labels(s, "canary.selector") {
                Ok(select) => waves.push(Wave {
                    cap: WaveCap::Matching(select),
                    soak_secs,
                }),
                Err(p) => n.problems.push(p),
            },
            (None, nodes) => {
                let nodes = bounded(nodes, "canary.nodes", 1, 1, i64::from(u32::MAX), n) as u32;
                waves.push(Wave {
                    cap: WaveCap::Nodes(Amount::Count(nodes)),
                    soak_secs,
                });
            }
        }
    }
    for (i, w) in spec.waves.iter().enumerate() {
        let soak_secs = span(w.soak.as_deref(), &format!("waves[{i}].soak"), 0, n);
        match &w.max {
            None => n.wrong(
                format!("waves[{i}].max"),
                "is missing; write a number of nodes or a percentage",
            ),
            Some(v) => {
                if let Some(cap) = amount(v, &format!("waves[{i}].max"), 1, n) {
                    waves.push(Wave {
                        cap: WaveCap::Nodes(cap),
                        soak_secs,
                    });
                }
            }
        }
    }
    waves
}

fn span(value: Option<&str>, field: &str, default: i64, n: &mut Notes) -> i64 {
    match value.filter(|v| !v.is_empty()) {
        None => default,
        Some(text) => seconds(text).unwrap_or_else(|| {
            n.wrong(field, expected("a duration such as 90s, 30m or 1h30m", text));
            default
        }),
    }
}
