//! The node's settings: KubeOS's seven configuration models (kernel.sysctl, kernel.sysctl.persist, grub.cmdline.current,
//! grub.cmdline.next, kubernetes.kubelet, container.containerd, pam.limits).
//!
//! `request` reads a call, `system` gathers what the entries are about, [`plan::plan`] decides (PURE: every new file content
//! and every refusal), and `system` again writes it. A single rejected entry rejects the whole call and nothing is written.
//! Files keep their comments and their order; applying the same entries again changes nothing.

pub mod confine;
pub mod containerd;
pub mod document;
pub mod effect;
pub mod grub;
mod in_place;
mod keypath;
pub mod kubelet;
pub mod limits;
mod lines;
pub mod plan;
pub mod request;
pub mod sysctl;
pub mod system;
mod tree;

pub use effect::Written;
pub use plan::{Facts, Plan};

use camino::Utf8PathBuf;
use os_proto::layout::Slot;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// A configuration model of KubeOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Model {
    /// Values below /proc/sys, until the next boot.
    Sysctl,
    /// A sysctl configuration file.
    SysctlPersist,
    /// Kernel arguments of the running slot.
    GrubCurrent,
    /// Kernel arguments of the other slot.
    GrubNext,
    /// kubelet's YAML.
    Kubelet,
    /// containerd's TOML.
    Containerd,
    /// PAM's limits.conf.
    Limits,
}

impl Model {
    /// All of them.
    pub const ALL: [Model; 7] = [
        Model::Sysctl,
        Model::SysctlPersist,
        Model::GrubCurrent,
        Model::GrubNext,
        Model::Kubelet,
        Model::Containerd,
        Model::Limits,
    ];

    /// KubeOS's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Model::Sysctl => "kernel.sysctl",
            Model::SysctlPersist => "kernel.sysctl.persist",
            Model::GrubCurrent => "grub.cmdline.current",
            Model::GrubNext => "grub.cmdline.next",
            Model::Kubelet => "kubernetes.kubelet",
            Model::Containerd => "container.containerd",
            Model::Limits => "pam.limits",
        }
    }

    /// Reads a name; the spelling `kuberntes.kubelet` of older notes is taken too.
    pub fn parse(name: &str) -> Option<Model> {
        match name {
            "kuberntes.kubelet" => Some(Model::Kubelet),
            _ => Model::ALL.into_iter().find(|m| m.as_str() == name),
        }
    }

    /// What must restart before a changed file counts; `None` = nothing of its own.
    pub const fn unit(self) -> Option<&'static str> {
        match self {
            Model::Kubelet => Some("kubelet.service"),
            Model::Containerd => Some("containerd.service"),
            _ => None,
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an entry wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Add or update.
    Set,
    /// Delete.
    Delete,
}

/// Where an entry's setting lives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Below /proc/sys.
    Kernel,
    /// A file of the running system.
    File(Utf8PathBuf),
    /// The optional file on BOOT with a slot's arguments.
    Arguments(Slot),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Kernel => f.write_str("/proc/sys"),
            Target::File(p) => f.write_str(p.as_str()),
            Target::Arguments(s) => write!(f, "BOOT:{}", os_proto::kernel_args::user_file(*s)),
        }
    }
}

/// One entry of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Index of its config and of its content, from 0.
    pub at: (u32, u32),
    /// Model.
    pub model: Model,
    /// Where.
    pub target: Target,
    /// As given.
    pub key: String,
    /// What.
    pub op: Op,
    /// As given; null where absent.
    pub value: Value,
    /// What the caller should know about how it was read.
    pub note: String,
    /// Why it cannot be, found while reading it.
    pub bad: Option<String>,
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The setting is different now.
    Changed,
    /// It was so already.
    Unchanged,
    /// It cannot be.
    Rejected,
}

impl Outcome {
    /// As the interface writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Changed => "changed",
            Outcome::Unchanged => "unchanged",
            Outcome::Rejected => "rejected",
        }
    }
}

/// What became of an entry, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What.
    pub outcome: Outcome,
    /// For people; may be empty.
    pub message: String,
}

impl Verdict {
    pub(crate) fn changed(message: impl Into<String>) -> Verdict {
        Verdict {
            outcome: Outcome::Changed,
            message: message.into(),
        }
    }
    pub(crate) fn unchanged(message: impl Into<String>) -> Verdict {
        Verdict {
            outcome: Outcome::Unchanged,
            message: message.into(),
        }
    }
    pub(crate) fn rejected(message: impl Into<String>) -> Verdict {
        Verdict {
            outcome: Outcome::Rejected,
            message: message.into(),
        }
    }
}

/// The stored result of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResult {
    /// Index of its config.
    pub config: u32,
    /// Index of its content.
    pub content: u32,
    /// Model.
    pub model: String,
    /// Key.
    pub key: String,
    /// What became of it.
    pub outcome: Outcome,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Written, not yet in effect.
    #[serde(default)]
    pub pending: bool,
}

/// A value as the models with plain text write it: no quotes around strings, null is empty.
///
/// # Errors
/// Lists and maps, and text that would break a line.
pub(crate) fn plain(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Array(_) | Value::Object(_) => {
            return Err("expected a string, a number or a boolean, found a list or a map".into());
        }
    };
    match text.chars().find(|c| c.is_control() && *c != '\t') {
        Some(c) => Err(format!("the value holds the character {c:?}")),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests;
