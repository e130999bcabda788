//! Names in a cpio archive of the kind that Linux unpacks at boot
//! (<https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>). Pure.

const HEADER: usize = 110;
const TRAILER: &str = "TRAILER!!!";

/// All names in one or several plain archives one after another.
pub(super) fn names(bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (name, next) = entry(bytes, at)?;
        if name != TRAILER {
            names.push(name);
            at = next;
            continue;
        }
        // Zeros up to the next archive or to the end.
        at = next
            + bytes
                .get(next..)
                .unwrap_or_default()
                .iter()
                .take_while(|b| **b == 0)
                .count();
    }
    Ok(names)
}

/// Length of a first archive that holds processor microcode, padding included; 0 when there is none.
pub(super) fn early_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    let mut microcode = false;
    while let Ok((name, next)) = entry(bytes, at) {
        if name == TRAILER {
            let end = next
                + bytes
                    .get(next..)
                    .unwrap_or_default()
                    .iter()
                    .take_while(|b| **b == 0)
                    .count();
            return if microcode && end < bytes.len() { end } else { 0 };
        }
        microcode |= name.contains("/microcode/") || name == "early_cpio";
        at = next;
    }
    0
}

/// Name of the entry at `at`, and where the next one begins.
fn entry(bytes: &[u8], at: usize) -> Result<(String, usize), String> {
    let head = at
        .checked_add(HEADER)
        .and_then(|end| bytes.get(at..end))
        .ok_or_else(|| format!("it ends at {at} within an entry"))?;
    if !head.starts_with(b"070701") && !head.starts_with(b"070702") {
        return Err(format!("no entry at {at}"));
    }
    let field = |i: usize| -> Result<usize, String> {
        let text =
            std::str::from_utf8(&head[6 + i * 8..14 + i * 8]).map_err(|_| format!("bad entry at {at}"))?;
        usize::from_str_radix(text, 16).map_err(|_| format!("bad entry at {at}"))
    };
    let (size, name_size) = (field(6)?, field(11)?);
    let start = at + HEADER;
    let name = start
        .checked_add(name_size)
        .and_then(|end| bytes.get(start..end))
        .ok_or_else(|| format!("it ends at {at} within a name"))?;
    let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    let data = (start + name_size).next_multiple_of(4);
    let next = (data + size).next_multiple_of(4);
    if data + size > bytes.len() {
        return Err(format!("it ends within {name:?}"));
    }
    Ok((name, next))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An archive of empty files.
    pub(in super::super) fn archive(names: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in names.iter().chain([&TRAILER]) {
            let mut fields = [0_usize; 13];
            fields[11] = name.len() + 1;
            let fields: String = fields.iter().map(|f| format!("{f:08x}")).collect();
            out.extend_from_slice(format!("070701{fields}{name}\0").as_bytes());
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    #[test]
    fn names_of_one_or_two_archives() {
        let mut both = archive(&["kernel/x86/microcode/GenuineIntel.bin"]);
        let early = both.len();
        both.extend(archive(&["init", "usr/lib/a.ko"]));
        assert_eq!(
            names(&both).unwrap(),
            ["kernel/x86/microcode/GenuineIntel.bin", "init", "usr/lib/a.ko"]
        );
        assert_eq!(early_length(&both), early);
        assert_eq!(early_length(&both[early..]), 0);
    }

    #[test]
    fn damage_is_seen() {
        let good = archive(&["init"]);
        assert!(names(&good[..100]).unwrap_err().contains("within an entry"));
        assert!(names(&[b'x'; 200]).unwrap_err().contains("no entry"));
        assert_eq!(early_length(b"x"), 0);
    }
}
