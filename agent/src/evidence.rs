//! What a boot leaves behind for the next one: kernel panic records and signs of life. PURE; `health` and `store` read.
//!
//! Panic records are the kernel's pstore files (Documentation/ABI/testing/pstore): one per part of the log, `Part1` the
//! newest, each headed by `Panic#N PartM`. systemd-pstore may have moved them away before the agent looks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Lines of the kernel's log that are kept before its panic line …
const BEFORE: usize = 8;
/// … and after it.
const AFTER: usize = 16;
/// Characters of a line that are kept.
const WIDTH: usize = 200;
/// A record is not of a trial when it is older than its arming by more than this: clocks without a battery and clocks in
/// local time are off by less.
const CLOCK_SLACK_SECS: i64 = 26 * 3600;

/// A kernel panic of an earlier boot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Panic {
    /// The line that says why.
    pub reason: String,
    /// The kernel's last lines, that one among them.
    #[serde(default)]
    pub lines: Vec<String>,
    /// When it was recorded, by the clock of that boot; Unix seconds, 0 = unknown.
    #[serde(default)]
    pub at_unix: i64,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Panic {
    /// From a kernel log; `None` when it holds no panic.
    pub fn of_log(log: &str, at_unix: i64) -> Option<Panic> {
        let lines: Vec<&str> = log.lines().map(bare).filter(|l| !l.is_empty()).collect();
        let at = lines.iter().rposition(|l| is_panic(l))?;
        let reason = lines
            .get(at)
            .and_then(|l| l.find("Kernel panic").and_then(|i| l.get(i..)))?;
        let from = at.saturating_sub(BEFORE);
        Some(Panic {
            reason: clip(reason),
            lines: lines
                .iter()
                .skip(from)
                .take(at - from + 1 + AFTER)
                .map(|l| clip(l))
                .collect(),
            at_unix,
            unknown: Map::new(),
        })
    }

    /// Whether it can be of a trial that was armed at this time.
    pub fn may_follow(&self, armed_unix: i64) -> bool {
        self.at_unix == 0 || armed_unix == 0 || self.at_unix + CLOCK_SLACK_SECS >= armed_unix
    }
}

fn is_panic(line: &str) -> bool {
    line.contains("Kernel panic") && !line.contains("end Kernel panic")
}

/// A line without the level that the kernel puts before it.
fn bare(line: &str) -> &str {
    match line.strip_prefix('<').and_then(|l| l.split_once('>')) {
        Some((level, rest)) if !level.is_empty() && level.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => line,
    }
    .trim_end()
}

fn clip(line: &str) -> String {
    line.chars().take(WIDTH).collect()
}

/// One file of pstore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PstoreFile {
    /// Its name, such as `dmesg-efi_pstore-167000000001001`.
    pub name: String,
    /// Its directory: files of different ones do not belong together.
    pub dir: String,
    /// Its text.
    pub text: String,
    /// Its time of change, which pstore takes from the record; Unix seconds.
    pub at_unix: i64,
}

/// A whole kernel log out of pstore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Names its content; the same record has the same one wherever it lies.
    pub id: String,
    /// The log, oldest line first.
    pub log: String,
    /// Unix seconds.
    pub at_unix: i64,
    /// The files it was put together from.
    pub files: Vec<(String, String)>,
}

/// Parts of one log by their number, under the key that they share.
type Group = ((String, String), Vec<(u32, PstoreFile)>);

/// Puts the files that belong together into whole logs, the newest last. Files that are no panic's are left out.
pub fn records(files: Vec<PstoreFile>) -> Vec<Record> {
    let mut groups: Vec<Group> = Vec::new();
    let raw: Vec<PstoreFile> = files
        .into_iter()
        .filter(|f| f.name.starts_with("dmesg-"))
        .collect();
    for f in raw {
        let Some((part, counter)) = header(&f.text) else {
            continue;
        };
        let key = (f.dir.clone(), format!("{} {counter}", group(&f.name)));
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, g)) => g.push((part, f)),
            None => groups.push((key, vec![(part, f)])),
        }
    }
    let mut out: Vec<Record> = groups.into_iter().map(|(_, g)| joined(g)).collect();
    out.sort_by(|a, b| (a.at_unix, &a.id).cmp(&(b.at_unix, &b.id)));
    out.dedup_by(|a, b| a.id == b.id);
    out
}

fn joined(mut parts: Vec<(u32, PstoreFile)>) -> Record {
    // Part1 holds the end of the log.
    parts.sort_by_key(|p| std::cmp::Reverse(p.0));
    let log: String = parts
        .iter()
        .map(|(_, f)| {
            let body = f.text.split_once('\n').map_or("", |(_, b)| b);
            if body.ends_with('\n') {
                body.to_owned()
            } else {
                format!("{body}\n")
            }
        })
        .collect();
    Record {
        id: format!("{:08x}-{}", crc32c::crc32c(log.as_bytes()), log.len()),
        at_unix: parts.iter().map(|(_, f)| f.at_unix).max().unwrap_or(0),
        files: parts.into_iter().map(|(_, f)| (f.dir, f.name)).collect(),
        log,
    }
}

/// Part and counter of `Panic#2 Part1`; other reasons (an oops that was survived, a shutdown) are no panic.
fn header(text: &str) -> Option<(u32, u32)> {
    let (counter, part) = text.lines().next()?.strip_prefix("Panic#")?.split_once(" Part")?;
    Some((part.trim().parse().ok()?, counter.parse().ok()?))
}

/// What the names of one record's files share. EFI counts `(time * 100 + part) * 1000 + count`; others name a record each.
fn group(name: &str) -> String {
    let (backend, id) = name.rsplit_once('-').unwrap_or((name, ""));
    match id.parse::<u64>() {
        Ok(n) if n >= 100_000_000_000 => format!("{backend}-{}-{}", n / 100_000, n % 1000),
        _ => name.to_owned(),
    }
}

/// A sign of life that needs no agent: the initramfs and the early timer leave one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// The boot it is of.
    pub boot_id: String,
    /// Seconds after its start.
    pub secs: u64,
    /// What was reached.
    pub mark: Mark,
}

/// How far a boot got without the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The initramfs mounted PERSIST.
    Initramfs,
    /// The early timer ended the trial.
    Deadline,
    /// Emergency or rescue mode ended it.
    Emergency,
}

impl Mark {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mark::Initramfs => "the initramfs mounted PERSIST",
            Mark::Deadline => "the early timer ended it, not committed in time",
            Mark::Emergency => "emergency or rescue mode",
        }
    }
}

/// Parses `BOOT-ID SECONDS WORD` lines; others are skipped.
pub fn signs(text: &str) -> Vec<Sign> {
    text.lines()
        .filter_map(|l| {
            let mut w = l.split_whitespace();
            let (boot_id, secs, word) = (w.next()?, w.next()?, w.next()?);
            Some(Sign {
                boot_id: boot_id.to_owned(),
                secs: secs.split('.').next()?.parse().ok()?,
                mark: match word {
                    "initramfs" => Mark::Initramfs,
                    "deadline" => Mark::Deadline,
                    "emergency" => Mark::Emergency,
                    _ => return None,
                },
            })
        })
        .collect()
}

/// What is known about earlier boots when the agent starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The newest panic that no agent has seen yet.
    pub panic: Option<Panic>,
    /// Signs of life of this trial's boots, in order.
    pub signs: Vec<Sign>,
}

#[cfg(test)]
mod tests;
