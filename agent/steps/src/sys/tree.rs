//! Ending the process tree of an attempt: process group, descendants, and orphans that were handed to us.
//!
//! The runner and each step's bash are child subreapers, so a daemon that a step forks stays a descendant of its bash while
//! that lives and becomes a child of the runner afterwards, whatever sessions it made.

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Children of this process that are not orphans: starting one and looking for orphans exclude each other.
static KNOWN: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Runs `spawn` and registers what it started, before anybody can take it for an orphan.
pub(super) fn register<T>(spawn: impl FnOnce() -> std::io::Result<(i32, T)>) -> std::io::Result<T> {
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (pid, t) = spawn()?;
    known.insert(pid);
    Ok(t)
}

/// Forgets a child that was reaped.
pub(super) fn unregister(pid: i32) {
    KNOWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .remove(&pid);
}

/// What /proc says about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    session: i32,
    zombie: bool,
}

/// Parses /proc/PID/stat; the name in parentheses may hold anything.
fn parse(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Stat {
        parent,
        session,
        zombie,
    })
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn all() -> BTreeMap<i32, Stat> {
    let mut out = BTreeMap::new();
    for e in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(s) = stat(pid) {
            out.insert(pid, s);
        }
    }
    out
}

fn below(root: i32, all: &BTreeMap<i32, Stat>) -> BTreeSet<i32> {
    let mut found = BTreeSet::from([root]);
    loop {
        let before = found.len();
        let more: Vec<i32> = all
            .iter()
            .filter(|(p, s)| found.contains(&s.parent) && !found.contains(p))
            .map(|(p, _)| *p)
            .collect();
        found.extend(more);
        if found.len() == before {
            found.remove(&root);
            return found;
        }
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(p) = Pid::from_raw(pid) {
        let _ = kill_process(p, signal);
    }
}

/// Sends SIGTERM to the group and to every descendant.
pub(super) fn terminate(root: i32) {
    if let Some(p) = Pid::from_raw(root) {
        let _ = kill_process_group(p, Signal::TERM);
    }
    for pid in below(root, &all()) {
        send(pid, Signal::TERM);
    }
}

/// Kills the group and every descendant, until none is left or they multiply faster than we can look.
pub(super) fn kill(root: i32) {
    for _ in 0..20 {
        let live: Vec<i32> = {
            let all = all();
            below(root, &all)
                .into_iter()
                .filter(|p| all.get(p).is_some_and(|s| !s.zombie))
                .collect()
        };
        for pid in &live {
            send(*pid, Signal::STOP);
        }
        for pid in &live {
            send(*pid, Signal::KILL);
        }
        if let Some(p) = Pid::from_raw(root) {
            let _ = kill_process_group(p, Signal::KILL);
        }
        if live.is_empty() {
            return;
        }
    }
}

/// Whether the process group still has a member.
pub(super) fn group_alive(root: i32) -> bool {
    Pid::from_raw(root).is_some_and(|p| rustix::process::test_kill_process_group(p).is_ok())
}

/// Kills what finished steps left to us: children of this process that it did not start itself and that have left its
/// session. Gives how many there were.
pub(super) fn kill_orphans() -> usize {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    // From /proc like the others' numbers: in a PID namespace whose session leader stands outside, it is 0, which getsid of
    // rustix cannot say.
    let Some(session) = stat(own).map(|s| s.session) else {
        return 0;
    };
    let mut killed = 0;
    for _ in 0..20 {
        let known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let all = all();
        let orphans: Vec<i32> = all
            .iter()
            .filter(|(p, s)| s.parent == own && s.session != session && !known.contains(p))
            .map(|(p, _)| *p)
            .collect();
        if orphans.is_empty() {
            return killed;
        }
        for pid in orphans {
            let zombie = all.get(&pid).is_some_and(|s| s.zombie);
            if !zombie {
                killed += 1;
                for d in below(pid, &all) {
                    send(d, Signal::KILL);
                }
                send(pid, Signal::KILL);
            }
            if let Some(p) = Pid::from_raw(pid) {
                let _ = rustix::process::waitpid(Some(p), rustix::process::WaitOptions::NOHANG);
            }
        }
        drop(known);
        super::clock::sleep(
            std::time::Duration::from_millis(2),
            &super::clock::Stop::default(),
        );
    }
    killed
}

/// Whether this process has any child at all, running or not yet reaped.
pub(super) fn any_child() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Err(rustix::io::Errno::CHILD))
}

/// Ends processes of a runner that was killed: everything whose environment holds `mark`, except ourselves.
pub fn kill_marked(mark: &str) -> usize {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut killed = 0;
    for _ in 0..10 {
        let mut found = false;
        for (pid, stat) in all() {
            if pid == own || stat.zombie {
                continue;
            }
            let Ok(env) = std::fs::read(format!("/proc/{pid}/environ")) else {
                continue;
            };
            if env.split(|b| *b == 0).any(|v| v == mark.as_bytes()) {
                found = true;
                killed += 1;
                send(pid, Signal::KILL);
                for d in below(pid, &all()) {
                    send(d, Signal::KILL);
                }
                // Killed is not yet gone; its files and locks are free only then.
                for _ in 0..100 {
                    let gone = Pid::from_raw(pid).is_none_or(|p| test_kill_process(p).is_err())
                        || all().get(&pid).is_none_or(|s| s.zombie);
                    if gone {
                        break;
                    }
                    super::clock::sleep(
                        std::time::Duration::from_millis(5),
                        &super::clock::Stop::default(),
                    );
                }
            }
        }
        if !found {
            return killed;
        }
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let s = parse("7 (a) b) S 3 7 5 0 -1").unwrap();
        assert_eq!((s.parent, s.session, s.zombie), (3, 5, false));
        assert!(parse("7 (x").is_none());
    }
}
