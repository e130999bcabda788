//! Reads kernel panic records out of pstore and archives them, so that the firmware's small memory is free for the next.

use crate::evidence::{self, Panic, PstoreFile, Record};
use crate::sys::atomic;
use camino::{Utf8Path, Utf8PathBuf};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// Where the kernel shows them, and where systemd-pstore moves them.
pub(super) const DIRS: [&str; 2] = ["/sys/fs/pstore", "/var/lib/systemd/pstore"];
/// The kernel's own directory: a file that is removed there is freed in the firmware.
const KERNEL: &str = "/sys/fs/pstore";
/// Archived logs that are kept; also what tells a record that was seen from a new one.
const KEPT: usize = 64;
/// Files looked at, and bytes read of one.
const FILES: usize = 4096;
const FILE_BYTES: u64 = 128 << 10;

/// The newest panic that is not in `archive` yet. Everything found is archived there, and then removed from the kernel's
/// directory. Without an archive nothing is removed and everything counts as new.
pub(super) fn newest(dirs: &[Utf8PathBuf], archive: Option<&Utf8Path>) -> Option<Panic> {
    let records = evidence::records(dirs.iter().flat_map(|d| files(d)).collect());
    let mut newest = None;
    for r in records {
        let seen = archive.is_some_and(|a| seen(a, &r.id));
        if !seen && let Some(p) = Panic::of_log(&r.log, r.at_unix) {
            tracing::warn!(reason = p.reason, "the kernel panicked in an earlier boot");
            newest = Some(p);
        }
        if let Some(a) = archive
            && (seen || keep(a, &r))
        {
            forget(&r);
        }
    }
    if let Some(a) = archive {
        prune(a);
    }
    newest
}

fn files(dir: &Utf8Path) -> Vec<PstoreFile> {
    let mut out = Vec::new();
    let mut todo = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = todo.pop() {
        for e in dir.read_dir_utf8().into_iter().flatten().flatten() {
            let Ok(meta) = e.metadata() else { continue };
            if meta.is_dir() && depth < 3 {
                todo.push((e.path().to_owned(), depth + 1));
            } else if meta.is_file() && e.file_name().starts_with("dmesg-") && out.len() < FILES {
                let mut bytes = Vec::new();
                let read =
                    std::fs::File::open(e.path()).and_then(|f| f.take(FILE_BYTES).read_to_end(&mut bytes));
                if read.is_ok() {
                    out.push(PstoreFile {
                        name: e.file_name().to_owned(),
                        dir: dir.to_string(),
                        text: String::from_utf8_lossy(&bytes).into_owned(),
                        at_unix: meta.mtime(),
                    });
                }
            }
        }
    }
    out
}

fn seen(archive: &Utf8Path, id: &str) -> bool {
    let end = format!("-{id}.log");
    let mut names = archive.read_dir_utf8().into_iter().flatten().flatten();
    names.any(|e| e.file_name().ends_with(&end))
}

fn keep(archive: &Utf8Path, r: &Record) -> bool {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(archive);
    let path = archive.join(format!("{:011}-{}.log", r.at_unix.max(0), r.id));
    let kept = made
        .map_err(|e| e.to_string())
        .and_then(|()| atomic::replace(&path, r.log.as_bytes(), 0o600).map_err(|e| e.to_string()));
    if let Err(why) = &kept {
        tracing::warn!(why, "a panic record could not be archived");
    }
    kept.is_ok()
}

fn forget(r: &Record) {
    for (dir, name) in r
        .files
        .iter()
        .filter(|(d, _)| Utf8Path::new(d).starts_with(KERNEL))
    {
        if let Err(e) = std::fs::remove_file(Utf8Path::new(dir).join(name)) {
            tracing::warn!(%e, name, "pstore");
        }
    }
}

/// Names begin with the time.
fn prune(archive: &Utf8Path) {
    let mut names: Vec<Utf8PathBuf> = archive
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path().to_owned())
        .collect();
    names.sort();
    let over = names.len().saturating_sub(KEPT);
    for old in names.into_iter().take(over) {
        let _ = std::fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    fn put(dir: &Utf8Path, name: &str, reason: &str) {
        std::fs::create_dir_all(dir).unwrap();
        let text = format!("Panic#1 Part1\n<0>[ 1.0] Kernel panic - not syncing: {reason}\n");
        std::fs::write(dir.join(name), text).unwrap();
    }

    #[test]
    fn a_record_is_new_once_wherever_systemd_moves_it() {
        let d = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(d.path()).unwrap();
        let dirs = [root.join("sys"), root.join("moved")];
        let archive = root.join("panics");
        put(&dirs[0], "dmesg-efi_pstore-167000000001001", "one");
        let look = || newest(&dirs, Some(&archive)).map(|p| p.reason);
        assert_eq!(look().as_deref(), Some("Kernel panic - not syncing: one"));
        assert_eq!(look(), None, "archived");
        let to = dirs[1].join("1670000000/001");
        std::fs::create_dir_all(&to).unwrap();
        let name = "dmesg-efi_pstore-167000000001001";
        std::fs::rename(dirs[0].join(name), to.join(name)).unwrap();
        assert_eq!(look(), None, "moved, not new");
        put(&to, "dmesg-efi_pstore-167000000101001", "two");
        assert_eq!(look().as_deref(), Some("Kernel panic - not syncing: two"));
        assert_eq!(archive.read_dir().unwrap().count(), 2);
        // No archive: everything counts, nothing is touched.
        assert!(newest(&dirs, None).is_some());
    }

    #[test]
    fn the_archive_is_bounded() {
        let d = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(d.path()).unwrap();
        let (dir, archive) = (root.join("sys"), root.join("panics"));
        for i in 0..KEPT + 9 {
            put(&dir, &format!("dmesg-ramoops-{i}"), &format!("number {i}"));
        }
        assert!(newest(&[dir], Some(&archive)).is_some());
        assert_eq!(archive.read_dir().unwrap().count(), KEPT);
    }
}
