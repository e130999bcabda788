//! Gathers what the checks are about. Reads only.

use super::{Disk, Facts, Persist, Watchdog};
use crate::engine::{Options, Ports};
use crate::error::AgentError;
use crate::ports::{Cancel, Location, Report, SourceRequest};
use crate::slots::Layout;
use crate::state::State;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use os_proto::record::SlotRecord;
use std::sync::Arc;

/// Where to look.
pub struct Sight<'a> {
    /// The node's ports.
    pub ports: &'a Ports,
    /// How it runs.
    pub options: &'a Options,
    /// The system's root directory; another one in tests.
    pub root: Utf8PathBuf,
    /// The state directory, for its free space.
    pub state_dir: Utf8PathBuf,
    /// An address to try.
    pub url: Option<String>,
    /// Plain http is permitted for it.
    pub allow_http: bool,
    /// What came of asking the agent for its status.
    pub agent: Result<String, String>,
}

/// Gathers everything.
pub fn look(s: &Sight<'_>) -> Facts {
    let layout = s.ports.slots.layout();
    let loaded = match s.ports.store.load() {
        Ok(t) => State::parse(t.as_deref()),
        Err(e) => crate::state::Loaded {
            problem: Some(e),
            ..State::parse(None)
        },
    };
    let persist = Persist {
        missing: s.ports.store.missing(),
        free: free(&s.state_dir),
        problem: loaded.problem.clone(),
        read_only: loaded.read_only,
    };
    let now_unix = s.ports.clock.unix();
    Facts {
        offline: s.options.offline,
        disk: layout.map(|l| disk(s, &l)),
        env: s.ports.boot.read(),
        cmdline: s.ports.host.cmdline(),
        grub_cfg: text(&s.root.join("boot/efi/grub/grub.cfg")),
        known_unix: known(s, &loaded.state),
        persist,
        state: loaded.state,
        now_unix,
        synchronised: synchronised(&s.root),
        watchdogs: watchdogs(&s.root),
        pstore: pstore(&s.root),
        route: route(&s.root),
        name_servers: name_servers(&s.root),
        probe: s.url.as_deref().map(|u| probe(s, u)),
        agent: s.agent.clone(),
    }
}

fn text(path: &Utf8Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

fn disk(s: &Sight<'_>, l: &Layout) -> Disk {
    let size = |slot: Slot| l.part(slot.role()).map_or(0, |p| p.size);
    let record = s.ports.store.load_record(l.running()).ok().flatten();
    Disk {
        node: l.disk().to_string(),
        running: l.running(),
        sector_size: l.sector_size(),
        slot_bytes: [size(Slot::A), size(Slot::B)],
        warnings: l.warnings().to_vec(),
        // A running agent may hold it: that is its right.
        busy: s
            .ports
            .slots
            .open_read(l, l.running().other())
            .err()
            .map(|e| e.to_string()),
        image_bytes: record
            .and_then(|t| SlotRecord::parse(&t).ok().flatten())
            .map(|r| r.image_size),
    }
}

/// Free bytes and inodes of the file system that holds `dir`.
fn free(dir: &Utf8Path) -> Option<(u64, u64)> {
    let at = dir.ancestors().find(|d| d.exists())?;
    let v = rustix::fs::statvfs(at.as_std_path()).ok()?;
    Some((v.f_bavail.saturating_mul(v.f_frsize), v.f_favail))
}

/// The newest of: the image's own age, and what the agent has stored with a time.
fn known(s: &Sight<'_>, state: &State) -> i64 {
    let built = std::fs::metadata(s.root.join("usr/lib/os-release"))
        .and_then(|m| m.modified())
        .ok()
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(0));
    let stored = state
        .operations
        .iter()
        .map(|o| o.started_unix.max(o.finished_unix))
        .max()
        .unwrap_or(0);
    built.max(stored)
}

/// systemd-timesyncd leaves a file; chronyd leaves its own; nothing else says anything.
fn synchronised(root: &Utf8Path) -> Option<bool> {
    if root.join("run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    root.join("run/systemd/timesync").exists().then_some(false)
}

fn watchdogs(root: &Utf8Path) -> Vec<Watchdog> {
    let dir = root.join("sys/class/watchdog");
    let mut all: Vec<Watchdog> = dir
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| {
            let field = |name: &str| {
                text(&e.path().join(name))
                    .map(|t| t.trim().to_owned())
                    .unwrap_or_default()
            };
            Watchdog {
                name: e.file_name().to_owned(),
                identity: field("identity"),
                active: field("state") == "active",
                timeout_secs: field("timeout").parse().ok(),
            }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The kernel names the backend, or says `(null)`.
fn pstore(root: &Utf8Path) -> bool {
    text(&root.join("sys/module/pstore/parameters/backend"))
        .is_ok_and(|t| !matches!(t.trim(), "" | "(null)" | "null"))
}

/// `/proc/net/route`: destination and mask 0; `/proc/net/ipv6_route`: destination ::/0 through a real device.
fn route(root: &Utf8Path) -> bool {
    let v4 = text(&root.join("proc/net/route")).unwrap_or_default();
    let four = v4.lines().skip(1).any(|l| {
        let w: Vec<&str> = l.split_whitespace().collect();
        w.get(1) == Some(&"00000000") && w.get(7) == Some(&"00000000")
    });
    let v6 = text(&root.join("proc/net/ipv6_route")).unwrap_or_default();
    let six = v6.lines().any(|l| {
        let w: Vec<&str> = l.split_whitespace().collect();
        w.first().is_some_and(|d| d.bytes().all(|b| b == b'0'))
            && w.get(1) == Some(&"00")
            && w.last() != Some(&"lo")
    });
    four || six
}

fn name_servers(root: &Utf8Path) -> usize {
    text(&root.join("etc/resolv.conf"))
        .unwrap_or_default()
        .lines()
        .filter(|l| l.split_whitespace().next() == Some("nameserver"))
        .count()
}

/// Progress that nobody sees.
pub(super) struct Silent;

impl Report for Silent {
    fn step(&self, _: &'static str, _: Option<u64>) {}
    fn done(&self, _: u64) {}
    fn waiting(&self, _: Option<String>) {}
}

/// Opens the address as a Stage would, and reads nothing of it.
fn probe(s: &Sight<'_>, url: &str) -> Result<String, AgentError> {
    if url.starts_with("http://") && !s.allow_http {
        return Err(AgentError::new(
            Code::HttpNotAllowed,
            "plain http is not permitted: use https, or --allow-http",
        ));
    }
    let mut request = SourceRequest::at(Location::Url(url.to_owned()));
    request.allow_http = s.allow_http;
    let download = s
        .ports
        .source
        .open(&request, &Cancel::default(), Arc::new(Silent))?;
    let size = download
        .total()
        .map_or_else(|| "of unknown size".to_owned(), |n| format!("{n} bytes"));
    Ok(format!("{} answers, {size}", download.describe()))
}
