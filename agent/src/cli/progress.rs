//! Progress for people: one line that is rewritten on a terminal, few plain lines elsewhere, nothing with --json.

use os_agent::ports::Report;
use os_proto::terminal::plain;
use os_proto::v1;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// Where progress goes.
pub(crate) struct Progress {
    how: How,
    last: Mutex<Last>,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Line,
    Plain,
    Quiet,
}

#[derive(Default)]
struct Last {
    step: String,
    waiting: String,
    tenth: u64,
    width: usize,
    total: u64,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Progress {
        let how = if json {
            How::Quiet
        } else if std::io::stderr().is_terminal() {
            How::Line
        } else {
            How::Plain
        };
        Progress {
            how,
            last: Mutex::default(),
        }
    }

    /// Shows how far the work is.
    pub(crate) fn show(&self, p: &v1::Progress) {
        if self.how == How::Quiet || (p.step.is_empty() && p.waiting_for.is_empty()) {
            return;
        }
        let mut p = p.clone();
        if p.step.is_empty() {
            // Before the first byte there is no step yet, but a server that does not answer is waited for.
            "fetch".clone_into(&mut p.step);
        }
        let p = &p;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let percent = (p.done_bytes * 100).checked_div(p.total_bytes);
        let text = describe(p, percent);
        if self.how == How::Line {
            let width = text.chars().count();
            let pad = " ".repeat(last.width.saturating_sub(width));
            eprint!("\r{}{pad}", plain(&text));
            let _ = std::io::stderr().flush();
            last.width = width;
            return;
        }
        let tenth = percent.unwrap_or(0) / 10;
        if p.step != last.step
            || tenth > last.tenth
            || (p.waiting_for != last.waiting && !p.waiting_for.is_empty())
        {
            eprintln!("{}", plain(&text));
            last.tenth = tenth;
        }
        last.step.clone_from(&p.step);
        last.waiting.clone_from(&p.waiting_for);
        if tenth < last.tenth {
            last.tenth = tenth;
        }
    }

    /// Ends the line.
    pub(crate) fn end(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.how == How::Line && last.width > 0 {
            eprintln!();
            last.width = 0;
        }
    }
}

/// A step in words.
pub(super) fn describe(p: &v1::Progress, percent: Option<u64>) -> String {
    if !p.waiting_for.is_empty() {
        return format!("{}: waiting: {}", p.step, p.waiting_for);
    }
    let mut text = format!("{}: {}", p.step, mib(p.done_bytes));
    if let Some(n) = percent {
        text = format!("{text} of {} ({n} %)", mib(p.total_bytes));
    }
    if p.saved_bytes > 0 {
        text = format!("{text}, {} of it stand there already", mib(p.saved_bytes));
    }
    if p.rate_bytes_per_sec > 0 {
        text = format!("{text}, {}/s", mib(p.rate_bytes_per_sec));
    }
    if p.eta_secs > 0 {
        text = format!("{text}, {} s left", p.eta_secs);
    }
    text
}

/// Bytes for people.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

impl Report for Progress {
    fn step(&self, name: &'static str, total_bytes: Option<u64>) {
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.total = total_bytes.unwrap_or(0);
        }
        self.show(&v1::Progress {
            step: name.to_owned(),
            total_bytes: total_bytes.unwrap_or(0),
            ..Default::default()
        });
    }

    fn done(&self, bytes: u64) {
        let (step, total) = {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            (last.step.clone(), last.total)
        };
        let step = if step.is_empty() {
            "read-back".to_owned()
        } else {
            step
        };
        self.show(&v1::Progress {
            step,
            done_bytes: bytes,
            total_bytes: total,
            ..Default::default()
        });
    }

    fn waiting(&self, _: Option<String>) {}
}
