//! PURE: tells payloads apart by their first bytes, never by names.

/// What first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An ext4 file system, with its size in bytes.
    Ext4 {
        /// Blocks times block size of the superblock.
        bytes: u64,
    },
    /// gzip (RFC 1952).
    Gzip,
    /// zstd (RFC 8878), also when a skippable frame comes first.
    Zstd,
    /// A Slipway update file.
    SlipwayUpdate,
    /// A POSIX tar archive.
    Tar,
    /// Something else that people hand over by mistake, with its name.
    Known(&'static str),
    /// Nothing at all.
    Empty,
    /// None of these.
    Unknown,
}

/// Offset of the superblock in an ext file system.
const SUPERBLOCK: usize = 1024;

/// What is mounted at boot is ext4 (`rootfstype=ext4`); its two forerunners share the magic.
const OLDER_EXT: &str =
    "an ext2 or ext3 file system (no extents; a slot is mounted as ext4: make it with mke2fs -t ext4)";

/// INCOMPAT_RECOVER: the journal holds what the file system does not. The first mount, though read-only, would write it into the slot.
const RECOVER: u8 = 0x04;
const IN_USE: &str = "an ext4 file system that was copied while it was mounted (its journal would be written into the slot at the \
                      first boot: unmount it first, or run e2fsck -f on the copy)";

/// INCOMPAT_EXTENTS: what every ext4 has and ext2 and ext3 have not.
const EXTENTS: u8 = 0x40;

/// Decides; wants the first 64 KiB, or everything when there is less.
pub fn sniff(head: &[u8]) -> Kind {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    if head.is_empty() {
        return Kind::Empty;
    }
    if at(0, b"\x89SLIPWAY") {
        return Kind::SlipwayUpdate;
    }
    if at(0, b"\x28\xb5\x2f\xfd") || skippable(head) {
        return Kind::Zstd;
    }
    if at(0, b"\x1f\x8b") {
        return Kind::Gzip;
    }
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Kind::Known(
            "a whole disk image with a GUID partition table (use update.img, not system.img)",
        );
    }
    if let Some(bytes) = ext4_bytes(head) {
        return match incompat(head) {
            f if f & EXTENTS == 0 => Kind::Known(OLDER_EXT),
            f if f & RECOVER != 0 => Kind::Known(IN_USE),
            _ => Kind::Ext4 { bytes },
        };
    }
    let named: [(usize, &[u8], &'static str); 9] = [
        (
            0,
            b"QFI\xfb",
            "a qcow2 disk image (use update.img, not system.qcow2)",
        ),
        (0, b"\xfd7zXZ\0", "packed with xz"),
        (0, b"BZh", "packed with bzip2"),
        (0, b"\x04\x22\x4d\x18", "packed with lz4"),
        (0, b"PK\x03\x04", "a zip archive"),
        (0, b"hsqs", "a squashfs image"),
        (0, b"KDMV", "a VMDK disk image"),
        (0, b"\x7fELF", "a program"),
        (32769, b"CD001", "an ISO 9660 image"),
    ];
    if let Some((_, _, what)) = named.iter().find(|(o, m, _)| at(*o, m)) {
        return Kind::Known(what);
    }
    if at(257, b"ustar") {
        return Kind::Tar;
    }
    text(head)
}

/// A skippable zstd frame: 0x184D2A50 to 0x184D2A5F, little-endian.
fn skippable(head: &[u8]) -> bool {
    matches!(head, [a, 0x2a, 0x4d, 0x18, ..] if a & 0xf0 == 0x50)
}

/// Size of an ext file system, or `None` when this is none (kernel documentation, ext4 super block).
pub fn ext4_bytes(head: &[u8]) -> Option<u64> {
    let sb = head.get(SUPERBLOCK..SUPERBLOCK + 1024)?;
    let u32_at = |o: usize| Some(u32::from_le_bytes(sb.get(o..o + 4)?.try_into().ok()?));
    if sb.get(0x38..0x3a)? != [0x53, 0xef] {
        return None;
    }
    let log = u32_at(0x18)?;
    let incompat_64bit = u32_at(0x60)? & 0x80 != 0;
    let low = u64::from(u32_at(0x4)?);
    let high = if incompat_64bit {
        u64::from(u32_at(0x150)?)
    } else {
        0
    };
    if log > 6 {
        return None;
    }
    let blocks = (high << 32) | low;
    blocks.checked_mul(1024u64 << log).filter(|b| *b > 0)
}

/// The lowest byte of an ext file system's incompatible features.
fn incompat(head: &[u8]) -> u8 {
    head.get(SUPERBLOCK + 0x60).copied().unwrap_or(0)
}

/// Pages and other text: what a login portal or a file server's error answers with.
fn text(head: &[u8]) -> Kind {
    let start = head.get(..head.len().min(512)).unwrap_or_default();
    let Some(first) = start
        .iter()
        .position(|b| !b.is_ascii_whitespace() && !matches!(b, 0xef | 0xbb | 0xbf))
    else {
        return Kind::Unknown;
    };
    let lower = start.get(first..).unwrap_or_default().to_ascii_lowercase();
    if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") || lower.starts_with(b"<head") {
        return Kind::Known("an HTML page (a login portal or an error page?)");
    }
    if lower.starts_with(b"<?xml") || lower.starts_with(b"<error") {
        return Kind::Known("an XML document (an error answer of the server?)");
    }
    let printable = |b: &u8| b.is_ascii_graphic() || b.is_ascii_whitespace();
    if start.iter().all(printable) {
        return Kind::Known("text");
    }
    Kind::Unknown
}
