//! One pass: fetch, unpack, hash and write overlap; then everything is read back from the medium. Yields [`Installed`].
//!
//! The first block of the file system, which makes it mountable, is zeroed before the first real write and written last, after
//! the payload's checksum matched and everything else is durable.

mod journal;
mod place;
mod readback;
mod resume;
mod unpack;

pub use journal::Key;
pub use readback::hash_of;
pub use resume::known;

use crate::error::{AgentError, Result};
use crate::payload::{self, End, Form, Payload};
use crate::ports::{Cancel, JournalStore, Report, SlotDevice};
use crate::rootfs;
use crate::slots::OpenSlot;
use crate::sys::buf::{self, AlignedBuf};
use crate::verify::{Authentic, Opaque};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use place::Placer;
use resume::{Found, Keeper};
use sha2::Digest;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use unpack::Lanes;
use uuid::Uuid;

/// Unit of the pipeline in bytes.
pub const CHUNK: usize = 1 << 20;
/// Slots are written in whole blocks of this size.
pub const BLOCK: usize = 4096;
/// A download that stands still for so long is journalled as far as it came.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Bounds of one installation.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Buffers of [`CHUNK`] bytes in the ring.
    pub buffers: usize,
    /// The device is flushed after so many bytes.
    pub flush_every: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            buffers: 8,
            flush_every: 64 << 20,
        }
    }
}

/// An image that was read back whole from the slot's medium and matched. Holds the slot open, so that nobody mounts it before
/// it is armed. Neither cloned nor stored: after a restart the slot is read back again.
///
/// ```compile_fail
/// let installed: os_agent::write::Installed = unreachable!();
/// let again = installed.clone(); // not Clone
/// ```
/// ```compile_fail
/// let installed: os_agent::write::Installed = unreachable!();
/// let text = serde_json::to_string(&installed); // not Serialize
/// ```
/// A payload that nobody vouched for is not written:
/// ```compile_fail
/// use os_agent::{payload::Payload, slots::OpenSlot, write};
/// let (payload, slot): (Payload, OpenSlot) = unreachable!();
/// let sum = os_proto::digest::Sha256Digest([0; 32]);
/// write::install(payload, &sum, slot, &Default::default(), None, &Default::default(), unreachable!());
/// ```
/// Nor is anything written to a slot that is not an open inactive one:
/// ```compile_fail
/// use os_agent::{payload::Payload, slots::Layout, verify, write};
/// let (payload, layout): (Payload, Layout) = unreachable!();
/// let wanted = verify::opaque(unreachable!(), &Default::default()).unwrap();
/// write::install(payload, &wanted, layout.running(), &Default::default(), None, &Default::default(), unreachable!());
/// ```
#[derive(Debug)]
pub struct Installed {
    slot: OpenSlot,
    image_size: u64,
    image_sha256: Sha256Digest,
    payload_digest: Option<Sha256Digest>,
    fetched: u64,
    written: u64,
    saved: u64,
}

impl Installed {
    /// Which slot.
    pub fn slot(&self) -> Slot {
        self.slot.slot()
    }

    /// Size of the image in bytes.
    pub fn image_size(&self) -> u64 {
        self.image_size
    }

    /// Hash of the image's bytes on the medium.
    pub fn image_sha256(&self) -> Sha256Digest {
        self.image_sha256
    }

    /// Checksum of the payload file that it came from.
    pub fn payload_digest(&self) -> Option<Sha256Digest> {
        self.payload_digest
    }

    /// Bytes of the payload file that were fetched.
    pub fn fetched(&self) -> u64 {
        self.fetched
    }

    /// Bytes that were written to the slot.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that needed no writing: they stood there already.
    pub fn saved(&self) -> u64 {
        self.saved
    }

    /// The open slot, for `inspect` alone.
    pub(crate) fn open_slot(&self) -> &OpenSlot {
        &self.slot
    }
}

/// Why an installation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// What happened.
    pub error: AgentError,
    /// Everything was written, and the medium gives back something else: another attempt writes what differs, and nothing else.
    pub differs: bool,
}

impl From<AgentError> for Failed {
    fn from(error: AgentError) -> Failed {
        Failed {
            error,
            differs: false,
        }
    }
}

impl From<Failed> for AgentError {
    fn from(f: Failed) -> AgentError {
        f.error
    }
}

