//! Takes up an image that is not packed where an earlier attempt ended, and keeps the journal of this one.
//!
//! Order per chunk: written to the slot, device flushed, then journalled. A journal that cannot be kept costs a longer download
//! after the next cut, never the installation.

use super::journal::{self, HEADER, Header, Journal, Key, RECORD};
use super::{BLOCK, CHUNK, Chunk};
use crate::error::Result;
use crate::payload::Payload;
use crate::ports::{Cancel, JournalStore, Object, Report, SlotDevice};
use crate::sys::buf::AlignedBuf;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Between two checkpoints lie at least this many bytes …
const OFTEN: u64 = 4 << 20;
/// … at most this many …
const SELDOM: u64 = 64 << 20;
/// … and otherwise this part of the image: what a cut costs stays below one percent, and so does the number of flushes.
const PARTS: u64 = 128;

/// What an earlier attempt learnt of the object, for the first request; `None` = begin anew.
pub fn known(store: &mut dyn JournalStore, key: &Key) -> Option<Object> {
    let j = load(store, key)?;
    if j.sums.is_empty() {
        return None;
    }
    let same_origin = j.header.key.origin == key.origin;
    Some(Object {
        total: j.header.object.total,
        etag: j.header.object.etag.filter(|_| same_origin),
        modified: j.header.object.modified.filter(|_| same_origin),
    })
}

fn load(store: &mut dyn JournalStore, key: &Key) -> Option<Journal> {
    let bytes = store
        .read()
        .inspect_err(|e| tracing::warn!(%e, "the journal cannot be read"))
        .ok()?;
    let j = journal::parse(&bytes)?;
    let k = &j.header.key;
    ((k.checksum, k.part_uuid, k.slot_size) == (key.checksum, key.part_uuid, key.slot_size)).then_some(j)
}

/// The journal of a running installation.
pub(super) struct Keeper {
    store: Box<dyn JournalStore>,
    seed: u32,
    at: u64,
    every: u64,
    /// Records of chunks that were written and not yet flushed.
    pending: Vec<u8>,
    unflushed: u64,
    broken: bool,
}

impl Keeper {
    /// Prepares the journal for `payload`, and yields the sums of what the slot should hold already.
    ///
    /// # Errors
    /// `StateWriteFailed` when a journal that would be wrong from now on can neither be replaced nor removed.
    pub(super) fn begin(
        mut store: Box<dyn JournalStore>,
        key: &Key,
        payload: &Payload,
    ) -> Result<(Option<Keeper>, Vec<u32>)> {
        let object = payload
            .object()
            .filter(|o| payload.is_plain() && o.total > CHUNK as u64);
        let Some(object) = object else {
            store.clear()?;
            return Ok((None, Vec::new()));
        };
        let every = (object.total / PARTS).clamp(OFTEN, SELDOM);
        let keeper = |store, seed, sums: usize| Keeper {
            store,
            seed,
            at: (HEADER + sums * RECORD) as u64,
            every,
            pending: Vec::new(),
            unflushed: 0,
            broken: false,
        };
        if let Some(j) = load(&mut *store, key)
            && j.header.object.total == object.total
        {
            let k = keeper(store, j.seed, j.sums.len());
            return Ok((Some(k), j.sums));
        }
        let room = object.total.div_ceil(CHUNK as u64) * RECORD as u64;
        let (header, seed) = Header { key: *key, object }.encode();
        if let Err(e) = store.reset(&header, room) {
            tracing::warn!(%e, "no journal: a cut would begin this download anew");
            store.clear()?;
            return Ok((None, Vec::new()));
        }
        Ok((Some(keeper(store, seed, 0)), Vec::new()))
    }

    /// Goes on after `n` chunks that the slot was found to hold.
    pub(super) fn at(&mut self, n: usize) {
        self.at = (HEADER + n * RECORD) as u64;
    }

    /// A chunk lies on the slot; says whether a flush is due.
    pub(super) fn note(&mut self, index: u64, sum: u32, len: usize) -> bool {
        self.pending.extend(journal::record(self.seed, index, sum));
        self.unflushed += len as u64;
        self.unflushed >= self.every
    }

    /// Whether a flush would make anything known.
    pub(super) fn waits(&self) -> bool {
        !self.broken && !self.pending.is_empty()
    }

    /// Everything noted was flushed.
    pub(super) fn flushed(&mut self) {
        self.unflushed = 0;
        if !self.waits() {
            self.pending.clear();
            return;
        }
        match self.store.append(self.at, &self.pending) {
            Ok(()) => self.at += self.pending.len() as u64,
            Err(e) => {
                tracing::warn!(%e, "the journal ends here: a cut would fetch what follows again");
                self.broken = true;
            }
        }
        self.pending.clear();
    }
}

/// The beginning of an image as it was found on the slot.
pub(super) struct Found {
    /// The first chunk, fetched anew: it is written last.
    pub(super) first: Option<Chunk>,
    /// Hash of everything up to `size`.
    pub(super) sha: Sha256,
    /// Bytes of the image.
    pub(super) size: u64,
    /// CRC-32C of every chunk so far.
    pub(super) sums: Vec<u32>,
}

impl Found {
    /// Nothing was found.
    pub(super) fn nothing() -> Found {
        Found {
            first: None,
            sha: Sha256::new(),
            size: 0,
            sums: Vec::new(),
        }
    }

    /// Number of the next chunk.
    pub(super) fn next(&self) -> u64 {
        self.sums.len() as u64
    }
}

/// Fetches the first chunk, reads from the slot what the journal says as far as it is true, and passes over that much of the
/// payload.
///
/// # Errors
/// The payload's and the device's; `Cancelled`.
pub(super) fn find(
    payload: &mut Payload,
    device: &mut dyn SlotDevice,
    sums: &[u32],
    cancel: &Cancel,
    report: &Arc<dyn Report>,
) -> Result<Found> {
    let mut found = Found::nothing();
    let total = payload.total().unwrap_or(0);
    if sums.is_empty() || total > device.size() {
        return Ok(found);
    }
    let mut buf = AlignedBuf::zeroed(CHUNK);
    let len = payload.fill(&mut buf)?;
    found.sha.update(buf.get(..len).unwrap_or_default());
    found.size = len as u64;
    let first = Chunk::new(0, buf, len);
    found.sums.push(crc32c::crc32c(first.blocks()));
    found.first = Some(first);
    if len < CHUNK {
        return Ok(found);
    }
    device.drop_cache()?;
    let mut buf = AlignedBuf::zeroed(CHUNK);
    for sum in sums {
        cancel.check()?;
        let len = usize::try_from(total - found.size).map_or(CHUNK, |l| l.min(CHUNK));
        if len == 0 {
            break;
        }
        let Some(part) = buf.get_mut(..len.next_multiple_of(BLOCK)) else {
            break;
        };
        device.read_at(found.size, part)?;
        if crc32c::crc32c(part) != *sum {
            tracing::warn!(
                byte = found.size,
                "the slot does not hold what the journal says; fetching from here"
            );
            break;
        }
        found.sha.update(part.get(..len).unwrap_or_default());
        found.size += len as u64;
        found.sums.push(*sum);
        report.done(found.size);
    }
    payload.skip(found.size - len as u64)?;
    Ok(found)
}

#[cfg(test)]
mod tests;
