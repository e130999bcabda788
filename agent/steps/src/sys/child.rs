//! Starting programs: argument vectors only, a session of their own, a limit on every run, the whole tree ended with it.
#![allow(clippy::disallowed_methods)]
// the home of Command
// One `pre_exec`: a step must leave our session, become a subreaper and enter its control group before bash runs.
#![allow(unsafe_code)]

use super::cgroup::Group;
use super::clock::{Stop, monotonic};
use super::tree;
use camino::Utf8Path;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// bash writes its trace on a descriptor that is at least this, so that scripts may use the small ones.
const TRACE_FD: i32 = 19;
/// From SIGTERM to SIGKILL.
pub const GRACE: Duration = Duration::from_secs(10);
/// How long pipes may stay open after everything was killed.
const DRAIN: Duration = Duration::from_secs(1);

/// Where bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// bash's trace.
    Trace,
}

/// What to start.
#[derive(Debug)]
pub struct Spec<'a> {
    /// Absolute path.
    pub program: &'a str,
    /// Its arguments.
    pub args: &'a [&'a str],
    /// The whole environment; nothing is inherited.
    pub env: &'a [(String, String)],
    /// Working directory.
    pub cwd: &'a Utf8Path,
    /// Limit.
    pub timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Its control group, where there is one.
    pub group: Option<&'a Group>,
    /// Whether there is a pipe for bash's trace, named by `BASH_XTRACEFD`.
    pub trace: bool,
    /// Ends it early.
    pub stop: &'a Stop,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit status.
    pub exit: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The limit was reached.
    pub timed_out: bool,
    /// The runner was asked to stop.
    pub stopped: bool,
    /// Processes that it left behind and that were killed.
    pub leftovers: usize,
    /// Wall time.
    pub took: Duration,
}

impl Ended {
    /// Exit status 0 within the limit.
    pub fn ok(&self) -> bool {
        self.exit == Some(0) && !self.timed_out && !self.stopped
    }
}

/// Makes this process the one that inherits orphans; harmless when repeated.
pub fn become_subreaper() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

struct Pipe {
    stream: Stream,
    file: File,
}

