//! Private namespaces for a build, so that nothing of it is ever seen on the host.
//!
//! The process that the user starts becomes a *supervisor*. It starts the same program again as PID 1 of private PID, mount,
//! IPC and UTS namespaces: the *worker*. Whatever ends the supervisor, SIGKILL included, ends the worker (death signal), and
//! with its PID 1 the kernel ends every process of the namespace and drops every mount. The supervisor handles signals, the
//! worker needs no handler.

#![allow(clippy::disallowed_methods)] // starts our own program again

use crate::error::{BuildError, Kind, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_parent_process_death_signal, wait,
};
use rustix::thread::UnshareFlags;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Set in the worker: whether it has namespaces of its own, a colon, the supervisor's process id.
const MARK: &str = "IMGBUILD_WORKER";
const PRIVATE: &str = "private";
const SHARED: &str = "shared";

/// Where [`enter`] returned.
#[derive(Debug)]
pub enum Entered {
    /// In the worker: do the build and exit with its status.
    Inside,
    /// In the supervisor, after the worker has ended.
    Finished(Ended),
}

/// How the worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(u8),
    /// The user ended it: SIGINT (2), SIGTERM (15) or SIGHUP (1).
    Signal(u8),
    /// It died of a signal by itself.
    Killed(u8),
}

/// Starts the worker and waits for it, or, in the worker, sets up its namespaces. Call it before any thread is started.
///
/// `namespaces` needs root; without it the worker shares everything with its parent, but ends with it all the same.
pub fn enter(namespaces: bool) -> Result<Entered> {
    let mark = std::env::var(MARK).unwrap_or_default();
    if !mark.is_empty() {
        // Modes of what we make must not depend on the user's shell.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    }
    match mark.split_once(':') {
        Some((PRIVATE, supervisor)) => {
            die_with(supervisor)?;
            become_private()?;
            Ok(Entered::Inside)
        }
        Some((_, supervisor)) => {
            die_with(supervisor)?;
            Ok(Entered::Inside)
        }
        None => supervise(namespaces).map(Entered::Finished),
    }
}

/// Whether this process was started as a worker, with or without namespaces; [`enter`] then returns at once.
pub fn is_worker() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Whether this process is a worker with private namespaces.
pub fn inside() -> bool {
    getpid().as_raw_nonzero().get() == 1 && std::env::var(MARK).is_ok_and(|m| m.starts_with(PRIVATE))
}

fn fail(what: &str, e: impl std::fmt::Display) -> BuildError {
    BuildError::new(
        Kind::Build,
        "SBX001",
        format!(
            "{what}: {e}; a build from packages needs root and the right to create namespaces (CAP_SYS_ADMIN)"
        ),
    )
}

/// SAFETY of both callers: none of the flags is FILES, so no file descriptor that a library holds changes its meaning.
#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: see above; the flags are fixed in this file.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// For use between fork and exec: an empty network namespace. Where the kernel refuses, the network stays.
pub(super) fn leave_network() {
    let _ = unshare(UnshareFlags::NEWNET);
}

fn supervise(namespaces: bool) -> Result<Ended> {
    let exe = std::env::current_exe().map_err(|e| fail("cannot find this program", e))?;
    let mut command = Command::new(exe);
    command.args(std::env::args_os().skip(1));
    let kind = if namespaces { PRIVATE } else { SHARED };
    command.env(MARK, format!("{kind}:{}", getpid().as_raw_nonzero()));
    if namespaces {
        // Only children of this process enter the new PID namespace, the first one as its PID 1.
        unshare(UnshareFlags::NEWPID).map_err(|e| fail("cannot create a PID namespace", e))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| fail("cannot wait for signals", e))?;
    runtime.block_on(async move {
        use tokio::signal::unix::{SignalKind, signal};
        let catch = |kind| signal(kind).map_err(|e| fail("cannot wait for signals", e));
        let mut interrupt = catch(SignalKind::interrupt())?;
        let mut terminate = catch(SignalKind::terminate())?;
        // One that was ignored when this program started (nohup) stays ignored, here and in the child.
        let mut hangup = if hangup_is_ignored() {
            None
        } else {
            Some(catch(SignalKind::hangup())?)
        };
        let mut child = tokio::process::Command::from(command)
            .spawn()
            .map_err(|e| fail("cannot start the build process", e))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let asked = tokio::select! {
            status = child.wait() => {
                return status.map(ended).map_err(|e| fail("cannot wait for the build process", e));
            }
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
            Some(_) = async { hangup.as_mut()?.recv().await }, if hangup.is_some() => 1,
        };
        // SIGKILL of a namespace's PID 1 ends everything in it; after wait() nothing of the build runs any more.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = child.wait().await;
        Ok(Ended::Signal(asked))
    })
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(u8::try_from(code).unwrap_or(1)),
        // A terminal sends Ctrl-C to both of us: the worker may be the first to go.
        (None, Some(n @ (1 | 2 | 15))) => Ended::Signal(n as u8),
        (None, signal) => Ended::Killed(signal.and_then(|s| u8::try_from(s).ok()).unwrap_or(0)),
    }
}