/// One piece of the image on its way.
struct Chunk {
    index: u64,
    buf: AlignedBuf,
    /// Bytes of the image in it.
    len: usize,
    /// Only zeros.
    zero: bool,
    /// CRC-32C of its blocks.
    sum: u32,
}

impl Chunk {
    fn new(index: u64, buf: AlignedBuf, len: usize) -> Chunk {
        Chunk {
            index,
            buf,
            len,
            zero: false,
            sum: 0,
        }
    }

    fn offset(&self) -> u64 {
        self.index * CHUNK as u64
    }

    /// The image's bytes padded with zeros to a whole block.
    fn blocks(&self) -> &[u8] {
        self.buf
            .get(..self.len.next_multiple_of(BLOCK))
            .unwrap_or_default()
    }
}

/// What the hashing thread knows at the end.
struct Hashed {
    sha256: Sha256Digest,
    size: u64,
    sums: Vec<u32>,
}

/// Writes a payload to a slot and reads it back. With a journal, an image that is not packed is taken up where an earlier
/// attempt on the same slot ended, and this one can be taken up in turn.
///
/// # Errors
/// The download's and the payload's; `SlotTooSmall`, `SizeMismatch`, `ChecksumMismatch`, `MediumCorrupt`, `Cancelled`,
/// `StateWriteFailed`, `Internal`. The slot then holds nothing mountable, unless it was left as it was or reads back wrong.
pub fn install(
    mut payload: Payload,
    wanted: &Authentic<Opaque>,
    slot: OpenSlot,
    limits: &Limits,
    journal: Option<(Box<dyn JournalStore>, Key)>,
    cancel: &Cancel,
    report: &Arc<dyn Report>,
) -> std::result::Result<Installed, Failed> {
    let wanted = wanted.get().checksum();
    let name = payload.describe().to_owned();
    let fs_bytes = payload.fs_bytes();
    report.step("fetch", payload.total());

    let (mut keeper, sums) = match journal {
        Some((store, key)) => Keeper::begin(store, &key, &payload)?,
        None => (None, Vec::new()),
    };
    let mut found = resume::find(&mut payload, &mut **lock(&slot), &sums, cancel, report)?;
    if let Some(k) = &mut keeper {
        k.at(found.sums.len().saturating_sub(1));
    }

    let ring = limits.buffers.clamp(3, 16);
    let (free_in, free_out) = sync_channel(ring);
    for _ in 0..ring {
        let _ = free_in.send(AlignedBuf::zeroed(CHUNK));
    }
    let (unpacked_in, unpacked_out) = sync_channel(ring);
    let (hashed_in, hashed_out) = sync_channel::<Chunk>(ring);
    let first = found.first.take();
    let kept = found.size - first.as_ref().map_or(0, |f| f.len as u64);
    let begin = (found.next(), found.size);
    let plan = (payload.form() == Form::Archive).then(|| plan(&slot, wanted));
    let archive = plan.is_some();
    let lanes = Lanes {
        free: free_out,
        out: unpacked_in,
        slot_size: slot.size(),
        report: Arc::clone(report),
    };
    let unpacking = std::thread::spawn(move || match plan {
        Some(plan) => unpack::archive(payload, plan, lanes),
        None => unpack::image(payload, begin, &lanes).map(|end| (end, None)),
    });
    let hashing = std::thread::spawn(move || hash(found, !archive, &unpacked_out, &hashed_in));

    let (hashed, end, tree, written, saved) = {
        let mut device = lock(&slot);
        let mut placer = Placer::new(&mut **device, limits.flush_every, keeper, kept, report.as_ref());
        let placed = place(&mut placer, first, &hashed_out, &free_in, cancel);
        // Whatever came this far need not come again.
        let noted = placer.checkpoint();
        placed?;
        drop(hashed_out);
        // The channel closed: both threads are done, well or not.
        let (end, tree) = join(unpacking)??;
        let hashed = join(hashing)?;
        noted?;
        cancel.check()?;
        check(&name, fs_bytes, &hashed, &end, wanted)?;
        placer.finish()?;
        let (written, saved) = placer.counts();
        (hashed, end, tree, written, saved)
    };
    // What an archive becomes has no hash of its own before it was read back against the sums of what was written.
    let whole = tree.is_none().then_some(hashed.sha256);
    let sums = Some(hashed.sums.as_slice());
    let image_sha256 = readback::read_back(&slot, hashed.size, whole, sums, ring, cancel, report)?;
    if let Some(tree) = tree {
        rootfs::check::check(&tree, &slot, hashed.size, cancel, report)?;
    }
    Ok(Installed {
        slot,
        image_size: hashed.size,
        image_sha256,
        payload_digest: Some(wanted),
        fetched: end.fetched,
        written,
        saved,
    })
}

