//! The real host: service manager, health hooks, kubelet, panic records.

use crate::ports::{Clock, HookOutcome, Host, OsRelease};
use crate::sys::clock::SystemClock;
use crate::sys::cmd;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

/// Directories of hooks; a file of the second replaces one of the same name of the first.
pub const HOOK_DIRS: [&str; 2] = ["/usr/lib/os-agent/health.d", "/etc/os-agent/health.d"];
/// The unit that ends a trial without the agent.
pub const TRIAL_TIMER: &str = "os-agent-trial-deadline.timer";
const SYSTEMCTL: &str = "systemctl";
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);
const KUBELET: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10248);

/// The running system.
#[derive(Debug, Clone)]
pub struct SystemHost {
    hook_dirs: Vec<Utf8PathBuf>,
}

impl Default for SystemHost {
    fn default() -> Self {
        SystemHost {
            hook_dirs: HOOK_DIRS.iter().map(Utf8PathBuf::from).collect(),
        }
    }
}

impl SystemHost {
    /// With other hook directories.
    pub fn with_hooks(hook_dirs: Vec<Utf8PathBuf>) -> Self {
        SystemHost { hook_dirs }
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

    fn stop_trial_timer(&self) {
        match cmd::run(SYSTEMCTL, &["--no-block", "stop", TRIAL_TIMER], SYSTEMCTL_LIMIT) {
            Ok(e) if e.ok() => {}
            Ok(e) => tracing::warn!(output = e.output.trim(), "{TRIAL_TIMER} could not be stopped"),
            Err(why) => tracing::warn!(why, "{TRIAL_TIMER} could not be stopped"),
        }
    }

    fn panic_record(&self) -> Option<String> {
        let clock = SystemClock;
        let uptime = i64::try_from(clock.monotonic().as_secs()).unwrap_or(0);
        // A record of the boot before this one; older ones are somebody else's.
        let not_before = clock.unix() - uptime - 3600;
        ["/sys/fs/pstore", "/var/lib/systemd/pstore"]
            .iter()
            .find_map(|d| newest_panic(Utf8Path::new(d), not_before))
    }
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

fn newest_panic(dir: &Utf8Path, not_before: i64) -> Option<String> {
    let mut found: Vec<(i64, Utf8PathBuf)> = Vec::new();
    let mut todo = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = todo.pop() {
        for e in dir.read_dir_utf8().into_iter().flatten().flatten() {
            let Ok(meta) = e.metadata() else { continue };
            if meta.is_dir() && depth < 3 {
                todo.push((e.path().to_owned(), depth + 1));
            } else if e.file_name().starts_with("dmesg") && meta.mtime() >= not_before {
                found.push((meta.mtime(), e.path().to_owned()));
            }
        }
    }
    found.sort();
    found
        .iter()
        .rev()
        .find_map(|(_, p)| panic_line(&String::from_utf8_lossy(&std::fs::read(p).ok()?)))
}

/// The line of a kernel log that says why it panicked.
pub fn panic_line(log: &str) -> Option<String> {
    log.lines()
        .rev()
        .find_map(|l| l.find("Kernel panic").and_then(|i| l.get(i..)))
        .map(|l| l.chars().take(300).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn the_panic_line_is_found() {
        let log = "<6>[ 1.0] ok\n<0>[ 2.0] Kernel panic - not syncing: VFS: Unable to mount root fs\n<0>[ 2.1] CPU: 0\n";
        assert_eq!(
            panic_line(log).unwrap(),
            "Kernel panic - not syncing: VFS: Unable to mount root fs"
        );
        assert_eq!(panic_line("nothing"), None);
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
