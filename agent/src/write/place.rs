//! Puts chunks in place: what stands there already is not written again, and the first block comes last.

use super::resume::Keeper;
use super::{BLOCK, CHUNK, Chunk};
use crate::error::Result;
use crate::ports::{Report, SlotDevice};
use crate::sys::buf::{self, AlignedBuf};

/// Bytes at the start of the slot that are zeroed before the first real write: the boot block, the superblock and what
/// follows, so that a half-written slot is never mountable.
pub(super) const HEAD: usize = 64 << 10;
/// After so many differing chunks in a row only every sixteenth is compared: the image is another one.
const DIFFERING: u32 = 32;

pub(super) struct Placer<'a> {
    device: &'a mut dyn SlotDevice,
    scratch: AlignedBuf,
    first: Option<Chunk>,
    head_zeroed: bool,
    differing: u32,
    since_flush: u64,
    flush_every: u64,
    written: u64,
    saved: u64,
    journal: Option<Keeper>,
    report: &'a dyn Report,
}

impl<'a> Placer<'a> {
    /// `kept` bytes of the image were found on the slot.
    pub(super) fn new(
        device: &'a mut dyn SlotDevice,
        flush_every: u64,
        journal: Option<Keeper>,
        kept: u64,
        report: &'a dyn Report,
    ) -> Self {
        report.wrote(0, kept);
        Placer {
            device,
            scratch: AlignedBuf::zeroed(CHUNK),
            first: None,
            head_zeroed: false,
            differing: 0,
            since_flush: 0,
            flush_every,
            written: 0,
            saved: kept,
            journal,
            report,
        }
    }

    /// Bytes written and bytes that needed no writing.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written, self.saved)
    }

    /// Puts one chunk in place and gives it back; the first one is kept until [`Placer::finish`].
    pub(super) fn put(&mut self, chunk: Chunk) -> Result<Option<Chunk>> {
        if chunk.index == 0 {
            self.first = Some(chunk);
            return Ok(None);
        }
        let compare = chunk.zero || self.differing < DIFFERING || chunk.index.is_multiple_of(16);
        if compare && self.stands_there(&chunk)? {
            self.differing = 0;
            self.keep(chunk.blocks().len());
            self.note(&chunk)?;
            return Ok(Some(chunk));
        }
        // Zeros say nothing about whether this image was here before.
        if !chunk.zero {
            self.differing = self.differing.saturating_add(1);
        }
        self.zero_head(HEAD)?;
        self.write(chunk.offset(), chunk.blocks())?;
        self.note(&chunk)?;
        Ok(Some(chunk))
    }

    /// A chunk lies on the slot; its record follows the next flush.
    fn note(&mut self, chunk: &Chunk) -> Result<()> {
        let due = self
            .journal
            .as_mut()
            .is_some_and(|j| j.note(chunk.index, chunk.sum, chunk.blocks().len()));
        if due { self.flush() } else { Ok(()) }
    }

    /// Makes everything so far durable and known, where somebody keeps a journal.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        match &self.journal {
            Some(j) if j.waits() => self.flush(),
            _ => Ok(()),
        }
    }

    /// Writes the first chunk, its first block last, each step durable before the next.
    pub(super) fn finish(&mut self) -> Result<()> {
        let Some(first) = self.first.take() else {
            return Ok(());
        };
        let blocks = first.blocks();
        if !self.head_zeroed && self.stands_there(&first)? {
            self.keep(blocks.len());
            // Perhaps of an attempt that was cut short before its flush.
            return self.flush();
        }
        self.zero_head(blocks.len())?;
        let (block, rest) = blocks.split_at(BLOCK.min(blocks.len()));
        if !rest.is_empty() {
            self.write(BLOCK as u64, rest)?;
        }
        self.flush()?;
        self.write(0, block)?;
        self.flush()
    }

    /// So many bytes stand there already.
    fn keep(&mut self, len: usize) {
        self.saved += len as u64;
        self.report.wrote(self.written, self.saved);
    }

    fn stands_there(&mut self, chunk: &Chunk) -> Result<bool> {
        let n = chunk.blocks().len();
        let Some(there) = self.scratch.get_mut(..n) else {
            return Ok(false);
        };
        self.device.read_at(chunk.offset(), there)?;
        Ok(if chunk.zero {
            buf::is_zero(there)
        } else {
            there == chunk.blocks()
        })
    }

    fn zero_head(&mut self, image: usize) -> Result<()> {
        if self.head_zeroed {
            return Ok(());
        }
        let mut head = AlignedBuf::zeroed(image.min(HEAD));
        self.device.read_at(0, &mut head)?;
        if !buf::is_zero(&head) {
            head.fill(0);
            self.write(0, &head)?;
        }
        // Also when an earlier attempt zeroed it: that write may not be durable yet.
        self.flush()?;
        self.head_zeroed = true;
        Ok(())
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.device.write_at(at, data)?;
        self.written += data.len() as u64;
        self.report.wrote(self.written, self.saved);
        self.since_flush += data.len() as u64;
        if self.since_flush >= self.flush_every {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.since_flush = 0;
        self.device.flush()?;
        if let Some(j) = &mut self.journal {
            j.flushed();
        }
        Ok(())
    }
}
