//! `os-agent crashtest`: the proof that a power cut at any moment of an update leaves a node that boots.
//!
//! The real engine, write path and boot code run against a recorded disk in memory; every power cut of the recording is
//! then given to the model of grub.cfg ([`os_proto::boot_choice`]). Two things must hold for each: the slot that starts is
//! the old one, intact, or the new one, whole and verified; and the same request, made again after every boot, brings the
//! update to its end. Nothing outside this process is touched.

mod image;
mod machine;
mod medium;
mod parts;
mod prove;
mod replay;
mod report;
mod story;

pub use image::small as small_image;
pub use prove::{Sample, run, samples};
pub use report::{Report, Row, Violation};

use crate::error::Result;
use os_proto::digest::Sha256Digest;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Size of a recorded slot in bytes.
pub const SLOT_BYTES: usize = 8 << 20;
/// The recorded slot is flushed after so many bytes, so that there is more than one epoch.
const FLUSH_EVERY: u64 = 4 << 20;

/// A mistake that is built into the recording on purpose: the proof has to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Flushes of the slot do not reach the disk.
    NoFlush,
    /// The slot is armed before it is written whole and read back.
    ArmBeforeVerify,
    /// Arming reaches the second environment copy only.
    ArmEnv2Only,
    /// What the medium stored is not read back, only what the cache holds.
    SkipReadback,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 4] = [
        Sabotage::NoFlush,
        Sabotage::ArmBeforeVerify,
        Sabotage::ArmEnv2Only,
        Sabotage::SkipReadback,
    ];

    /// As the command line writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Sabotage::NoFlush => "no-flush",
            Sabotage::ArmBeforeVerify => "arm-before-verify",
            Sabotage::ArmEnv2Only => "arm-env2-only",
            Sabotage::SkipReadback => "skip-readback",
        }
    }
}

impl std::str::FromStr for Sabotage {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        Sabotage::ALL
            .into_iter()
            .find(|k| k.as_str() == s)
            .ok_or_else(|| {
                let names: Vec<&str> = Sabotage::ALL.iter().map(|k| k.as_str()).collect();
                format!("{s:?}: expected one of {}", names.join(", "))
            })
    }
}

/// How thorough the proof is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    /// Every cut is judged; of torn writes only some are also run to the end.
    pub quick: bool,
    /// A mistake to find.
    pub sabotage: Option<Sabotage>,
}

/// What is on the recorded disk and what the update brings.
struct Images {
    /// Slot A, whole.
    slot_a: Arc<Vec<u8>>,
    old_size: usize,
    old_sha256: Sha256Digest,
    /// Slot B before the update.
    slot_b: Arc<Vec<u8>>,
    /// The new image, which is the payload as well.
    new: Arc<Vec<u8>>,
    new_sha256: Sha256Digest,
    /// Which byte of a write a faulty medium gets wrong.
    fault_byte: usize,
}

impl Images {
    fn new(quick: bool) -> Result<Images> {
        let mib = if quick { 6 } else { 8 };
        let old = image::large("1", mib)?;
        let new = image::large("2", mib)?;
        let mut before = image::large("0", mib)?;
        let sum = |d: &[u8]| Sha256Digest(Sha256::digest(d).into());
        let (old_size, old_sha256, new_sha256) = (old.len(), sum(&old), sum(&new));
        let mut slot_a = old;
        slot_a.resize(SLOT_BYTES, 0);
        before.resize(SLOT_BYTES, 0);
        Ok(Images {
            slot_a: Arc::new(slot_a),
            old_size,
            old_sha256,
            slot_b: Arc::new(before),
            new: Arc::new(new),
            new_sha256,
            // Behind the superblock, inside any block.
            fault_byte: 3001,
        })
    }
}

#[cfg(test)]
mod tests;
