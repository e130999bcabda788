//! The images of the recorded update: a real, tiny ext4 with kernel, initramfs and agent, and a tail that tells versions apart.

use crate::error::{AgentError, Result};
use os_proto::codes::Code;
use std::io::Read;

const TEMPLATE: &[u8] = include_bytes!("../testing/image.ext4.gz");
const PLACEHOLDER: &[u8] = b"#TESTIMAGE";
const PLACEHOLDER_BYTES: usize = 256;
const MIB: usize = 1 << 20;

/// A small ext4 image with kernel, initramfs and agent that says it is `version`.
///
/// # Errors
/// `Internal` when the built-in template is not what it should be.
pub fn small(version: &str) -> Result<Vec<u8>> {
    let bad = |what: &str| AgentError::new(Code::Internal, format!("the built-in test image: {what}"));
    let mut data = Vec::new();
    flate2::read::GzDecoder::new(TEMPLATE)
        .read_to_end(&mut data)
        .map_err(|e| bad(&e.to_string()))?;
    let at = data
        .windows(PLACEHOLDER.len())
        .position(|w| w == PLACEHOLDER)
        .ok_or_else(|| bad("no os-release"))?;
    let mut text =
        format!("NAME=Slipway\nID=slipway\nVERSION_ID=\"{version}\"\nPRETTY_NAME=\"Slipway {version}\"\n")
            .into_bytes();
    if text.len() >= PLACEHOLDER_BYTES {
        return Err(bad("the version is too long"));
    }
    text.resize(PLACEHOLDER_BYTES - 1, b'#');
    text.push(b'\n');
    data.get_mut(at..at + PLACEHOLDER_BYTES)
        .ok_or_else(|| bad("no room for os-release"))?
        .copy_from_slice(&text);
    Ok(data)
}

/// [`small`] followed by MiB after MiB of content up to `mib` MiB: by turns the version's own, all zeros, and the same in
/// every version, so that an update has something to write, to zero and to leave alone.
///
/// # Errors
/// As [`small`].
pub(super) fn large(version: &str, mib: usize) -> Result<Vec<u8>> {
    let mut data = small(version)?;
    let own = version
        .bytes()
        .fold(1u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    for index in 0..mib {
        let end = (index + 1) * MIB;
        let from = data.len();
        if end <= from {
            continue;
        }
        data.resize(end, 0);
        let seed = match index % 5 {
            2 => continue,
            4 => 77,
            _ => own,
        };
        if let Some(part) = data.get_mut(from..) {
            noise(part, seed.wrapping_add(index as u32));
        }
    }
    Ok(data)
}

/// Content that is not zero and does not repeat.
fn noise(part: &mut [u8], seed: u32) {
    let mut x = seed.wrapping_mul(2_654_435_761).max(1);
    for w in part.chunks_mut(4) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        for (o, b) in w.iter_mut().zip(x.to_le_bytes()) {
            *o = b;
        }
    }
}
