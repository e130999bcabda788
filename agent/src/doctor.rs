//! `os-agent doctor`: whether an update would work on this node, before the first one. PURE: [`Facts`] in, [`Check`]s out;
//! `doctor::look` gathers the facts, `doctor::repair` rewrites a broken os-state.

mod facts;
mod look;
mod repair;

pub use facts::{Disk, Facts, Persist, Watchdog};
pub use look::{Sight, look};
pub use repair::repair;

use crate::state::TOO_NEW_ADVICE;
use os_proto::layout::{MIB, Slot, cmdline};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it has to be.
    Good,
    /// An update works, but something is worth a look.
    Warn,
    /// An update would be refused or could not fall back.
    Bad,
    /// It could not be looked at here.
    Skipped,
}

impl Verdict {
    /// As the document writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Warn => "warn",
            Verdict::Bad => "bad",
            Verdict::Skipped => "skipped",
        }
    }
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What: `disk`, `environment`, `boot-counter`, `persist`, `clock`, `watchdog`, `network` …
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

/// Free bytes on PERSIST below which it is worth a warning.
const LITTLE_SPACE: u64 = 16 * MIB;
/// Free inodes below which it is worth a warning.
const FEW_INODES: u64 = 256;
/// What grub.cfg must hold to count tries.
const COUNTS: [&str; 3] = [
    "load_env --file $state/env1",
    "save_env --file $state/env1 left",
    "os.trial=",
];

/// All checks, in the order in which they are worth reading.
pub fn checks(f: &Facts) -> Vec<Check> {
    let mut out = vec![disk(f), environment(f), boot_counter(f), persist(f)];
    if f.offline {
        // A server is tried wherever it was asked for.
        out.extend(f.probe.is_some().then(|| network(f)));
        return out;
    }
    out.extend([agent(f), clock(f), watchdog(f), panic_record(f), network(f)]);
    out
}

/// Whether an update may be tried.
pub fn sound(checks: &[Check]) -> bool {
    checks.iter().all(|c| c.verdict != Verdict::Bad)
}

fn check(name: &'static str, verdict: Verdict, found: impl Into<String>, advice: impl Into<String>) -> Check {
    Check {
        name,
        verdict,
        found: found.into(),
        advice: advice.into(),
    }
}

fn disk(f: &Facts) -> Check {
    let d = match &f.disk {
        Ok(d) => d,
        Err(e) => {
            return check(
                "disk",
                Verdict::Bad,
                e.to_string(),
                "updates need a disk with slots, made by imgbuild",
            );
        }
    };
    let [a, b] = d.slot_bytes.map(|n| n >> 20);
    let found = format!(
        "{}: slot {} runs; slots of {a} and {b} MiB, sectors of {} bytes",
        d.node, d.running, d.sector_size
    );
    if let Some(why) = &d.busy {
        return check(
            "disk",
            Verdict::Bad,
            format!("{found}; {why}"),
            "release the inactive slot",
        );
    }
    let target = d.slot_bytes[usize::from(d.running == Slot::A)];
    if let Some(need) = d.image_bytes.filter(|n| *n > target) {
        return check(
            "disk",
            Verdict::Bad,
            format!("{found}; the running image has {need} bytes, the other slot only {target}"),
            "an image of that size does not fit the other slot: build smaller images",
        );
    }
    match d.warnings.first() {
        Some(w) => check(
            "disk",
            Verdict::Warn,
            format!("{found}; {w}"),
            "repair the partition table from outside while the disk is not in use (sgdisk -e writes a lost backup anew, sgdisk -v checks); \
             the agent never does",
        ),
        None => check("disk", Verdict::Good, found, ""),
    }
}

