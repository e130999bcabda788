//! A download as a reader, which remembers what was looked at and can hash what passes on a thread of its own.

use super::End;
use super::tap::Tap;
use crate::error::Result;
use crate::ports::{Download, Object};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

pub(super) struct Stream {
    download: Box<dyn Download>,
    queue: VecDeque<Bytes>,
    fetched: u64,
    passed: u64,
    ended: bool,
    tap: Option<Tap>,
}

impl Stream {
    pub(super) fn new(download: Box<dyn Download>) -> Stream {
        Stream {
            download,
            queue: VecDeque::new(),
            fetched: 0,
            passed: 0,
            ended: false,
            tap: None,
        }
    }

    pub(super) fn total(&self) -> Option<u64> {
        self.download.total()
    }

    pub(super) fn fetched(&self) -> u64 {
        self.fetched
    }

    /// How far in the file it is: what was fetched and what was passed over.
    pub(super) fn position(&self) -> u64 {
        self.fetched + self.passed
    }

    pub(super) fn object(&self) -> Option<Object> {
        self.download.object()
    }

    /// Passes over `n` bytes; what the source cannot pass over is fetched and dropped.
    pub(super) fn skip(&mut self, mut n: u64) -> Result<()> {
        while n > 0 {
            if let Some(front) = self.queue.front() {
                let here = front.len().min(usize::try_from(n).unwrap_or(usize::MAX));
                self.consume(here);
                n -= here as u64;
                continue;
            }
            let passed = self.download.skip(n)?;
            self.passed += passed;
            n -= passed.min(n);
            if n > 0 {
                if self.ended {
                    break;
                }
                self.pull()?;
            }
        }
        Ok(())
    }

    /// The first `n` bytes, or all when there are fewer; they are read again later.
    pub(super) fn peek(&mut self, n: usize) -> Result<Vec<u8>> {
        while !self.ended && self.queue.iter().map(Bytes::len).sum::<usize>() < n {
            self.pull()?;
        }
        let mut head: Vec<u8> = self
            .queue
            .iter()
            .flat_map(|b| b.iter().copied())
            .take(n)
            .collect();
        head.shrink_to_fit();
        Ok(head)
    }

    /// Hashes everything from the first byte on. Called before anything was consumed.
    pub(super) fn tap(&mut self) {
        let mut tap = Tap::start();
        for b in &self.queue {
            tap.feed(b.clone());
        }
        self.tap = Some(tap);
    }

    fn pull(&mut self) -> Result<()> {
        match self.download.next()? {
            Some(b) => {
                self.fetched += b.len() as u64;
                if let Some(t) = &mut self.tap {
                    t.feed(b.clone());
                }
                if !b.is_empty() {
                    self.queue.push_back(b);
                }
            }
            None => self.ended = true,
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<End> {
        Ok(End {
            fetched: self.fetched,
            digest: self.tap.map(Tap::finish).transpose()?,
        })
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.queue.is_empty() && !self.ended {
            self.pull().map_err(io::Error::other)?;
        }
        Ok(self.queue.front().map_or(&[], |b| b.as_ref()))
    }

    fn consume(&mut self, n: usize) {
        if let Some(front) = self.queue.front_mut() {
            bytes::Buf::advance(front, n.min(front.len()));
            if front.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let have = self.fill_buf()?;
        let n = have.len().min(buf.len());
        if let (Some(d), Some(s)) = (buf.get_mut(..n), have.get(..n)) {
            d.copy_from_slice(s);
        }
        self.consume(n);
        Ok(n)
    }
}
