//! The node's settings in memory: files by path, kernel settings by path below /proc/sys.

use super::MemDisk;
use crate::error::{AgentError, Result};
use crate::ports::Settings;
use crate::settings::effect::{Seen, Written};
use crate::settings::sysctl::{KernelFact, resolve};
use crate::settings::{Facts, Item, Model, Plan, Target};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use std::collections::BTreeMap;

/// Files by target and kernel settings.
#[derive(Debug, Clone, Default)]
pub struct MemSettings {
    /// Content by target.
    pub files: BTreeMap<Target, Vec<u8>>,
    /// Values by path below /proc/sys.
    pub kernel: BTreeMap<String, String>,
    /// The next write fails.
    pub fail: Option<AgentError>,
    /// How often something was written.
    pub writes: u32,
}

impl MemSettings {
    /// What a node has.
    pub fn new() -> MemSettings {
        let file = |p: &str, t: &str| (Target::File(p.into()), t.as_bytes().to_vec());
        let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        MemSettings {
            files: BTreeMap::from([
                file("/var/lib/kubelet/config.yaml", kubelet),
                file("/etc/containerd/config.toml", "version = 2\n"),
                file("/etc/security/limits.conf", "# limits\n"),
            ]),
            kernel: BTreeMap::from(
                [
                    ("net/ipv4/ip_forward", "0"),
                    ("vm/swappiness", "60"),
                    ("vm/max_map_count", "65530"),
                ]
                .map(|(k, v)| (k.to_owned(), v.to_owned())),
            ),
            fail: None,
            writes: 0,
        }
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> String {
        let file = self.files.get(&Target::File(path.into()));
        String::from_utf8_lossy(file.map(Vec::as_slice).unwrap_or_default()).into_owned()
    }
}

impl Settings for MemDisk {
    fn gather(&self, items: &[Item]) -> Facts {
        let m = self.medium();
        let s = &m.settings;
        let mut facts = Facts::default();
        for i in items.iter().filter(|i| i.bad.is_none()) {
            if matches!(i.model, Model::Sysctl | Model::SysctlPersist) {
                let prefix = |p: &str| s.kernel.keys().any(|k| k == p || k.starts_with(&format!("{p}/")));
                let path = resolve(&i.key, &prefix).ok().flatten();
                let fact = KernelFact {
                    value: path.as_ref().and_then(|p| s.kernel.get(p).cloned()),
                    path,
                    trouble: None,
                };
                facts.kernel.insert(i.key.clone(), fact);
            }
            facts
                .files
                .insert(i.target.clone(), Ok(s.files.get(&i.target).cloned()));
        }
        facts
    }

    fn apply(&self, plan: &Plan, _: &[Written]) -> Result<Vec<Written>> {
        let mut m = self.medium();
        let s = &mut m.settings;
        if let Some(e) = s.fail.take() {
            if e.code == Code::Internal {
                panic!("a fault of ours: {e}");
            }
            return Err(e);
        }
        for k in &plan.kernel {
            s.kernel.insert(k.path.clone(), k.new.clone());
            s.writes += 1;
        }
        let mut written = Vec::new();
        for f in &plan.files {
            s.files.insert(f.target.clone(), f.new.clone());
            s.writes += 1;
            written.push(Written {
                target: f.target.to_string(),
                model: f.model.as_str().to_owned(),
                previous: String::new(),
                at_unix: 0,
                at_secs: 0,
                boot_id: String::new(),
                unit: f.model.unit().unwrap_or_default().to_owned(),
                slot: match f.target {
                    Target::Arguments(slot) => Some(slot),
                    _ => None,
                },
                values: f.values.clone(),
                unknown: Default::default(),
            });
        }
        Ok(written)
    }

    fn seen(&self, records: &[Written], boot_id: &str, running: Option<Slot>) -> Seen {
        Seen {
            boot_id: boot_id.to_owned(),
            running,
            // Every service started with the boot.
            started_secs: records.iter().map(|r| (r.unit.clone(), 0)).collect(),
            kernel: self.medium().settings.kernel.clone(),
        }
    }

    fn forget(&self, _: &Written) {}
}
