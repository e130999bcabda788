//! Directory entries with short names only: all that our own files need.

/// 1980-01-01, the only date of our entries.
const DOS_DATE: u16 = (1 << 5) | 1;
/// Attribute of a file.
pub(super) const FILE: u8 = 0x20;
/// Attribute of a directory.
pub(super) const DIR: u8 = 0x10;
/// Attribute of the volume label.
pub(super) const LABEL: u8 = 0x08;
/// The name is shown in lower case.
const LOWER_BASE: u8 = 0x08;
/// The extension is shown in lower case.
const LOWER_EXT: u8 = 0x10;

/// A 32-byte directory entry.
pub(super) fn entry(name: &[u8; 11], attribute: u8, case: u8, cluster: u32, size: u32) -> [u8; 32] {
    let mut e = [0u8; 32];
    e[..11].copy_from_slice(name);
    e[11] = attribute;
    e[12] = case;
    for at in [16, 18, 24] {
        e[at..at + 2].copy_from_slice(&DOS_DATE.to_le_bytes());
    }
    e[20..22].copy_from_slice(&cluster.to_le_bytes()[2..]);
    e[26..28].copy_from_slice(&cluster.to_le_bytes()[..2]);
    e[28..].copy_from_slice(&size.to_le_bytes());
    e
}

/// `grub.cfg` → its eleven bytes and the case bits; none when it is no short name in one case for each part.
pub(super) fn short_name(name: &str) -> Option<([u8; 11], u8)> {
    let (base, ext) = name.split_once('.').unwrap_or((name, ""));
    let ok = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if base.is_empty() || base.len() > 8 || ext.len() > 3 || !ok(base) || !ok(ext) {
        return None;
    }
    let mut out = [b' '; 11];
    let mut case = 0;
    for (at, part, bit) in [(0, base, LOWER_BASE), (8, ext, LOWER_EXT)] {
        let lower = part.bytes().any(|b| b.is_ascii_lowercase());
        if lower && part.bytes().any(|b| b.is_ascii_uppercase()) {
            return None;
        }
        if lower {
            case |= bit;
        }
        out[at..at + part.len()].copy_from_slice(part.to_ascii_uppercase().as_bytes());
    }
    Some((out, case))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names() {
        assert_eq!(
            short_name("grub.cfg"),
            Some((*b"GRUB    CFG", LOWER_BASE | LOWER_EXT))
        );
        assert_eq!(short_name("BOOTX64.EFI"), Some((*b"BOOTX64 EFI", 0)));
        assert_eq!(short_name("EFI"), Some((*b"EFI        ", 0)));
        assert_eq!(short_name("user-A.env"), None);
        for bad in ["", "a long name", "longerthan8", "a.b.c", "ü", "a.long"] {
            assert_eq!(short_name(bad), None, "{bad}");
        }
    }
}
