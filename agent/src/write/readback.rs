//! Reads a whole image from the medium and compares.

use super::{BLOCK, CHUNK, Chunk, Failed, join, lock};
use crate::error::AgentError;
use crate::ports::{Cancel, Report, SlotDevice};
use crate::slots::OpenSlot;
use crate::sys::buf::AlignedBuf;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Reads `size` bytes, compares them with `wanted` and yields their hash; with `sums` of each chunk a difference is named where it is found.
///
/// # Errors
/// With `sums` `MediumCorrupt`, without `ChecksumMismatch`; `Cancelled`; the device's.
pub(super) fn read_back(
    slot: &OpenSlot,
    size: u64,
    wanted: Option<Sha256Digest>,
    sums: Option<&[u32]>,
    ring: usize,
    cancel: &Cancel,
    report: &Arc<dyn Report>,
) -> Result<Sha256Digest, Failed> {
    report.step("read-back", Some(size));
    let mut device = lock(slot);
    device.drop_cache()?;
    let (free_in, free_out) = sync_channel(ring);
    for _ in 0..ring.min(4) {
        let _ = free_in.send(AlignedBuf::zeroed(CHUNK));
    }
    let (read_in, read_out) = sync_channel::<Chunk>(ring);
    let hashing = std::thread::spawn(move || {
        let mut sha = Sha256::new();
        for chunk in read_out {
            sha.update(chunk.buf.get(..chunk.len).unwrap_or_default());
            // The reader ends before this when it failed.
            let _ = free_in.send(chunk.buf);
        }
        sha.finalize()
    });
    let mut at = 0u64;
    for index in 0u64.. {
        if at >= size {
            break;
        }
        cancel.check()?;
        let mut buf = free_out
            .recv()
            .map_err(|_| AgentError::new(Code::Internal, "the hashing thread died"))?;
        let len = usize::try_from(size - at).map_or(CHUNK, |l| l.min(CHUNK));
        let padded = len.next_multiple_of(BLOCK).min(CHUNK);
        let part = buf.get_mut(..padded).unwrap_or_default();
        device.read_at(at, part)?;
        if let Some(sum) = sums.and_then(|s| s.get(usize::try_from(index).ok()?))
            && crc32c::crc32c(part) != *sum
        {
            return Err(differs(&device.describe(), &format!("chunk {index} (byte {at})")));
        }
        at += len as u64;
        report.done(at);
        if read_in.send(Chunk::new(index, buf, len)).is_err() {
            break;
        }
    }
    drop(read_in);
    let got = Sha256Digest(join(hashing)?.into());
    let Some(wanted) = wanted.filter(|w| *w != got) else {
        return Ok(got);
    };
    if sums.is_some() {
        return Err(differs(&device.describe(), "the image"));
    }
    let text = format!(
        "{}: holds SHA-256 {got} in its first {size} bytes, expected {wanted}",
        device.describe()
    );
    Err(AgentError::new(Code::ChecksumMismatch, text).into())
}

fn differs(device: &str, what: &str) -> Failed {
    let text =
        format!("{device}: {what} reads back differently from what was written; the medium is failing");
    Failed {
        error: AgentError::new(Code::MediumCorrupt, text),
        differs: true,
    }
}

/// Hashes the first `size` bytes of a device, read from the medium.
///
/// # Errors
/// The device's; `Cancelled`.
pub fn hash_of(
    device: &mut dyn SlotDevice,
    size: u64,
    cancel: &Cancel,
    report: &dyn Report,
) -> crate::error::Result<Sha256Digest> {
    device.drop_cache()?;
    report.step("read-back", Some(size));
    let mut hasher = Sha256::new();
    let mut buf = vec![0u8; 1 << 20];
    let mut at = 0;
    while at < size {
        cancel.check()?;
        let want = usize::try_from((size - at).min(buf.len() as u64)).unwrap_or(buf.len());
        let part = buf.get_mut(..want).unwrap_or_default();
        device.read_at(at, part)?;
        hasher.update(&part);
        at += want as u64;
        report.done(at);
    }
    Ok(Sha256Digest(hasher.finalize().into()))
}
