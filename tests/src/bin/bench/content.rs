//! Images to stage: a small root file system that the agent accepts, then content up to the wanted size.

use anyhow::Result;
use camino::Utf8Path;
use os_e2e::disk::root_image;
use std::io::{Seek, SeekFrom, Write};

const ROOT_MIB: u64 = 16;
const MIB: usize = 1 << 20;

/// A root file system of version 1 for the running slot.
pub(crate) fn running(path: &Utf8Path) -> Result<()> {
    root_image(path, "1", ROOT_MIB, 1, Some("/bin/true".into()), true)
}

/// An image of `mib` MiB. Of what follows its file system every second MiB is zeros, the others are half noise and half
/// repetition, so that they pack about 2 : 1, as programs do.
pub(crate) fn mixed(path: &Utf8Path, version: &str, mib: u64) -> Result<()> {
    root_image(path, version, ROOT_MIB, 1, Some("/bin/true".into()), true)?;
    let mut f = fs_err::OpenOptions::new().write(true).open(path)?;
    f.seek(SeekFrom::End(0))?;
    let mut x = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(version.as_bytes().first().copied().unwrap_or(1));
    let mut block = vec![0u8; MIB];
    for i in ROOT_MIB..mib {
        if i % 2 == 0 {
            block.fill(0);
        } else {
            for page in block.chunks_mut(64) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                for (j, b) in page.iter_mut().enumerate() {
                    if j < 32 && j % 8 == 0 {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
                    }
                    *b = if j < 32 {
                        x.to_le_bytes()[j % 8]
                    } else {
                        b"library "[j % 8]
                    };
                }
            }
        }
        f.write_all(&block)?;
    }
    Ok(())
}

/// An image of `gib` GiB that is a hole but for its file system.
pub(crate) fn sparse(path: &Utf8Path, gib: u64) -> Result<()> {
    root_image(path, "2", ROOT_MIB, 1, Some("/bin/true".into()), true)?;
    fs_err::OpenOptions::new()
        .write(true)
        .open(path)?
        .set_len(gib << 30)?;
    Ok(())
}
