//! A small document that can be replaced on a full file system: its room is taken in advance.
//!
//! Two files of the same size exist, the live one and a spare. A write goes into the spare's blocks in place, is made
//! durable, and then the two change names (renameat2, RENAME_EXCHANGE). Nothing is allocated on the way, neither blocks nor
//! an inode nor a directory entry, and after any crash the live file holds the old content or the new, whole. The rest of
//! a file is spaces, which every JSON reader skips; a file never shrinks, because that would give its room away. A reserve
//! file that is deleted when room is needed would lose the race against whatever fills the disk.

use super::{replace, sync_dir};
use crate::error::{AgentError, Result};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use rustix::fs::{CWD, RenameFlags};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Sizes are multiples of this.
const STEP: usize = 4096;

/// Takes room for a document of `capacity` bytes and its next version, as far as there is some; content stays.
///
/// # Errors
/// Why not all of it could be had.
pub fn reserve(path: &Utf8Path, capacity: usize, mode: u32) -> std::io::Result<()> {
    take(&spare_of(path), capacity, mode)?;
    if is_there(path) {
        return Ok(());
    }
    // The first version will take the spare away for good, and the second one needs another.
    take(&second_of(path), capacity, mode)
}

/// Gives the room of a document that does not exist back.
pub fn release(path: &Utf8Path) {
    if !is_there(path) {
        let _ = std::fs::remove_file(spare_of(path));
        let _ = std::fs::remove_file(second_of(path));
    }
}

fn take(spare: &Utf8Path, capacity: usize, mode: u32) -> std::io::Result<()> {
    let mut f = open(spare, mode)?;
    extend(&mut f, capacity)?;
    f.sync_all()
}

