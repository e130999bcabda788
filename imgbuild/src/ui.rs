//! What the person at the terminal, or the log, sees. All of it on standard error.

use imgbuild::error::BuildError;
use imgbuild::progress::{Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};
use os_proto::terminal::plain;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

/// A bar on a terminal, plain lines elsewhere, only warnings when `quiet`.
pub(crate) fn progress(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Quiet)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bars {
            bar: Mutex::new(None),
        })
    } else {
        Box::new(Lines)
    }
}

/// Prints a line to standard error; a closed standard error is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(line));
}

/// Prints text to standard output; a reader that has seen enough is no reason to fail.
///
/// # Errors
/// IO028 for a full disk, IO001 otherwise: whoever asked for the text has not got it.
pub(crate) fn print(text: &str) -> Result<(), BuildError> {
    let mut out = std::io::stdout();
    printed(out.write_all(plain(text).as_bytes()).and_then(|()| out.flush()))
}

/// What became of a write to standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn printed(result: std::io::Result<()>) -> Result<(), BuildError> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(BuildError::io("writing to standard output", &e))
        }
        _ => Ok(()),
    }
}

fn warning_line(code: &str, message: &str) -> String {
    format!("warning[{code}] {message}")
}

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, name: &str) {
        Silent.stage(name);
    }
    fn step(&self, done: u64, total: u64, what: &str) {
        Silent.step(done, total, what);
    }
    fn warning(&self, code: &str, message: &str) {
        say(&warning_line(code, message));
    }
}

struct Lines;

impl Progress for Lines {
    fn stage(&self, name: &str) {
        say(&format!("imgbuild: {name}"));
    }
    fn step(&self, _done: u64, _total: u64, _what: &str) {}
    fn warning(&self, code: &str, message: &str) {
        say(&warning_line(code, message));
    }
}

struct Bars {
    bar: Mutex<Option<ProgressBar>>,
}

impl Bars {
    fn with(&self, f: impl FnOnce(&mut Option<ProgressBar>)) {
        if let Ok(mut bar) = self.bar.lock() {
            f(&mut bar);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress for Bars {
    fn stage(&self, name: &str) {
        let next = ProgressBar::new_spinner()
            .with_style(style("{spinner} {prefix} [{elapsed}] {msg}"))
            .with_prefix(name.to_owned());
        next.enable_steady_tick(Duration::from_millis(120));
        self.with(|bar| {
            if let Some(old) = bar.replace(next) {
                old.finish();
            }
        });
    }

    fn step(&self, done: u64, total: u64, what: &str) {
        self.with(|bar| {
            let Some(bar) = bar else { return };
            if total > 0 && bar.length() != Some(total) {
                bar.set_length(total);
                bar.set_style(style("{spinner} {prefix} [{bar:24}] {percent:>3} % {msg}"));
            }
            bar.set_position(done);
            bar.set_message(what.to_owned());
        });
    }

    fn warning(&self, code: &str, message: &str) {
        let line = warning_line(code, message);
        self.with(|bar| match bar {
            Some(bar) => bar.suspend(|| say(&line)),
            None => say(&line),
        });
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.with(|bar| {
            if let Some(bar) = bar.take() {
                bar.finish();
            }
        });
    }
}
