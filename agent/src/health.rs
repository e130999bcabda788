//! The real host: service manager, health hooks, kubelet, panic records.

use crate::evidence::Panic;
use crate::ports::{HookOutcome, Host, OsRelease};
use crate::sys::{cmd, space};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

mod pstore;

/// Directories of hooks; a file of the second replaces one of the same name of the first.
pub const HOOK_DIRS: [&str; 2] = ["/usr/lib/os-agent/health.d", "/etc/os-agent/health.d"];
/// The unit that ends a trial without the agent.
pub const TRIAL_TIMER: &str = "os-agent-trial-deadline.timer";
const SYSTEMCTL: &str = "systemctl";
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);
const KUBELET: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10248);

/// Where PERSIST is mounted.
pub const PERSIST: &str = "/persist";
/// Made by the initramfs when PERSIST cannot be used; holds why.
pub const PERSIST_MISSING: &str = "/run/os-agent/persist-missing";
/// Made by the initramfs when it repaired PERSIST, or could not; holds what e2fsck said.
pub const PERSIST_REPAIRED: &str = "/run/os-agent/persist-repaired";
/// Made by the initramfs when /etc has its upper layer in memory above the stored one; holds why.
pub const ETC_IN_MEMORY: &str = "/run/os-agent/etc-in-memory";
/// Made by the initramfs of a trial that got no copy of the running slot's /etc; holds why.
pub const ETC_NOT_COPIED: &str = "/run/os-agent/etc-not-copied";
/// Less than this counts as full.
const LOW_BYTES: u64 = 4 << 20;
const LOW_INODES: u64 = 64;

/// The running system.
#[derive(Debug, Clone)]
pub struct SystemHost {
    hook_dirs: Vec<Utf8PathBuf>,
    panics: Option<Utf8PathBuf>,
}

impl Default for SystemHost {
    fn default() -> Self {
        SystemHost {
            hook_dirs: HOOK_DIRS.iter().map(Utf8PathBuf::from).collect(),
            panics: None,
        }
    }
}

impl SystemHost {
    /// With other hook directories.
    pub fn with_hooks(hook_dirs: Vec<Utf8PathBuf>) -> Self {
        SystemHost {
            hook_dirs,
            panics: None,
        }
    }

    /// Archives kernel panic records in `dir`.
    pub fn archive_panics(mut self, dir: Option<Utf8PathBuf>) -> Self {
        self.panics = dir;
        self
    }

    fn hooks(&self) -> BTreeMap<String, Utf8PathBuf> {
        let mut found = BTreeMap::new();
        for dir in &self.hook_dirs {
            let Ok(entries) = dir.read_dir_utf8() else {
                continue;
            };
            for e in entries.flatten() {
                let path = e.path().to_owned();
                let name = e.file_name().to_owned();
                let Ok(meta) = std::fs::metadata(&path) else {
                    continue;
                };
                if name.starts_with('.') || name.ends_with('~') {
                    continue;
                }
                // A link to /dev/null or a file that is not executable masks a hook of the image.
                if meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
                    found.insert(name, path);
                } else {
                    found.remove(&name);
                }
            }
        }
        found
    }
}

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|s| s.trim().to_owned())
        .unwrap_or_default()
}

impl Host for SystemHost {
    fn boot_id(&self) -> String {
        first_line("/proc/sys/kernel/random/boot_id")
    }

    fn machine_id(&self) -> String {
        first_line("/etc/machine-id")
    }

    fn cmdline(&self) -> String {
        first_line("/proc/cmdline")
    }

    fn os_release(&self) -> OsRelease {
        let text = std::fs::read_to_string("/etc/os-release")
            .or_else(|_| std::fs::read_to_string("/usr/lib/os-release"))
            .unwrap_or_default();
        crate::inspect::parse_os_release(&text)
    }

    fn boot_complete(&self) -> bool {
        cmd::run(
            SYSTEMCTL,
            &["is-active", "--quiet", "boot-complete.target"],
            SYSTEMCTL_LIMIT,
        )
        .is_ok_and(|e| e.ok())
    }

    fn run_hooks(&self, timeout: Duration) -> Vec<HookOutcome> {
        self.hooks()
            .into_iter()
            .map(|(name, path)| match cmd::run(path.as_str(), &[], timeout) {
                Ok(e) => HookOutcome {
                    name,
                    exit: e.exit,
                    output: e.output,
                },
                Err(why) => HookOutcome {
                    name,
                    exit: Some(127),
                    output: why,
                },
            })
            .collect()
    }

    fn kubelet_healthy(&self) -> Option<bool> {
        let enabled = cmd::run(
            SYSTEMCTL,
            &["is-enabled", "--quiet", "kubelet.service"],
            SYSTEMCTL_LIMIT,
        )
        .is_ok_and(|e| e.ok());
        enabled.then(|| healthz(KUBELET))
    }