fn hangup_is_ignored() -> bool {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    os_proto::terminal::ignores_hangup(&status)
}

/// Ties our life to the supervisor's, and notices when it is gone already.
fn die_with(supervisor: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| fail("cannot tie the build to its supervisor", e))?;
    // getppid() is 0 in a new PID namespace; /proc is still the supervisor's and shows its number.
    let status = fs_err::read_to_string("/proc/self/status").map_err(|e| fail("cannot read /proc", e))?;
    if parent_of(&status) == Some(supervisor) {
        return Ok(());
    }
    Err(BuildError::new(
        Kind::Input,
        "SBX002",
        format!("the variable {MARK} is set by imgbuild itself, for its own child; unset it"),
    ))
}

fn parent_of(status: &str) -> Option<&str> {
    status
        .lines()
        .find_map(|l| l.strip_prefix("PPid:"))
        .map(str::trim)
}

fn become_private() -> Result<()> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS)
        .map_err(|e| fail("cannot create a mount namespace", e))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| fail("cannot make mounts private", e))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(|e| fail("cannot mount a private /proc", e))?;
    // The host's name must not reach an image.
    rustix::system::sethostname(b"localhost").map_err(|e| fail("cannot set the host name", e))?;
    Ok(())
}

/// Ends every other process of the namespace: what a scriptlet left in the background. Does nothing outside of it.
/// Call it only while no [`super::Cmd`] runs.
pub fn kill_stragglers() -> usize {
    if !inside() {
        return 0;
    }
    let mut killed = 0;
    // A process can fork while we look: repeat until a round finds none. Bounded, because each round kills what it saw.
    for _ in 0..50 {
        let pids = other_pids();
        if pids.is_empty() {
            break;
        }
        killed += pids
            .iter()
            .filter(|pid| kill_process(**pid, Signal::KILL).is_ok())
            .count();
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    killed
}

/// Living processes of this namespace but ourselves; a zombie without command line counts as gone.
fn other_pids() -> Vec<Pid> {
    let Ok(entries) = fs_err::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter(|pid| {
            let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            is_alive(&stat)
        })
        .filter_map(Pid::from_raw)
        .collect()
}

/// Whether `/proc/PID/stat` shows a process that still runs. The name in brackets may hold anything.
fn is_alive(stat: &str) -> bool {
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X" | "x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_not_alive() {
        assert!(is_alive("12 (sleep) S 1 12 12"));
        assert!(is_alive("12 (a) Z) R 1 12 12"));
        assert!(!is_alive("12 (sleep) Z 1 12 12"));
        assert!(!is_alive(""));
    }

    #[test]
    fn the_end_of_a_worker() {
        assert_eq!(ended(ExitStatus::from_raw(7 << 8)), Ended::Exited(7));
        assert_eq!(ended(ExitStatus::from_raw(2)), Ended::Signal(2));
        assert_eq!(ended(ExitStatus::from_raw(9)), Ended::Killed(9));
    }

    #[test]
    fn the_parent_in_proc() {
        assert_eq!(parent_of("Name:\tx\nPPid:\t77\nTracerPid:\t0\n"), Some("77"));
    }

    #[test]
    fn tests_are_not_inside() {
        assert!(!inside());
        assert_eq!(kill_stragglers(), 0);
    }
}
