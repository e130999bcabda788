//! The serial console as evidence: every line with its time, escape sequences stripped, also in `serial.log`.

use anyhow::Result;
use camino::Utf8Path;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One console line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Since power-on.
    pub at: Duration,
    /// Without escape sequences.
    pub text: String,
    /// Position in the log.
    pub index: usize,
}

#[derive(Debug, Default)]
struct Log {
    lines: Vec<Line>,
    partial: String,
    ended: bool,
}

/// The log of one power-on.
#[derive(Debug, Default)]
pub struct Serial {
    shared: Arc<(Mutex<Log>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Serial {
    /// Reads `sock` to its end on a thread of its own and appends to `file`.
    ///
    /// # Errors
    /// When the log file cannot be opened.
    pub fn open(mut sock: UnixStream, file: &Utf8Path) -> Result<Serial> {
        let mut out = fs_err::OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(out, "---- power on")?;
        let shared = Arc::new((Mutex::new(Log::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            let start = Instant::now();
            let mut strip = Stripper::default();
            let mut chunk = [0u8; 16384];
            loop {
                let n = sock.read(&mut chunk).unwrap_or(0);
                let at = start.elapsed();
                let (lock, bell) = &*theirs;
                let mut log = lock.lock().unwrap_or_else(PoisonError::into_inner);
                if n == 0 {
                    let rest = std::mem::take(&mut strip.line);
                    push(&mut log, &mut out, at, &rest);
                    log.ended = true;
                    bell.notify_all();
                    break;
                }
                for b in &chunk[..n] {
                    if let Some(line) = strip.feed(*b) {
                        push(&mut log, &mut out, at, &line);
                    }
                }
                log.partial = String::from_utf8_lossy(&strip.line).into_owned();
                bell.notify_all();
            }
        });
        Ok(Serial {
            shared,
            reader: Some(reader),
        })
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<Line> {
        self.shared
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lines
            .clone()
    }

    /// The last lines, with times, as one text.
    pub fn tail(&self, count: usize) -> String {
        let log = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for l in &log.lines[log.lines.len().saturating_sub(count)..] {
            out.push_str(&format!("{:8.2} {}\n", l.at.as_secs_f64(), l.text));
        }
        if !log.partial.is_empty() {
            out.push_str(&format!("         {}", log.partial));
        }
        out
    }

    /// The first line at or after `from` that matches.
    ///
    /// # Errors
    /// A text that says whether time ran out or QEMU ended.
    pub fn wait(
        &self,
        matches: impl Fn(&Line) -> bool,
        limit: Duration,
        from: usize,
    ) -> std::result::Result<Line, String> {
        let end = Instant::now() + limit;
        let (lock, bell) = &*self.shared;
        let mut log = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = from;
        loop {
            while let Some(line) = log.lines.get(next) {
                if matches(line) {
                    return Ok(line.clone());
                }
                next += 1;
            }
            if log.ended {
                return Err("QEMU ended".into());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("nothing within {} s", limit.as_secs()));
            }
            log = bell
                .wait_timeout(log, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(crate) fn join(&mut self) {
        if let Some(t) = self.reader.take() {
            let _ = t.join();
        }
    }
}

fn push(log: &mut Log, out: &mut impl Write, at: Duration, line: &[u8]) {
    let text = String::from_utf8_lossy(line).trim_end().to_owned();
    if text.is_empty() {
        return;
    }
    // Evidence is best effort: a full disk must not look like a broken guest.
    let _ = writeln!(out, "{:8.2} {text}", at.as_secs_f64());
    let index = log.lines.len();
    log.lines.push(Line { at, text, index });
}

/// Takes bytes, gives lines: control sequences are dropped, cursor movement to another row ends a line.
#[derive(Debug, Default)]
struct Stripper {
    line: Vec<u8>,
    state: Escape,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    No,
    Start,
    Inside,
}

impl Stripper {
    fn feed(&mut self, b: u8) -> Option<Vec<u8>> {
        match (self.state, b) {
            (Escape::No, 0x1b) => self.state = Escape::Start,
            (Escape::No, b'\n') => return Some(std::mem::take(&mut self.line)),
            (Escape::No, b'\t' | b' '..=0x7e | 0x80..) => {
                self.line.push(b);
                if self.line.len() >= 4096 {
                    return Some(std::mem::take(&mut self.line));
                }
            }
            (Escape::No, _) => {}
            (Escape::Start, b'[') => self.state = Escape::Inside,
            (Escape::Start, _) => self.state = Escape::No,
            (Escape::Inside, b'@'..=b'~') => {
                self.state = Escape::No;
                // Full-screen programs (firmware, GRUB's menu) address rows instead of ending lines.
                if matches!(b, b'H' | b'f') && !self.line.is_empty() {
                    return Some(std::mem::take(&mut self.line));
                }
            }
            (Escape::Inside, _) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut s = Stripper::default();
        bytes
            .iter()
            .filter_map(|b| s.feed(*b))
            .map(|l| String::from_utf8_lossy(&l).into_owned())
            .collect()
    }

    #[test]
    fn escapes_and_carriage_returns_vanish() {
        assert_eq!(
            lines(b"\x1b[2J\x1b[01;01H\x1b[0mslipway: slot=A\r\nplain\r\n"),
            ["slipway: slot=A", "plain"]
        );
    }

    #[test]
    fn rows_of_a_menu_are_lines() {
        assert_eq!(
            lines(b"\x1b[5;3Hdefault\x1b[6;3Hslot A\x1b[7;3H"),
            ["default", "slot A"]
        );
    }

    #[test]
    fn a_log_is_written_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = camino::Utf8PathBuf::from_path_buf(dir.path().join("log")).unwrap();
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let mut s = Serial::open(ours, &file).unwrap();
        guest.write_all(b"one\ntwo").unwrap();
        assert_eq!(
            s.wait(|l| l.text == "one", Duration::from_secs(5), 0)
                .unwrap()
                .index,
            0
        );
        assert!(
            s.wait(|l| l.text == "two", Duration::from_millis(50), 0)
                .unwrap_err()
                .contains("nothing within")
        );
        drop(guest);
        assert_eq!(
            s.wait(|l| l.text == "two", Duration::from_secs(5), 0)
                .unwrap()
                .index,
            1
        );
        assert_eq!(
            s.wait(|_| false, Duration::from_secs(5), 0).unwrap_err(),
            "QEMU ended"
        );
        s.join();
        let text = fs_err::read_to_string(file).unwrap();
        assert!(text.contains(" one\n") && text.contains(" two\n"), "{text}");
    }
}