fn spawn(spec: &Spec<'_>) -> std::io::Result<(Child, Vec<Pipe>)> {
    let entry = spec.group.and_then(Group::entry);
    let mut trace = None;
    if spec.trace {
        let (r, w) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // Not moved to a fixed number in the child: whatever has that number there may still be needed.
        trace = Some((r, rustix::io::fcntl_dupfd_cloexec(&w, TRACE_FD)?));
    }
    let mut c = Command::new(spec.program);
    c.args(spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .current_dir(spec.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some((_, w)) = &trace {
        c.env("BASH_XTRACEFD", w.as_raw_fd().to_string());
    }
    let entry_fd = entry.as_ref().map(AsFd::as_fd).map(|f| f.as_raw_fd());
    let trace_fd = trace.as_ref().map(|(_, w)| w.as_raw_fd());
    let parent = rustix::process::getpid();
    // SAFETY: only async-signal-safe system calls, on descriptors that outlive `spawn`.
    unsafe {
        c.pre_exec(move || {
            rustix::process::setsid()?;
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // A runner that was killed before this line sends no signal any more; its child must not outlive it.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::CANCELED.into());
            }
            if let Some(fd) = entry_fd {
                let _ = rustix::io::write(std::os::fd::BorrowedFd::borrow_raw(fd), b"0");
            }
            if let Some(fd) = trace_fd {
                let w = std::os::fd::BorrowedFd::borrow_raw(fd);
                rustix::io::fcntl_setfd(w, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    let mut child = tree::register(|| {
        let child = c.spawn()?;
        Ok((i32::try_from(child.id()).unwrap_or(0), child))
    })?;
    let mut pipes = Vec::new();
    let mut keep = |stream, fd: OwnedFd| {
        rustix::io::ioctl_fionbio(&fd, true)?;
        pipes.push(Pipe {
            stream,
            file: File::from(fd),
        });
        std::io::Result::Ok(())
    };
    if let Some(p) = child.stdout.take() {
        keep(Stream::Out, p.into())?;
    }
    if let Some(p) = child.stderr.take() {
        keep(Stream::Err, p.into())?;
    }
    if let Some((r, _)) = trace {
        keep(Stream::Trace, r)?;
    }
    Ok((child, pipes))
}

/// Reads what is there; drops pipes that ended.
fn drain(pipes: &mut Vec<Pipe>, buf: &mut [u8], sink: &mut dyn FnMut(Stream, &[u8])) -> bool {
    let mut any = false;
    pipes.retain_mut(|p| match p.file.read(buf) {
        Ok(0) => false,
        Ok(n) => {
            any = true;
            sink(p.stream, buf.get(..n).unwrap_or_default());
            true
        }
        Err(e) => matches!(
            e.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
        ),
    });
    any
}

/// Runs a program to its end; `sink` gets everything that it and its children print.
///
/// # Errors
/// When it cannot be started.
pub fn run(spec: &Spec<'_>, sink: &mut dyn FnMut(Stream, &[u8])) -> std::io::Result<Ended> {
    let start = monotonic();
    let (mut child, mut pipes) = spawn(spec)?;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let pidfd = rustix::process::Pid::from_raw(pid)
        .ok_or_else(|| std::io::Error::other("no process id"))
        .and_then(|p| Ok(rustix::process::pidfd_open(p, PidfdFlags::empty())?));
    let pidfd = match pidfd {
        Ok(fd) => fd,
        Err(e) => {
            tree::kill(pid);
            let _ = child.wait();
            tree::unregister(pid);
            return Err(e);
        }
    };
    let mut buf = vec![0u8; 64 << 10];
    let (mut timed_out, mut stopped) = (false, false);
    let mut kill_at = None;
    loop {
        let now = monotonic().saturating_sub(start);
        if kill_at.is_none() && (now >= spec.timeout || spec.stop.stopped()) {
            timed_out = now >= spec.timeout;
            stopped = !timed_out;
            tree::terminate(pid);
            kill_at = Some(now + spec.grace);
        }
        if kill_at.is_some_and(|at| now >= at) {
            end(pid, spec.group);
            // Again after a while, should it have been uninterruptible.
            kill_at = Some(now + Duration::from_secs(5));
        }
        let next = kill_at.unwrap_or(spec.timeout).saturating_sub(now);
        let wait = next.clamp(Duration::from_millis(1), Duration::from_millis(100));
        let ended = {
            let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(&pidfd, PollFlags::IN)];
            fds.extend(pipes.iter().map(|p| PollFd::new(&p.file, PollFlags::IN)));
            let t = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(wait.subsec_nanos()),
            };
            let _ = poll(&mut fds, Some(&t));
            fds.first().is_some_and(|f| !f.revents().is_empty())
        };
        drain(&mut pipes, &mut buf, sink);
        if ended {
            break;
        }
    }
    let status = child.wait();
    tree::unregister(pid);
    let leftovers = leftovers(pid, spec.group);
    // What was killed closes its pipes; what was not (it cannot be killed, or is not ours) must not hold us.
    let until = monotonic() + DRAIN;
    while !pipes.is_empty() && monotonic() < until {
        if !drain(&mut pipes, &mut buf, sink) && !pipes.is_empty() {
            let mut fds: Vec<PollFd<'_>> = pipes
                .iter()
                .map(|p| PollFd::new(&p.file, PollFlags::IN))
                .collect();
            let t = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 50_000_000,
            };
            let _ = poll(&mut fds, Some(&t));
        }
    }
    let status = status?;
    Ok(Ended {
        exit: status.code(),
        signal: status.signal(),
        timed_out,
        stopped,
        leftovers,
        took: monotonic().saturating_sub(start),
    })
}

fn end(pid: i32, group: Option<&Group>) {
    if let Some(g) = group {
        g.kill();
    }
    tree::kill(pid);
}

/// Ends what outlived the program and counts it.
fn leftovers(pid: i32, group: Option<&Group>) -> usize {
    let mut n = 0;
    if let Some(g) = group {
        n = g.members();
        if n > 0 {
            g.kill();
        }
    }
    if tree::any_child() || tree::group_alive(pid) {
        if let Some(p) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process_group(p, Signal::KILL);
        }
        n = n.max(tree::kill_orphans());
    }
    n
}

/// Runs a short helper program; gives whether it ended with 0 and the end of what it printed.
///
/// # Errors
/// A message when it cannot be started.
pub fn helper(program: &str, args: &[&str], timeout: Duration) -> Result<(bool, String), String> {
    let env: Vec<(String, String)> = ["PATH", "DBUS_SYSTEM_BUS_ADDRESS"]
        .iter()
        .filter_map(|k| Some(((*k).to_owned(), std::env::var(k).ok()?)))
        .collect();
    let mut text = Vec::new();
    let spec = Spec {
        program,
        args,
        env: &env,
        cwd: Utf8Path::new("/"),
        timeout,
        grace: Duration::from_secs(2),
        group: None,
        trace: false,
        stop: &Stop::default(),
    };
    let ended = run(&spec, &mut |_, b| {
        text.extend_from_slice(b);
        let over = text.len().saturating_sub(4096);
        text.drain(..over);
    })
    .map_err(|e| format!("cannot start {program}: {e}"))?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let text = if ended.timed_out {
        format!("no answer within {} s; {text}", timeout.as_secs())
    } else {
        text
    };
    Ok((ended.ok(), text))
}

/// Becomes another program; returns only why that failed.
pub fn replace(argv: &[String]) -> crate::error::StepsError {
    let (program, args) = match argv.split_first() {
        Some((p, a)) => (p.as_str(), a),
        None => ("", &[][..]),
    };
    let e = Command::new(program).args(args).exec();
    crate::error::StepsError::io(program, &e)
}

#[cfg(test)]
mod tests;
