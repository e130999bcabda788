//! Starting programs: argument vectors only, the end of stderr in every failure.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Exit status; 128 + n for signal n.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A command with C locale and no standard input.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut c = Command::new(program);
    c.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8");
    c
}

/// The command line for messages.
fn shown(c: &Command) -> String {
    std::iter::once(c.get_program())
        .chain(c.get_args())
        .map(|s| s.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Largest resident size so far in KiB, from `/proc/PID/status` (`VmHWM`, proc(5)); none for a process that has ended.
pub fn peak_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn ended(o: &Output) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    Ended {
        code: o
            .status
            .code()
            .unwrap_or_else(|| 128 + o.status.signal().unwrap_or(0)),
        out: String::from_utf8_lossy(&o.stdout).into_owned(),
        err: String::from_utf8_lossy(&o.stderr).into_owned(),
    }
}

/// Runs to the end, whatever the status.
///
/// # Errors
/// When the program cannot be started.
pub fn status(c: &mut Command) -> Result<Ended> {
    let o = c
        .output()
        .with_context(|| format!("cannot start `{}`", shown(c)))?;
    Ok(ended(&o))
}

/// Runs to the end and gives standard output.
///
/// # Errors
/// When it cannot be started or ends with another status than 0; the message holds the end of its stderr.
pub fn run(c: &mut Command) -> Result<String> {
    let e = status(c)?;
    if e.code != 0 {
        bail!(
            "`{}` ended with status {}:\n{}\n{}",
            shown(c),
            e.code,
            tail(&e.out, 10),
            tail(&e.err, 30)
        );
    }
    Ok(e.out)
}

/// Shorthand for [`run`] with an argument vector.
///
/// # Errors
/// As [`run`].
pub fn sh<S: AsRef<OsStr>>(argv: &[S]) -> Result<String> {
    let (program, args) = argv.split_first().context("empty command")?;
    run(command(program).args(args))
}

/// Whether a program is in PATH or the administrator's directories.
pub fn exists(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':')
        .any(|d| std::path::Path::new(d).join(program).is_file())
}
