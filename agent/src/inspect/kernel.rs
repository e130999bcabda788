//! PURE: whether a file is a Linux kernel that GRUB can start, and whether it is whole as far as its own headers tell.
//!
//! x86: the boot protocol's header (kernel documentation, "The Linux/x86 Boot Protocol"). 64-bit Arm: the image header (kernel
//! documentation, "Booting AArch64 Linux") or, for self-unpacking images, the PE header; packed with gzip too, as GRUB unpacks it.

use os_proto::layout::Arch;
use std::io::Read;

/// Bytes that [`judge`] wants, or the whole file when there is less.
pub const HEAD: usize = 4096;
/// Oldest x86 boot protocol whose header says how long the kernel is: 2.04, Linux 2.6.14.
const OLDEST: u16 = 0x0204;
/// Sector of the x86 boot protocol.
const SECTOR: u64 = 512;
/// Machine of a PE file: 64-bit Arm.
const PE_ARM64: u16 = 0xaa64;

/// Decides by the first bytes and the length of the file.
///
/// # Errors
/// What it is instead, to be read after the file's name.
pub fn judge(head: &[u8], len: u64) -> Result<Arch, String> {
    if head.starts_with(b"\x1f\x8b") {
        let mut inner = Vec::new();
        // Only its beginning is here: the decoder ends with an error, after what was wanted.
        let _ = flate2::read::GzDecoder::new(head)
            .take(HEAD as u64)
            .read_to_end(&mut inner);
        return match kind(&inner) {
            Some(arch) => Ok(arch),
            None => Err("is packed with gzip and holds no kernel".into()),
        };
    }
    let arch = kind(head).ok_or_else(|| {
        format!("is no kernel ({len} bytes without the header of an x86 bzImage or of a 64-bit Arm Image)")
    })?;
    let least = match arch {
        Arch::X86_64 => bzimage(head)?,
        Arch::Aarch64 => sections(head).unwrap_or(HEAD as u64),
    };
    if len < least {
        return Err(format!(
            "has {len} bytes, its own header says at least {least}: it is cut off"
        ));
    }
    Ok(arch)
}

fn kind(head: &[u8]) -> Option<Arch> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    if at(0x1fe, &[0x55, 0xaa]) && at(0x202, b"HdrS") {
        return Some(Arch::X86_64);
    }
    (at(0x38, b"ARM\x64") || pe(head).is_some_and(|p| u16_at(head, p + 4) == Some(PE_ARM64)))
        .then_some(Arch::Aarch64)
}

/// Bytes that a bzImage has at least: its set-up sectors and what they start.
fn bzimage(head: &[u8]) -> Result<u64, String> {
    let version = u16_at(head, 0x206).unwrap_or(0);
    if version < OLDEST {
        return Err(format!(
            "speaks boot protocol {}.{:02}, expected 2.04 or newer",
            version >> 8,
            version & 0xff
        ));
    }
    let setup = match head.get(0x1f1) {
        Some(0) | None => 4,
        Some(n) => u64::from(*n),
    };
    let paragraphs = u64::from(u32_at(head, 0x1f4).unwrap_or(0));
    if paragraphs == 0 {
        return Err("is a kernel's header with no kernel behind it".into());
    }
    Ok((setup + 1) * SECTOR + paragraphs * 16)
}

/// Offset of the PE header.
fn pe(head: &[u8]) -> Option<usize> {
    let at = usize::try_from(u32_at(head, 0x3c)?).ok()?;
    (head.starts_with(b"MZ") && head.get(at..at.checked_add(4)?)? == b"PE\0\0").then_some(at)
}

/// Where the last section of a PE file ends; `None` = it has none, or they are not within the head.
fn sections(head: &[u8]) -> Option<u64> {
    let pe = pe(head)?;
    let count = usize::from(u16_at(head, pe + 6)?);
    let table = pe + 24 + usize::from(u16_at(head, pe + 20)?);
    (0..count)
        .map(|i| {
            let row = table + i * 40;
            Some(u64::from(u32_at(head, row + 16)?) + u64::from(u32_at(head, row + 20)?))
        })
        .try_fold(0, |end, this| Some(end.max(this?)))
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::testing::kernel;
    use std::io::Write;

    /// A 64-bit Arm kernel with one section that ends at `end`.
    fn arm(end: u32, magic: bool) -> Vec<u8> {
        let mut k = vec![0u8; end as usize];
        k[..2].copy_from_slice(b"MZ");
        if magic {
            k[0x38..0x3c].copy_from_slice(b"ARM\x64");
        }
        k[0x3c] = 0x40;
        k[0x40..0x44].copy_from_slice(b"PE\0\0");
        k[0x44..0x46].copy_from_slice(&PE_ARM64.to_le_bytes());
        k[0x46] = 1;
        let row = 0x40 + 24;
        k[row + 16..row + 20].copy_from_slice(&(end - 4096).to_le_bytes());
        k[row + 20..row + 24].copy_from_slice(&4096u32.to_le_bytes());
        k
    }

    fn of(file: &[u8]) -> Result<Arch, String> {
        judge(&file[..file.len().min(HEAD)], file.len() as u64)
    }

    #[test]
    fn kernels_are_known_with_their_architecture() {
        assert_eq!(of(&kernel(2000)), Ok(Arch::X86_64));
        assert_eq!(of(&kernel(300_000)), Ok(Arch::X86_64));
        for k in [arm(9000, true), arm(9000, false)] {
            assert_eq!(of(&k), Ok(Arch::Aarch64));
            let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            w.write_all(&k).unwrap();
            assert_eq!(of(&w.finish().unwrap()), Ok(Arch::Aarch64));
        }
    }

    #[test]
    fn what_is_none_and_what_is_cut_off_is_refused() {
        let whole = kernel(300_000);
        let mut old = whole.clone();
        old[0x207] = 1;
        let mut hollow = whole.clone();
        hollow[0x1f4..0x1f8].fill(0);
        let mut unsigned = whole.clone();
        unsigned[0x1fe] = 0;
        let zipped = {
            let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            w.write_all(&[7; 9000]).unwrap();
            w.finish().unwrap()
        };
        for (file, says) in [
            (b"abc".to_vec(), "is no kernel (3 bytes"),
            (vec![7; 300_000], "is no kernel"),
            (b"MZ".to_vec(), "is no kernel"),
            (unsigned, "is no kernel"),
            (whole[..0x206].to_vec(), "boot protocol 0.00"),
            (old, "boot protocol 1."),
            (hollow, "no kernel behind it"),
            (whole[..299_983].to_vec(), "its own header says at least 300000"),
            (arm(9000, true)[..8999].to_vec(), "at least 9000"),
            (b"MZ..ARM".to_vec(), "is no kernel"),
            (zipped, "packed with gzip and holds no kernel"),
            (b"\x1f\x8bgarbage".to_vec(), "packed with gzip"),
        ] {
            let e = of(&file).unwrap_err();
            assert!(e.contains(says), "{e} / {says}");
        }
        // Whatever the bytes, never a panic.
        let k = arm(9000, false);
        for cut in 0..300 {
            let _ = of(&k[..cut]);
        }
        let mut far = k.clone();
        far[0x3c..0x40].fill(0xff);
        assert!(of(&far).is_err());
    }
}
