//! The little of an ELF file that decides whether the agent can run in an image. Pure.

use os_proto::layout::Arch;

/// What a program is and needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Architecture as RPM writes it, or the ELF machine number.
    pub(super) machine: String,
    /// Highest `GLIBC_x.y` that it needs; none = static, or without a C library.
    pub(super) needs_glibc: Option<(u32, u32)>,
    /// The loader it names; none = static.
    pub(super) loader: Option<String>,
}

/// Byte string that every os-agent of ours carries, backwards: this program must not be taken for one.
const MARKER_REVERSED: &[u8] = b"1v-tnega-so-yawpils";

/// Why a file is not our agent for this architecture.
pub(super) fn check_agent(bytes: &[u8], arch: Arch) -> Result<Program, String> {
    if bytes.is_empty() {
        return Err("is empty".to_owned());
    }
    let program = read(bytes)?;
    if program.machine != arch.as_str() {
        return Err(format!(
            "ELF {}, image arch {arch}",
            program.machine,
            arch = arch.as_str()
        ));
    }
    // The compiler must not turn it round and store it.
    let marker: Vec<u8> = std::hint::black_box(MARKER_REVERSED)
        .iter()
        .rev()
        .copied()
        .collect();
    if !bytes.windows(marker.len()).any(|w| w == marker) {
        return Err("a program, but not Slipway's os-agent".to_owned());
    }
    Ok(program)
}

/// Why a program cannot run with the C library of an image; none = it has none.
pub(super) fn check_glibc(program: &Program, image_glibc: Option<(u32, u32)>) -> Result<(), String> {
    match (program.needs_glibc, image_glibc) {
        (Some((a, b)), Some((c, d))) if (a, b) > (c, d) => Err(format!(
            "needs glibc {a}.{b}, the image has {c}.{d}; use the static build of the agent or a newer base"
        )),
        (Some((a, b)), None) => Err(format!(
            "needs glibc {a}.{b}, the image has none; use the static build of the agent"
        )),
        _ => Ok(()),
    }
}

/// Reads the heads of a 64-bit little-endian ELF file.
pub(super) fn read(bytes: &[u8]) -> Result<Program, String> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err("not an ELF program".to_owned());
    }
    if bytes.get(4) != Some(&2) || bytes.get(5) != Some(&1) {
        return Err("expected a 64-bit little-endian ELF program".to_owned());
    }
    let machine = match u16_at(bytes, 18) {
        Some(62) => "x86_64".to_owned(),
        Some(183) => "aarch64".to_owned(),
        Some(n) => format!("machine {n}"),
        None => return Err("truncated ELF head".to_owned()),
    };
    let loader = segments(bytes)
        .find(|(kind, ..)| *kind == 3)
        .and_then(|(_, at, size)| bytes.get(at..at.checked_add(size)?))
        .map(|b| String::from_utf8_lossy(b).trim_end_matches('\0').to_owned());
    Ok(Program {
        machine,
        needs_glibc: loader.as_ref().and_then(|_| highest_glibc(bytes)),
        loader,
    })
}

/// Type, offset and size of each program header.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u32, usize, usize)> {
    let table = u64_at(bytes, 32).unwrap_or(0);
    let (size, count) = (u16_at(bytes, 54).unwrap_or(0), u16_at(bytes, 56).unwrap_or(0));
    (0..usize::from(count)).filter_map(move |i| {
        let at = table.checked_add(i.checked_mul(usize::from(size))?)?;
        Some((
            u32_at(bytes, at)?,
            u64_at(bytes, at + 8)?,
            u64_at(bytes, at + 32)?,
        ))
    })
}

/// Highest `GLIBC_x.y` among the file's strings. Version names lie in the dynamic string table, each ended by a zero
/// byte; a name in other data would at worst make us stricter.
pub(super) fn highest_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let mut best = None;
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(PREFIX.len()).position(|w| w == PREFIX) {
        let start = at + found + PREFIX.len();
        at = start;
        let end = bytes[start..]
            .iter()
            .position(|b| *b == 0)
            .map_or(bytes.len(), |n| start + n);
        let version = std::str::from_utf8(&bytes[start..end]).ok().and_then(version);
        best = best.max(version);
    }
    best
}

/// `2.34` or `2.2.5` → major and minor.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        b.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        b.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn u64_at(b: &[u8], at: usize) -> Option<usize> {
    let n = u64::from_le_bytes(b.get(at..at.checked_add(8)?)?.try_into().ok()?);
    usize::try_from(n).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head with one INTERP segment, the marker and version names.
    fn program(machine: u16, loader: bool, marker: bool, versions: &[&str]) -> Vec<u8> {
        let mut b = vec![0; 64 + 56];
        b[..6].copy_from_slice(b"\x7fELF\x02\x01");
        b[18..20].copy_from_slice(&machine.to_le_bytes());
        b[32..40].copy_from_slice(&64_u64.to_le_bytes());
        b[54..56].copy_from_slice(&56_u16.to_le_bytes());
        b[56..58].copy_from_slice(&1_u16.to_le_bytes());
        let kind: u32 = if loader { 3 } else { 1 };
        b[64..68].copy_from_slice(&kind.to_le_bytes());
        b[72..80].copy_from_slice(&120_u64.to_le_bytes());
        b[96..104].copy_from_slice(&13_u64.to_le_bytes());
        b.extend_from_slice(b"/lib64/ld.so\0");
        for v in versions {
            b.extend_from_slice(format!("\0GLIBC_{v}\0").as_bytes());
        }
        if marker {
            b.extend(MARKER_REVERSED.iter().rev());
        }
        b
    }

    #[test]
    fn an_agent_that_fits() {
        let got = check_agent(&program(62, true, true, &["2.2.5", "2.34"]), Arch::X86_64).unwrap();
        check_glibc(&got, Some((2, 36))).unwrap();
        assert_eq!(got.needs_glibc, Some((2, 34)));
        assert_eq!(got.loader.as_deref(), Some("/lib64/ld.so"));
        let statically = check_agent(&program(62, false, true, &["2.99"]), Arch::X86_64).unwrap();
        assert_eq!(statically.needs_glibc, None);
        check_glibc(&statically, None).unwrap();
    }

    #[test]
    fn the_builder_is_no_agent() {
        let builder = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let e = check_agent(&builder, Arch::X86_64).unwrap_err();
        assert!(
            e == "a program, but not Slipway's os-agent" || e.contains("image arch"),
            "{e}"
        );
    }

    #[test]
    fn agents_that_do_not_fit() {
        let why = |b: &[u8]| check_agent(b, Arch::X86_64).unwrap_err();
        assert_eq!(why(b""), "is empty");
        assert_eq!(why(b"#!/bin/sh\n"), "not an ELF program");
        assert_eq!(
            why(b"\x7fELF\x01\x01"),
            "expected a 64-bit little-endian ELF program"
        );
        assert_eq!(why(b"\x7fELF\x02\x01"), "truncated ELF head");
        assert_eq!(
            why(&program(183, true, true, &[])),
            "ELF aarch64, image arch x86_64"
        );
        assert_eq!(
            why(&program(62, true, false, &[])),
            "a program, but not Slipway's os-agent"
        );
        let modern = check_agent(&program(62, true, true, &["2.38"]), Arch::X86_64).unwrap();
        let why = |glibc| check_glibc(&modern, glibc).unwrap_err();
        assert!(why(Some((2, 36))).starts_with("needs glibc 2.38, the image has 2.36"));
        assert!(why(None).contains("the image has none"));
    }
}
