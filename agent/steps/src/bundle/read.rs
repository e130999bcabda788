//! Reading directories and archives, bounded.

use super::{Files, MAX_BUNDLE_BYTES};
use crate::error::{Result, StepsError};
use camino::Utf8Path;
use std::io::Read;

/// Most entries of an archive or directory that are looked at.
const MAX_ENTRIES: usize = 5000;
/// What a person who names a bundle may name.
const EXPECTED: &str = "a bundle: a directory, an archive, a NodeGroupBundle as JSON, or at least 12 digits of a stored one's hash";

fn bad(what: &str, e: &std::io::Error) -> StepsError {
    StepsError::bundle(format!("{what}: {e}"))
}

/// A whole file, not larger than a bundle may be.
pub(super) fn bounded(path: &Utf8Path) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).map_err(|e| StepsError::named(path, EXPECTED, &e))?;
    take(file).map_err(|e| bad(path.as_str(), &e))
}

/// Reads to the end or fails above the limit.
fn take(r: impl Read) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    let limit = MAX_BUNDLE_BYTES * 2;
    r.take(limit + 1).read_to_end(&mut data)?;
    if data.len() as u64 > limit {
        return Err(std::io::Error::other(format!("larger than {limit} bytes")));
    }
    Ok(data)
}

/// Reads the bundle files of a directory; links and special files are refused.
///
/// # Errors
/// `BundleInvalid`; `InvalidArgument` when it is not there.
pub fn from_dir(dir: &Utf8Path) -> Result<Files> {
    let mut files = Files::default();
    let mut left = MAX_ENTRIES;
    let has_steps = dir.join("steps").is_dir();
    for (sub, prefix) in [("", ""), ("steps", "steps/"), ("lib", "lib/")] {
        let here = dir.join(sub);
        let list = match here.read_dir_utf8() {
            Ok(l) => l,
            Err(e) if !sub.is_empty() && e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(StepsError::named(&here, EXPECTED, &e)),
        };
        for e in list {
            let e = e.map_err(|e| bad(here.as_str(), &e))?;
            left = left
                .checked_sub(1)
                .ok_or_else(|| StepsError::bundle(format!("{dir}: more than {MAX_ENTRIES} files")))?;
            let kind = e.file_type().map_err(|x| bad(e.path().as_str(), &x))?;
            let name = format!("{prefix}{}", e.file_name());
            if kind.is_file() {
                if wanted(&name) && !(has_steps && sub.is_empty() && name.ends_with(".sh")) {
                    files.add(&name, bounded(e.path())?)?;
                }
            } else if !kind.is_dir() && wanted(&name) {
                return Err(StepsError::bundle(format!(
                    "{}: neither a file nor a directory: links are not followed",
                    e.path()
                )));
            }
        }
    }
    Ok(files)
}

fn wanted(name: &str) -> bool {
    name.starts_with("steps/") || name.ends_with(".sh") || name.starts_with("manifest.json")
}

/// Reads a tar, plain or compressed with gzip or zstd.
///
/// # Errors
/// `BundleInvalid`.
pub fn from_tar(data: &[u8]) -> Result<Files> {
    let plain;
    let tar: &[u8] = match data {
        [0x1f, 0x8b, ..] => {
            plain = take(flate2::read::GzDecoder::new(data)).map_err(|e| bad("gzip", &e))?;
            &plain
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            plain = zstd::stream::read::Decoder::new(data)
                .and_then(take)
                .map_err(|e| bad("zstd", &e))?;
            &plain
        }
        _ => data,
    };
    let mut files = Files::default();
    let mut archive = tar::Archive::new(tar);
    let entries = archive
        .entries()
        .map_err(|e| bad("not a tar archive, nor a NodeGroupBundle", &e))?;
    for (i, e) in entries.enumerate() {
        if i >= MAX_ENTRIES {
            return Err(StepsError::bundle(format!("more than {MAX_ENTRIES} files")));
        }
        let mut e = e.map_err(|e| bad("not a whole tar archive", &e))?;
        let raw = e.path_bytes().into_owned();
        let name = String::from_utf8(raw)
            .map_err(|e| StepsError::bundle(format!("{:?}: not UTF-8", e.into_bytes())))?;
        let kind = e.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            continue;
        }
        if !kind.is_file() {
            return Err(StepsError::bundle(format!(
                "{name:?}: neither a file nor a directory: links are not followed"
            )));
        }
        let data = take(&mut e).map_err(|e| bad(&name, &e))?;
        files.add(&name, data)?;
    }
    Ok(files)
}

/// Reads an archive file.
///
/// # Errors
/// As [`from_tar`].
pub fn from_file(path: &Utf8Path) -> Result<Files> {
    from_tar(&bounded(path)?)
}
