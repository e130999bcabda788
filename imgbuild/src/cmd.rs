//! The one place where the builder starts programs.
//!
//! Programs get an argument vector, never a shell text. Their stdout is returned, the tail of their stderr is kept and quoted
//! in errors, and they die with the builder. With [`Cmd::chroot`] a program runs inside the tree that is being built.

#![allow(clippy::disallowed_methods)] // the home of Command::new

pub mod chroot;
pub mod sandbox;
mod tools;

pub use tools::{missing_tools, need_tools};

use crate::epoch::source_date_epoch;
use crate::error::{BuildError, Kind, Result};
use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Where programs are looked for inside a tree.
const TREE_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of stderr that are kept.
const STDERR_TAIL: usize = 64 << 10;
/// Bytes of stdout that are kept; a program that writes more than this is not one of ours.
const STDOUT_MAX: usize = 256 << 20;
/// Limit for a program that has none of its own: nothing may stand still for ever.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a pipe may stay open after its program has ended (a child in the background can hold it).
const DRAIN: Duration = Duration::from_millis(500);

/// What a program wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// The last 64 KiB of stderr.
    pub stderr_tail: String,
}

impl Output {
    /// stdout as text, invalid bytes replaced.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Which stream a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

type LineFn<'a> = Box<dyn FnMut(Stream, &str) + 'a>;

/// A program to run.
pub struct Cmd<'a> {
    program: String,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
    cwd: Option<Utf8PathBuf>,
    chroot: Option<Utf8PathBuf>,
    stdin: Option<Vec<u8>>,
    timeout: Duration,
    no_network: bool,
    on_line: Option<LineFn<'a>>,
}

impl<'a> Cmd<'a> {
    /// A program by name (found in `PATH`, inside the tree with [`Cmd::chroot`]) or path.
    pub fn new(program: impl Into<String>) -> Self {
        Cmd {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            chroot: None,
            stdin: None,
            timeout: DEFAULT_TIMEOUT,
            no_network: false,
            on_line: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I, S>(mut self, args: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable. `LC_ALL=C.UTF-8`, `TZ=UTC` and `SOURCE_DATE_EPOCH` are always set; `PATH`, `HOME` and the proxy
    /// variables are inherited; nothing else is.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Working directory.
    #[must_use]
    pub fn cwd(mut self, dir: &Utf8Path) -> Self {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Runs inside `root` (needs the sandbox; see [`chroot::Mounts`] for its /dev, /proc …). No network there.
    #[must_use]
    pub fn chroot(mut self, root: &Utf8Path) -> Self {
        self.chroot = Some(root.to_owned());
        self.no_network = true;
        self
    }

    /// Takes the network away (needs root; ignored for ordinary users).
    #[must_use]
    pub fn no_network(mut self) -> Self {
        self.no_network = true;
        self
    }

    /// Bytes for standard input; without it standard input is empty.
    #[must_use]
    pub fn stdin_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Ends the program with an error after this time, instead of after an hour.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Calls `f` for every line of either stream as it comes.
    #[must_use]
    pub fn on_line(mut self, f: impl FnMut(Stream, &str) + 'a) -> Self {
        self.on_line = Some(Box::new(f));
        self
    }

    /// Runs the program; anything but exit status 0 is an error that quotes the end of stderr.
    pub fn run(self) -> Result<Output> {
        let label = self.label();
        let (status, output) = self.status()?;
        if status.success() {
            return Ok(output);
        }
        Err(BuildError::new(
            Kind::Build,
            "CMD001",
            format!(
                "{label}: {}{}",
                describe(status),
                quote_tail(&output.stderr_tail, &output.stdout, 20)
            ),
        ))
    }

    /// Runs the program and returns its status, whatever it is.
    pub fn status(mut self) -> Result<(ExitStatus, Output)> {
        let mut child = self.spawn()?;
        let pid = Pid::from_child(&child);
        let (tx, rx) = mpsc::channel();
        let mut pipes = 0;
        if let Some(out) = child.stdout.take() {
            read_pipe(out, Stream::Out, tx.clone());
            pipes += 1;
        }
        if let Some(err) = child.stderr.take() {
            read_pipe(err, Stream::Err, tx.clone());
            pipes += 1;
        }
        if let (Some(mut pipe), Some(bytes)) = (child.stdin.take(), self.stdin.take()) {
            // A program may end without reading all of it: that is its own business, its status tells.
            std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let (stop_timer, timer) = mpsc::channel::<()>();
        let (limit, late) = (self.timeout, tx.clone());
        std::thread::spawn(move || {
            if timer.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                drop(late.send(Event::TimedOut));
            }
        });
        std::thread::spawn(move || drop(tx.send(Event::Ended(child.wait()))));
        let result = self.collect(&rx, pid, pipes);
        drop(stop_timer);
        result
    }

    fn collect(
        &mut self,
        rx: &mpsc::Receiver<Event>,
        pid: Pid,
        mut pipes: usize,
    ) -> Result<(ExitStatus, Output)> {
        let mut output = Output::default();
        let mut tail = VecDeque::new();
        let mut lines = [LineBuffer::default(), LineBuffer::default()];
        let mut ended: Option<ExitStatus> = None;
        loop {
            let event = match (ended, pipes) {
                (Some(_), 0) => break,
                (Some(_), _) => match rx.recv_timeout(DRAIN) {
                    Ok(event) => event,
                    Err(_) => break,
                },
                (None, _) => match rx.recv() {
                    Ok(event) => event,
                    Err(_) => return Err(self.broken("lost track of the program")),
                },
            };
            match event {
                Event::Data(stream, bytes) => {
                    if let Some(f) = self.on_line.as_mut() {
                        lines[stream as usize].push(&bytes, |line| f(stream, line));
                    }
                    match stream {
                        Stream::Out if output.stdout.len() + bytes.len() > STDOUT_MAX => {
                            let _ = rustix::process::kill_process(pid, Signal::KILL);
                            return Err(self.broken("wrote more than 256 MiB to stdout"));
                        }
                        Stream::Out => output.stdout.extend_from_slice(&bytes),
                        Stream::Err => {
                            tail.extend(bytes);
                            let excess = tail.len().saturating_sub(STDERR_TAIL);
                            tail.drain(..excess);
                        }
                    }
                }
                Event::Closed => pipes -= 1,
                Event::TimedOut => {
                    if ended.is_none() {
                        let _ = rustix::process::kill_process(pid, Signal::KILL);
                        let limit = self.timeout.as_secs();
                        return Err(self.broken(&format!("did not end within {limit} s")));
                    }
                }
                Event::Ended(Ok(status)) => ended = Some(status),
                Event::Ended(Err(e)) => return Err(self.broken(&format!("cannot wait for it: {e}"))),
            }
        }
        if let Some(f) = self.on_line.as_mut() {
            for stream in [Stream::Out, Stream::Err] {
                lines[stream as usize].finish(|line| f(stream, line));
            }
        }
        output.stderr_tail = String::from_utf8_lossy(&Vec::from(tail)).into_owned();
        match ended {
            Some(status) => Ok((status, output)),
            None => Err(self.broken("lost track of the program")),
        }
    }

    fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear();
        for key in INHERITED {
            if let Some(value) = std::env::var_os(key) {
                command.env(key, value);
            }
        }
        command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.env("SOURCE_DATE_EPOCH", source_date_epoch().to_string());
        if self.chroot.is_some() {
            command.env("PATH", TREE_PATH).env("HOME", "/");
        }
        for (key, value) in &self.env {
            command.env(key, value);
        }
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        command
            .stdin(if self.stdin.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(root) = &self.chroot
            && !sandbox::inside()
        {
            return Err(BuildError::new(
                Kind::Bug,
                "BUG001",
                format!("{} was to run in {root} outside of the sandbox", self.program),
            ));
        }
        let root = self.chroot.clone();
        let no_network = self.no_network && rustix::process::geteuid().is_root();
        // SAFETY: between fork and exec only async-signal-safe system calls are made; nothing allocates or locks.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if no_network {
                    sandbox::leave_network();
                }
                if let Some(root) = &root {
                    rustix::process::chroot(root.as_str())?;
                    rustix::process::chdir("/")?;
                }
                Ok(())
            });
        }
        command.spawn().map_err(|e| self.cannot_start(&e))
    }

