//! The one place that starts programs: argument vectors only, a limit on every run, a process group of its own that dies
//! with it, and the tail of what it printed.
#![allow(clippy::disallowed_methods)] // This is the home of Command, and it polls a child against a monotonic limit.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of output that are kept.
const TAIL: usize = 4096;

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit status; `None` = killed by a signal or by the limit.
    pub exit: Option<i32>,
    /// The limit was reached.
    pub timed_out: bool,
    /// Tail of standard output and standard error, in the order they came.
    pub output: String,
}

impl Ended {
    /// Whether it exited with 0.
    pub fn ok(&self) -> bool {
        self.exit == Some(0)
    }
}

/// Runs a program with arguments; its whole process group is killed at `limit` and once it has ended.
///
/// # Errors
/// A message when it cannot be started.
pub fn run(program: &str, args: &[&str], limit: Duration) -> Result<Ended, String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .process_group(0)
        .spawn()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    let (done, ended) = std::sync::mpsc::channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>),
        child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>),
    ];
    let mut readers = 0;
    for pipe in pipes.into_iter().flatten() {
        let (tail, done) = (tail.clone(), done.clone());
        readers += 1;
        std::thread::spawn(move || {
            keep_tail(pipe, &tail);
            let _ = done.send(());
        });
    }
    let start = Instant::now();
    let mut timed_out = false;
    let status = loop {
        match child.try_wait() {
            Ok(Some(s)) => break Some(s),
            Ok(None) if start.elapsed() >= limit => {
                timed_out = true;
                kill_group(child.id());
                break child.wait().ok();
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(format!("cannot wait for {program}: {e}")),
        }
    };
    // What it left behind must not outlive it, nor keep the pipes open.
    kill_group(child.id());
    for _ in 0..readers {
        let _ = ended.recv_timeout(Duration::from_secs(1));
    }
    let bytes: Vec<u8> = tail
        .lock()
        .map(|t| t.iter().copied().collect())
        .unwrap_or_default();
    Ok(Ended {
        exit: if timed_out {
            None
        } else {
            status.and_then(|s| s.code())
        },
        timed_out,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

fn keep_tail(mut pipe: Box<dyn Read + Send>, tail: &Mutex<VecDeque<u8>>) {
    let mut buf = [0u8; 1024];
    while let Ok(n) = pipe.read(&mut buf) {
        let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else {
            return;
        };
        if let Ok(mut t) = tail.lock() {
            t.extend(part);
            let over = t.len().saturating_sub(TAIL);
            t.drain(..over);
        }
    }
}

fn kill_group(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_and_output_come_back() {
        let e = run(
            "/bin/sh",
            &["-c", "echo out; echo err >&2; exit 75"],
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!(e.exit, Some(75));
        assert!(e.output.contains("out") && e.output.contains("err"));
        assert!(run("/nonexistent/x", &[], Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_group_that_hangs_is_killed_at_the_limit() {
        let start = Instant::now();
        let e = run(
            "/bin/sh",
            &["-c", "sleep 60 & sleep 60"],
            Duration::from_millis(200),
        )
        .unwrap();
        assert!(e.timed_out && e.exit.is_none());
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_background_child_neither_holds_us_nor_survives() {
        let start = Instant::now();
        let e = run(
            "/bin/sh",
            &["-c", "sleep 60 & echo done"],
            Duration::from_secs(30),
        )
        .unwrap();
        assert!(e.ok() && e.output.contains("done"));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn only_the_tail_is_kept() {
        let e = run(
            "/bin/sh",
            &["-c", "head -c 100000 /dev/zero | tr '\\0' x; echo END"],
            Duration::from_secs(20),
        )
        .unwrap();
        assert!(e.output.len() <= TAIL && e.output.ends_with("END\n"));
    }
}