/// Puts every chunk in place as it comes.
fn place(
    placer: &mut Placer<'_>,
    first: Option<Chunk>,
    chunks: &Receiver<Chunk>,
    free: &SyncSender<AlignedBuf>,
    cancel: &Cancel,
) -> Result<()> {
    if let Some(first) = first {
        placer.put(first)?;
    }
    loop {
        let chunk = match chunks.recv_timeout(STANDSTILL) {
            Ok(c) => c,
            Err(RecvTimeoutError::Timeout) => {
                cancel.check()?;
                placer.checkpoint()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        cancel.check()?;
        if let Some(back) = placer.put(chunk)? {
            let _ = free.send(back.buf);
        }
    }
}

/// Proves that a slot holds an image, by reading it from the medium.
///
/// # Errors
/// `ChecksumMismatch` when it holds something else, `SlotTooSmall` when it cannot hold it, `MediumCorrupt`, `Cancelled`.
pub fn read_back(
    slot: OpenSlot,
    image_size: u64,
    image_sha256: Sha256Digest,
    payload_digest: Option<Sha256Digest>,
    cancel: &Cancel,
    report: &Arc<dyn Report>,
) -> Result<Installed> {
    if image_size > slot.size() {
        return Err(too_small(slot.describe(), image_size, slot.size()));
    }
    let ring = Limits::default().buffers;
    readback::read_back(&slot, image_size, Some(image_sha256), None, ring, cancel, report)?;
    Ok(Installed {
        slot,
        image_size,
        image_sha256,
        payload_digest,
        fetched: 0,
        written: 0,
        saved: image_size,
    })
}

/// How an archive becomes a file system: the same archive always the same one.
fn plan(slot: &OpenSlot, wanted: Sha256Digest) -> rootfs::ext4::Plan {
    rootfs::ext4::Plan {
        slot_size: slot.size(),
        label: format!("ROOT-{}", slot.slot()),
        uuid: Uuid::new_v5(&Uuid::NAMESPACE_OID, &wanted.0),
    }
}

fn too_small(name: &str, size: u64, slot_size: u64) -> AgentError {
    AgentError::new(
        Code::SlotTooSmall,
        format!("{name}: the image has at least {size} bytes, the slot has {slot_size}"),
    )
}

/// `whole` = the chunks come in order and their hash is that of the image.
fn hash(begin: Found, whole: bool, from: &Receiver<Chunk>, to: &SyncSender<Chunk>) -> Hashed {
    let Found {
        mut sha,
        mut size,
        mut sums,
        ..
    } = begin;
    for mut chunk in from {
        if whole {
            sha.update(chunk.buf.get(..chunk.len).unwrap_or_default());
        }
        size += chunk.len as u64;
        chunk.sum = crc32c::crc32c(chunk.blocks());
        let at = usize::try_from(chunk.index).unwrap_or(usize::MAX);
        if at >= sums.len() {
            sums.resize(at + 1, 0);
        }
        if let Some(s) = sums.get_mut(at) {
            *s = chunk.sum;
        }
        chunk.zero = buf::is_zero(chunk.blocks());
        if to.send(chunk).is_err() {
            break;
        }
    }
    Hashed {
        sha256: Sha256Digest(sha.finalize().into()),
        size,
        sums,
    }
}

/// Everything that must hold before the image becomes mountable.
fn check(name: &str, fs_bytes: u64, image: &Hashed, end: &End, wanted: Sha256Digest) -> Result<()> {
    if image.size < fs_bytes {
        return Err(payload::cut_off(name, fs_bytes, image.size));
    }
    let got = end.digest.unwrap_or(image.sha256);
    if got != wanted {
        return Err(AgentError::new(
            Code::ChecksumMismatch,
            format!(
                "{name}: got SHA-256 {got}, wanted {wanted} ({} bytes)",
                end.fetched
            ),
        ));
    }
    Ok(())
}

fn lock(slot: &OpenSlot) -> MutexGuard<'_, Box<dyn SlotDevice>> {
    slot.device().lock().unwrap_or_else(PoisonError::into_inner)
}

fn join<T>(thread: JoinHandle<T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| AgentError::new(Code::Internal, "a thread of the write pipeline died"))
}

#[cfg(test)]
mod tests;