fn environment(f: &Facts) -> Check {
    const REPAIR: &str = "os-agent doctor --repair-state rewrites os-state for the slot that runs";
    let c = match &f.env {
        Ok(c) => c,
        Err(e) => return check("environment", Verdict::Bad, e.to_string(), REPAIR),
    };
    match (&c.env1, &c.env2) {
        (Ok(a), Ok(b)) if (a.cur, a.try_slot, a.gen_) == (b.cur, b.try_slot, b.gen_) => {
            let trial = a
                .trial()
                .map(|t| format!(", slot {t} on trial, {} tries left", a.left.unwrap_or(0)))
                .unwrap_or_default();
            check(
                "environment",
                Verdict::Good,
                format!(
                    "both copies are valid and equal: slot {} committed{trial}, generation {}",
                    a.cur, a.gen_
                ),
                "",
            )
        }
        (Ok(_), Ok(_)) => check(
            "environment",
            Verdict::Warn,
            "the copies differ; env1 counts",
            "the agent makes them equal when it starts",
        ),
        (Err(e), Ok(_)) | (Ok(_), Err(e)) => check(
            "environment",
            Verdict::Warn,
            format!("one copy is not valid: {e}"),
            "the agent rebuilds it from the other when it starts; if it comes back, the medium is failing",
        ),
        (Err(one), Err(two)) => check(
            "environment",
            Verdict::Bad,
            format!("no copy is valid: env1: {one}; env2: {two}"),
            REPAIR,
        ),
    }
}

fn boot_counter(f: &Facts) -> Check {
    const NAME: &str = "boot-counter";
    if f.state.not_started > 0 {
        return check(
            NAME,
            Verdict::Bad,
            format!(
                "the boot loader did not count the last {} trials",
                f.state.not_started
            ),
            "look at GRUB on the console: it must print a line that begins with \"slipway: src=env1\"",
        );
    }
    if f.offline {
        return match f.state.counted_unix {
            0 => check(NAME, Verdict::Skipped, "this disk has counted no try yet", ""),
            t => check(
                NAME,
                Verdict::Good,
                format!("a try was counted on {}", date(t)),
                "",
            ),
        };
    }
    let has = |key: &str| {
        f.cmdline
            .split_whitespace()
            .any(|w| w.split('=').next() == Some(key))
    };
    if !has(cmdline::SLOT) || !has(cmdline::BOOT) {
        return check(
            NAME,
            Verdict::Bad,
            format!(
                "the kernel command line has no {} and {}: this boot did not come from Slipway's grub.cfg",
                cmdline::SLOT,
                cmdline::BOOT
            ),
            "boot through GRUB from the disk's own BOOT partition (not by kexec, not from another loader)",
        );
    }
    match &f.grub_cfg {
        Err(e) => {
            return check(
                NAME,
                Verdict::Warn,
                format!("grub.cfg cannot be read: {e}"),
                "mount BOOT at /boot/efi and run doctor as root",
            );
        }
        Ok(text) => {
            if let Some(lost) = COUNTS.iter().find(|c| !text.contains(**c)) {
                return check(
                    NAME,
                    Verdict::Bad,
                    format!("grub.cfg on BOOT counts no tries: it has no {lost:?}"),
                    "put the grub.cfg of the image back on BOOT; without it a trial would never end",
                );
            }
        }
    }
    let found = match f.state.counted_unix {
        0 => "grub.cfg counts tries in env1 and started this boot; no trial has proved it on this node yet"
            .to_owned(),
        t => format!("proved: GRUB counted a try on {}", date(t)),
    };
    check(NAME, Verdict::Good, found, "")
}

fn persist(f: &Facts) -> Check {
    const NAME: &str = "persist";
    let p = &f.persist;
    if let Some(why) = &p.missing {
        return check(
            NAME,
            Verdict::Bad,
            format!("nothing can be stored: {why}"),
            if f.offline {
                "make the state directory writable, or name another one with --state; until then every command that changes something is \
                 refused (StateWriteFailed), commit and rollback too"
            } else {
                "repair or recreate PERSIST; until then nothing is staged, but trials are still committed or left"
            },
        );
    }
    if p.read_only {
        return check(
            NAME,
            Verdict::Bad,
            p.problem.clone().unwrap_or_default(),
            TOO_NEW_ADVICE,
        );
    }
    if let Some(why) = &p.problem {
        return check(
            NAME,
            Verdict::Warn,
            why.clone(),
            "the agent starts with what it could read",
        );
    }
    match p.free {
        Some((bytes, inodes)) if bytes < LITTLE_SPACE || inodes < FEW_INODES => check(
            NAME,
            Verdict::Warn,
            format!("{} MiB and {inodes} inodes are free", bytes >> 20),
            "make room on PERSIST",
        ),
        Some((bytes, inodes)) => check(
            NAME,
            Verdict::Good,
            format!(
                "{} MiB and {inodes} inodes are free; {} operations in the log",
                bytes >> 20,
                f.state.operations.len()
            ),
            "",
        ),
        None => check(NAME, Verdict::Good, "state can be read", ""),
    }
}

