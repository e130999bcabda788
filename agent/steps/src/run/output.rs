//! What an attempt prints: kept bounded, with times, as valid UTF-8 and without secrets.

use crate::sys::atomic;
use camino::Utf8PathBuf;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// Bytes kept of the beginning, and as many of the end, of each stream.
const HALF: usize = 512 << 10;
/// Bytes of the end that the status shows.
pub(super) const TAIL: usize = 4096;
/// A longer line is cut into pieces.
const LINE: usize = 8192;

/// One stream of one attempt.
pub(super) struct Capture<'a> {
    path: Utf8PathBuf,
    file: Option<File>,
    masks: &'a [String],
    line: Vec<u8>,
    head: usize,
    rest: VecDeque<u8>,
    dropped: u64,
    last: VecDeque<u8>,
    broken: bool,
}

impl<'a> Capture<'a> {
    /// The file is made when the first byte comes.
    pub(super) fn new(path: Utf8PathBuf, masks: &'a [String]) -> Capture<'a> {
        Capture {
            path,
            file: None,
            masks,
            line: Vec::new(),
            head: 0,
            rest: VecDeque::new(),
            dropped: 0,
            last: VecDeque::new(),
            broken: false,
        }
    }

    /// Takes bytes that came `at` after the attempt's start; `each` gets whole lines while they are kept one by one.
    pub(super) fn feed(&mut self, data: &[u8], at: Duration, each: &mut dyn FnMut(&str)) {
        if self.head >= HALF {
            // A flood: only its end matters.
            push(&mut self.rest, data, HALF, &mut self.dropped);
            return;
        }
        for (i, b) in data.iter().enumerate() {
            if *b != b'\n' {
                self.line.push(*b);
            }
            if *b == b'\n' || self.line.len() >= LINE {
                self.flush(at, each);
                if self.head >= HALF {
                    push(
                        &mut self.rest,
                        data.get(i + 1..).unwrap_or_default(),
                        HALF,
                        &mut self.dropped,
                    );
                    return;
                }
            }
        }
    }

    fn clean(&self, raw: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(raw).into_owned();
        for m in self.masks {
            if text.contains(m.as_str()) {
                text = text.replace(m.as_str(), "***");
            }
        }
        text
    }

    fn flush(&mut self, at: Duration, each: &mut dyn FnMut(&str)) {
        let raw = std::mem::take(&mut self.line);
        let text = self.clean(&raw);
        each(&text);
        push(&mut self.last, text.as_bytes(), TAIL, &mut 0);
        push(&mut self.last, b"\n", TAIL, &mut 0);
        let stamped = format!("{:>9.3} {text}\n", at.as_secs_f64());
        self.head += stamped.len();
        self.write(stamped.as_bytes());
    }

    /// Output is worth less than the run: a full disk costs the file, not the step.
    fn write(&mut self, data: &[u8]) {
        if self.broken {
            return;
        }
        if self.file.is_none() {
            self.file = atomic::append(&self.path).ok();
        }
        self.broken = self.file.as_mut().is_none_or(|f| f.write_all(data).is_err());
    }

    /// Ends the stream; gives its last bytes.
    pub(super) fn finish(mut self, at: Duration, each: &mut dyn FnMut(&str)) -> String {
        if !self.line.is_empty() {
            self.flush(at, each);
        }
        if !self.rest.is_empty() {
            let raw: Vec<u8> = std::mem::take(&mut self.rest).into();
            let text = self.clean(&raw);
            if self.dropped > 0 {
                let gap = format!("--- {} bytes were left out here ---\n", self.dropped);
                self.write(gap.as_bytes());
            }
            self.write(text.as_bytes());
            push(&mut self.last, text.as_bytes(), TAIL, &mut 0);
        }
        let last: Vec<u8> = self.last.into();
        // The cut may lie within a character.
        let start = (0..4.min(last.len()))
            .find(|i| last.get(*i).is_some_and(|b| b & 0xc0 != 0x80))
            .unwrap_or(0);
        String::from_utf8_lossy(last.get(start..).unwrap_or_default()).into_owned()
    }
}

/// Appends and keeps only the last `most` bytes.
fn push(to: &mut VecDeque<u8>, data: &[u8], most: usize, dropped: &mut u64) {
    let skip = data.len().saturating_sub(most);
    let data = data.get(skip..).unwrap_or_default();
    let over = (to.len() + data.len()).saturating_sub(most);
    *dropped += (skip + over) as u64;
    to.drain(..over);
    to.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Place;

    fn capture(p: &Place, pieces: &[&[u8]], masks: &[String]) -> (String, String) {
        let path = p.root.join("out");
        let mut c = Capture::new(path.clone(), masks);
        for d in pieces {
            c.feed(d, Duration::from_millis(1500), &mut |_| {});
        }
        let last = c.finish(Duration::from_secs(2), &mut |_| {});
        (
            std::fs::read_to_string(path).unwrap_or_else(|e| e.to_string()),
            last,
        )
    }

    #[test]
    fn lines_get_times_secrets_are_masked_and_bytes_become_text() {
        let p = Place::new();
        let masks = ["s3cret".to_owned()];
        let (file, last) = capture(&p, &[b"a\nhas s3c", b"ret in it\n\xff\xfe", b"end"], &masks);
        assert!(file.starts_with("    1.500 a\n"), "{file}");
        assert!(file.contains("has *** in it") && !file.contains("s3cret"));
        assert_eq!(last, "a\nhas *** in it\n\u{fffd}\u{fffd}end\n");
    }

    #[test]
    fn of_a_flood_beginning_and_end_are_kept_and_the_gap_is_named() {
        let p = Place::new();
        let block = [b'x'; 65536];
        let mut pieces: Vec<&[u8]> = vec![b"first\n"];
        pieces.extend(std::iter::repeat_n(&block[..], 64));
        pieces.push(b"\nlast\n");
        let (file, last) = capture(&p, &pieces, &[]);
        assert!(file.len() < 3 * HALF, "{}", file.len());
        assert!(
            file.contains(" first\n") && file.ends_with("last\n") && file.contains("bytes were left out")
        );
        assert!(last.ends_with("last\n") && last.len() <= TAIL);
    }

    #[test]
    fn silence_makes_no_file() {
        let p = Place::new();
        let (file, last) = capture(&p, &[], &[]);
        assert!(file.contains("No such file") && last.is_empty());
    }
}