    fn reboot(&self) -> crate::error::Result<()> {
        let e = cmd::run(SYSTEMCTL, &["--no-block", "reboot"], SYSTEMCTL_LIMIT)
            .map_err(|why| crate::error::AgentError::new(Code::Internal, format!("reboot: {why}")))?;
        if e.ok() {
            return Ok(());
        }
        Err(crate::error::AgentError::new(
            Code::Internal,
            format!("systemctl reboot was refused: {}", e.output.trim()),
        ))
    }

    fn steps_want_reboot(&self) -> Option<String> {
        crate::steps::wants_reboot(&crate::steps::Place::default().steps, &self.boot_id())
    }

    fn stop_trial_timer(&self) {
        match cmd::run(SYSTEMCTL, &["--no-block", "stop", TRIAL_TIMER], SYSTEMCTL_LIMIT) {
            Ok(e) if e.ok() => {}
            Ok(e) => tracing::warn!(output = e.output.trim(), "{TRIAL_TIMER} could not be stopped"),
            Err(why) => tracing::warn!(why, "{TRIAL_TIMER} could not be stopped"),
        }
    }

    fn panic_record(&self) -> Option<Panic> {
        let dirs: Vec<Utf8PathBuf> = pstore::DIRS.iter().map(Utf8PathBuf::from).collect();
        pstore::newest(&dirs, self.panics.as_deref())
    }

    fn trial_obstacle(&self) -> Option<String> {
        mark(ETC_NOT_COPIED).map(|why| {
            format!("the initramfs could not give this trial the settings of the running slot: {why}")
        })
    }

    fn persist_problems(&self) -> Vec<String> {
        let mut list: Vec<String> = [PERSIST_REPAIRED, ETC_IN_MEMORY]
            .iter()
            .filter_map(|p| mark(p))
            .collect();
        if let Ok(free) = space::free(Utf8Path::new(PERSIST)) {
            list.extend(fullness(free));
        }
        list
    }
}

/// A word that the initramfs left for the agent.
pub fn mark(path: &str) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(words.join(" ").chars().take(500).collect())
}

/// What to say about a PERSIST with so much room.
fn fullness(free: space::Free) -> Option<String> {
    (free.bytes < LOW_BYTES || free.inodes < LOW_INODES).then(|| {
        format!(
            "PERSIST is full: {} KiB and {} inodes are free; the agent's own files have their room, everything else may fail",
            free.bytes >> 10,
            free.inodes
        )
    })
}

/// Whether an HTTP endpoint answers its healthz with 200.
fn healthz(at: SocketAddr) -> bool {
    let limit = Duration::from_secs(3);
    let ask = || -> std::io::Result<bool> {
        let mut s = TcpStream::connect_timeout(&at, limit)?;
        s.set_read_timeout(Some(limit))?;
        s.set_write_timeout(Some(limit))?;
        s.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut head = [0u8; 64];
        let n = s.read(&mut head)?;
        let text = String::from_utf8_lossy(head.get(..n).unwrap_or_default()).into_owned();
        Ok(text.split_whitespace().nth(1) == Some("200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn a_full_persist_is_said_and_others_are_not() {
        let free = |bytes, inodes| fullness(space::Free { bytes, inodes });
        assert_eq!(free(1 << 30, 5000), None);
        assert_eq!(free(1 << 30, u64::MAX), None);
        assert!(free(0, 5000).unwrap().contains("0 KiB"));
        assert!(free(1 << 30, 0).unwrap().contains("0 inodes"));
    }

    #[test]
    fn marks_are_one_line() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("m");
        std::fs::write(&p, "two\n  lines\n").unwrap();
        assert_eq!(mark(p.to_str().unwrap()).unwrap(), "two lines");
        assert_eq!(mark("/nonexistent/mark"), None);
    }

    #[test]
    fn hooks_of_the_node_replace_and_mask_those_of_the_image() {
        let d = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(d.path()).unwrap();
        let put = |dir: &str, name: &str, text: &str, mode: u32| {
            let p = root.join(dir);
            std::fs::create_dir_all(&p).unwrap();
            std::fs::write(p.join(name), text).unwrap();
            std::fs::set_permissions(p.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        put("a", "10-x", "#!/bin/sh\nexit 1\n", 0o755);
        put("a", "20-y", "#!/bin/sh\nexit 0\n", 0o755);
        put("a", "30-z", "#!/bin/sh\necho tail; exit 75\n", 0o755);
        put("b", "10-x", "#!/bin/sh\nexit 0\n", 0o755);
        put("b", "20-y", "", 0o644);
        let host = SystemHost::with_hooks(vec![root.join("a"), root.join("b")]);
        let out = host.run_hooks(Duration::from_secs(10));
        let got: Vec<(&str, Option<i32>)> = out.iter().map(|h| (h.name.as_str(), h.exit)).collect();
        assert_eq!(got, [("10-x", Some(0)), ("30-z", Some(75))]);
        assert_eq!(out[1].output, "tail\n");
    }
}