fn agent(f: &Facts) -> Check {
    match &f.agent {
        Ok(what) => check("agent", Verdict::Good, what.clone(), ""),
        Err(why) => check(
            "agent",
            Verdict::Bad,
            why.clone(),
            "systemctl status os-agent; journalctl -u os-agent",
        ),
    }
}

fn clock(f: &Facts) -> Check {
    let now = date(f.now_unix);
    if f.now_unix < f.known_unix {
        return check(
            "clock",
            Verdict::Bad,
            format!(
                "clock says {now}, which is before {} that is certainly past",
                date(f.known_unix)
            ),
            "check time synchronisation: certificates would be refused as not yet valid",
        );
    }
    match f.synchronised {
        Some(true) => check("clock", Verdict::Good, format!("{now}, synchronised"), ""),
        Some(false) => check(
            "clock",
            Verdict::Warn,
            format!("{now}, not synchronised"),
            "check time synchronisation (systemd-timesyncd or chronyd)",
        ),
        None => check(
            "clock",
            Verdict::Good,
            format!("{now}; whether it is synchronised is not known"),
            "",
        ),
    }
}

fn watchdog(f: &Facts) -> Check {
    let Some(w) = f
        .watchdogs
        .iter()
        .find(|w| w.active)
        .or_else(|| f.watchdogs.first())
    else {
        return check(
            "watchdog",
            Verdict::Warn,
            "this machine has no hardware watchdog",
            "a kernel that hangs in a trial waits for somebody to reset it; panics and lockups restart by themselves",
        );
    };
    let span = w.timeout_secs.map(|s| format!(", {s} s")).unwrap_or_default();
    let found = format!("{} ({}{span})", w.name, w.identity);
    if w.active {
        return check("watchdog", Verdict::Good, format!("{found} is fed"), "");
    }
    check(
        "watchdog",
        Verdict::Warn,
        format!("{found} is not running"),
        "set RuntimeWatchdogSec= in systemd's system.conf",
    )
}

fn panic_record(f: &Facts) -> Check {
    if f.pstore {
        return check(
            "panic-record",
            Verdict::Good,
            "the last lines of a kernel panic are kept",
            "",
        );
    }
    check(
        "panic-record",
        Verdict::Warn,
        "this machine keeps no record of a kernel panic (no pstore backend)",
        "a panic in a trial will be reported as NoReport",
    )
}

fn network(f: &Facts) -> Check {
    const NAME: &str = "network";
    match &f.probe {
        Some(Ok(what)) => return check(NAME, Verdict::Good, what.clone(), ""),
        Some(Err(e)) => {
            return check(
                NAME,
                Verdict::Bad,
                e.to_string(),
                "an image at that address could not be fetched",
            );
        }
        None => {}
    }
    match (f.route, f.name_servers) {
        (false, _) => check(
            NAME,
            Verdict::Warn,
            "there is no default route",
            "images can be staged from files only",
        ),
        (true, 0) => check(
            NAME,
            Verdict::Warn,
            "a default route, but no name server in /etc/resolv.conf",
            "use addresses in image URLs, or configure a name server",
        ),
        (true, n) => check(
            NAME,
            Verdict::Good,
            format!("a default route and {n} name servers; doctor --url URL tries a server"),
            "",
        ),
    }
}

fn date(unix: i64) -> String {
    jiff::Timestamp::from_second(unix).map_or_else(|_| unix.to_string(), |t| t.to_string())
}

#[cfg(test)]
mod tests;