    fn label(&self) -> String {
        match &self.chroot {
            Some(_) => format!("{} (in the image)", self.program),
            None => self.program.clone(),
        }
    }

    fn broken(&self, what: &str) -> BuildError {
        BuildError::new(Kind::Build, "CMD002", format!("{}: {what}", self.label()))
    }

    fn cannot_start(&self, e: &std::io::Error) -> BuildError {
        if e.kind() != std::io::ErrorKind::NotFound {
            return BuildError::new(
                Kind::Build,
                "CMD003",
                format!("cannot start {}: {e}", self.label()),
            );
        }
        if self.chroot.is_some() {
            let hint = tools::package_in_image(&self.program).map_or_else(String::new, |p| {
                format!("; add the package {p} to [rootfs] packages")
            });
            return BuildError::new(
                Kind::Build,
                "IMG005",
                format!("program {:?} is not in the image{hint}", self.program),
            );
        }
        missing_tools(&[&self.program])
    }
}

/// Variables that programs get from our own environment.
const INHERITED: [&str; 8] = [
    "PATH",
    "HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

enum Event {
    Data(Stream, Vec<u8>),
    Closed,
    Ended(std::io::Result<ExitStatus>),
    TimedOut,
}

fn read_pipe(mut pipe: impl Read + Send + 'static, stream: Stream, tx: mpsc::Sender<Event>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    if tx.send(Event::Data(stream, buffer[..n].to_vec())).is_err() {
                        return;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        drop(tx.send(Event::Closed));
    });
}

/// Cuts a byte stream into lines (at `\n` and `\r`).
#[derive(Default)]
struct LineBuffer(Vec<u8>);

impl LineBuffer {
    fn push(&mut self, bytes: &[u8], mut f: impl FnMut(&str)) {
        for &b in bytes {
            if b == b'\n' || b == b'\r' {
                self.finish(&mut f);
            } else {
                self.0.push(b);
            }
        }
    }

    fn finish(&mut self, mut f: impl FnMut(&str)) {
        if !self.0.is_empty() {
            f(&String::from_utf8_lossy(&self.0));
            self.0.clear();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended abnormally".to_owned(),
    }
}

/// The last `lines` lines of stderr (stdout where stderr is empty), indented, with a leading newline; empty for silence.
pub fn quote_tail(stderr: &str, stdout: &[u8], lines: usize) -> String {
    let fallback = String::from_utf8_lossy(stdout);
    let text = if stderr.trim().is_empty() {
        &fallback
    } else {
        stderr
    };
    let all: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|l| format!("\n  {l}")).collect()
}

#[cfg(test)]
mod tests;