fn is_there(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Replaces the document durably. `capacity` is the room that is kept for it; more content takes more while there is some.
///
/// # Errors
/// `StateWriteFailed`; the old content then still stands.
pub fn write(path: &Utf8Path, content: &[u8], capacity: usize, mode: u32) -> Result<()> {
    match exchange(path, content, capacity, mode) {
        Ok(()) => Ok(()),
        // A file system without exchange, or no spare and no room for one: the ordinary way may still work.
        Err(e) => replace(path, content, mode)
            .map_err(|_| AgentError::new(Code::StateWriteFailed, format!("cannot write {path}: {e}"))),
    }
}

/// The document's content without its padding; `None` = there is none.
///
/// # Errors
/// When it exists and cannot be read.
pub fn read(path: &Utf8Path) -> std::io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(mut t) => {
            t.truncate(used(&t));
            Ok(Some(t))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The content before the last write, which the spare still holds; `None` = there is none, or it cannot be read.
pub fn previous(path: &Utf8Path) -> Option<Vec<u8>> {
    read(&spare_of(path)).ok().flatten().filter(|t| !t.is_empty())
}

fn exchange(path: &Utf8Path, content: &[u8], capacity: usize, mode: u32) -> std::io::Result<()> {
    let (spare, second) = (spare_of(path), second_of(path));
    if is_there(path) && !is_there(&spare) && is_there(&second) {
        // A crash right after the first write.
        std::fs::rename(&second, &spare)?;
    }
    let mut f = open(&spare, mode)?;
    let mut old = Vec::new();
    f.read_to_end(&mut old)?;
    // Over whatever the spare held, in one piece, so that a torn spare is never mistaken for anything.
    let mut text = content.to_vec();
    text.resize(content.len().max(used(&old)), b' ');
    f.seek(SeekFrom::Start(0))?;
    f.write_all(&text)?;
    extend(&mut f, content.len())?;
    f.sync_all()?;
    drop(f);
    let dir = path.parent().unwrap_or(Utf8Path::new("."));
    if !is_there(path) {
        // The first time: the spare becomes the document.
        std::fs::rename(&spare, path)?;
        let _ = std::fs::rename(&second, &spare);
        sync_dir(dir)?;
        let _ = reserve(path, capacity, mode);
        return Ok(());
    }
    rustix::fs::renameat_with(CWD, spare.as_str(), CWD, path.as_str(), RenameFlags::EXCHANGE)?;
    sync_dir(dir)?;
    // What was live before may be from a time when no room was kept.
    if old_is_small(&spare, capacity) {
        let _ = reserve(path, capacity, mode);
    }
    Ok(())
}

fn old_is_small(spare: &Utf8Path, capacity: usize) -> bool {
    spare.symlink_metadata().is_ok_and(|m| m.len() < capacity as u64)
}

fn spare_of(path: &Utf8Path) -> Utf8PathBuf {
    path.with_file_name(format!(".{}.spare", path.file_name().unwrap_or_default()))
}

/// Room for the second version of a document that has no first one yet.
fn second_of(path: &Utf8Path) -> Utf8PathBuf {
    path.with_file_name(format!(".{}.second", path.file_name().unwrap_or_default()))
}

fn open(path: &Utf8Path, mode: u32) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// Fills with spaces up to a whole number of steps that holds `capacity`. Real bytes: a hole has no room.
fn extend(f: &mut File, capacity: usize) -> std::io::Result<()> {
    let have = usize::try_from(f.metadata()?.len()).unwrap_or(usize::MAX);
    let want = capacity.max(have).div_ceil(STEP) * STEP;
    if have < want {
        f.seek(SeekFrom::End(0))?;
        f.write_all(&vec![b' '; want - have])?;
    }
    Ok(())
}

/// Bytes before the padding.
fn used(text: &[u8]) -> usize {
    text.iter().rposition(|b| *b != b' ').map_or(0, |i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dir() -> (tempfile::TempDir, Utf8PathBuf) {
        let d = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(d.path()).unwrap().join("state.json");
        (d, path)
    }

    #[test]
    fn a_replacement_allocates_nothing() {
        use std::os::unix::fs::MetadataExt;
        let (_d, path) = dir();
        reserve(&path, 10_000, 0o600).unwrap();
        write(&path, b"{\"a\":1}\n", 10_000, 0o600).unwrap();
        write(&path, b"{\"b\":22}\n", 10_000, 0o600).unwrap();
        let facts = || {
            let mut m: Vec<(u64, u64, u64)> = [path.clone(), spare_of(&path)]
                .iter()
                .map(|p| p.metadata().unwrap())
                .map(|m| (m.ino(), m.blocks(), m.len()))
                .collect();
            m.sort_unstable();
            m
        };
        let before = facts();
        for i in 0..20 {
            let text = format!("{{\"n\":{}}}\n", "9".repeat(i * 100));
            write(&path, text.as_bytes(), 10_000, 0o600).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), text.as_bytes());
            let json: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap_or_default();
            assert!(i > 0 || json.is_null() || json.is_object());
        }
        assert_eq!(facts(), before, "the same two inodes with the same room");
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_document_of_before_is_taken_over_and_one_that_outgrows_its_room_is_whole() {
        let (_d, path) = dir();
        std::fs::write(&path, b"{\"old\":true}\n").unwrap();
        write(&path, b"{}\n", 8192, 0o600).unwrap();
        assert!(
            !old_is_small(&spare_of(&path), 8192),
            "room for the next one was taken"
        );
        let big = format!("\"{}\"", "x".repeat(50_000));
        write(&path, big.as_bytes(), 8192, 0o600).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), big.as_bytes());
        write(&path, b"1", 8192, 0o600).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"1");
        assert_eq!(read(&path.with_file_name("none")).unwrap(), None);
    }

    #[test]
    fn room_is_taken_for_the_first_version_and_the_second_before_there_is_any() {
        let (_d, path) = dir();
        let names = || {
            let mut n: Vec<String> = path
                .parent()
                .unwrap()
                .read_dir_utf8()
                .unwrap()
                .map(|e| e.unwrap().file_name().to_owned())
                .collect();
            n.sort();
            n
        };
        reserve(&path, 10_000, 0o600).unwrap();
        assert_eq!(read(&path).unwrap(), None, "room is no document");
        assert_eq!(names(), [".state.json.second", ".state.json.spare"]);
        write(&path, b"1", 10_000, 0o600).unwrap();
        assert_eq!(names(), [".state.json.spare", "state.json"]);
        for f in [&path, &spare_of(&path)] {
            assert!(f.metadata().unwrap().len() >= 10_000);
        }
        // A crash between the two renames of the first write.
        std::fs::rename(spare_of(&path), second_of(&path)).unwrap();
        write(&path, b"2", 10_000, 0o600).unwrap();
        assert_eq!(names(), [".state.json.spare", "state.json"]);
        release(&path);
        assert_eq!(
            names(),
            [".state.json.spare", "state.json"],
            "a document keeps its room"
        );
        std::fs::remove_file(&path).unwrap();
        release(&path);
        assert!(names().is_empty());
    }

    #[test]
    fn a_file_system_that_refuses_keeps_the_old_content() {
        let (d, path) = dir();
        let e = write(&path.with_file_name("gone").join("x"), b"1", 100, 0o600).unwrap_err();
        assert_eq!(e.code, Code::StateWriteFailed);
        drop(d);
    }

    /// A small ext4 in a loop mount without one free block or inode.
    #[test]
    #[ignore = "needs root and a loop mount: tests/run image"]
    fn a_full_file_system_still_takes_it() {
        let d = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(d.path()).unwrap();
        let (image, at) = (root.join("fs.img"), root.join("mnt"));
        std::fs::create_dir(&at).unwrap();
        let run = |argv: &[&str]| {
            let s = std::process::Command::new(argv[0])
                .args(&argv[1..])
                .status()
                .unwrap();
            assert!(s.success(), "{argv:?}");
        };
        run(&["truncate", "-s", "16M", image.as_str()]);
        run(&["mke2fs", "-q", "-F", "-t", "ext4", "-N", "64", image.as_str()]);
        run(&["mount", "-o", "loop", image.as_str(), at.as_str()]);
        let undo = Unmount(at.clone());
        let path = at.join("state.json");
        reserve(&path, 65_536, 0o600).unwrap();
        let mut n = 0;
        while std::fs::write(at.join(format!("f{n}")), b"").is_ok() {
            n += 1;
        }
        let mut hog = std::fs::OpenOptions::new()
            .append(true)
            .open(at.join("f0"))
            .unwrap();
        let block = vec![1u8; 4096];
        while hog.write_all(&block).and_then(|()| hog.sync_data()).is_ok() {}
        assert!(std::fs::write(at.join("one-more"), b"x").is_err());
        for i in 0..50 {
            let text = format!("{{\"n\":{i},\"x\":\"{}\"}}\n", "y".repeat(i * 1000));
            write(&path, text.as_bytes(), 65_536, 0o600).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), text.as_bytes());
        }
        drop(hog);
        drop(undo);
    }

    struct Unmount(Utf8PathBuf);

    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(&self.0).status();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn the_last_write_is_read(sizes in proptest::collection::vec(0usize..20_000, 1..8)) {
            let (_d, path) = dir();
            for (i, n) in sizes.iter().enumerate() {
                let text = vec![b'a' + (i % 26) as u8; *n];
                write(&path, &text, 4096, 0o600).unwrap();
                prop_assert_eq!(read(&path).unwrap().unwrap(), text);
            }
        }
    }
}
