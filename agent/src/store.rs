//! The state directory: `state.json`, `slots/{A,B}.json` and `stage.journal`.

use crate::error::{AgentError, Result};
use crate::evidence::{self, Sign};
use crate::ports::{JournalStore, StateStore};
use crate::sys::atomic::{self, document};
use crate::sys::journal::JournalFile;
use crate::sys::space;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::Slot;

/// Room kept for state.json: more than [`crate::state::MAX_OPERATIONS`] of them take.
const STATE_ROOM: usize = 512 << 10;
/// Room that an offline disk's state.json starts with; its log is short.
const OFFLINE_ROOM: usize = 64 << 10;
/// Room kept for a slot's record and other small documents.
const RECORD_ROOM: usize = 8 << 10;
const PRIVATE: u32 = 0o600;
/// A trial needs this beside the copy of /etc: directories, journals, signs of life.
const TRIAL_SLACK: u64 = 2 << 20;
const TRIAL_INODES: u64 = 64;

/// A directory, possibly one that cannot be used right now.
#[derive(Debug, Clone)]
pub struct DirStore {
    dir: Utf8PathBuf,
    missing: Option<String>,
    /// Kept for state.json.
    room: usize,
}

impl DirStore {
    /// Uses `dir`, creating it (mode 0700) where needed. When that fails, reading gives nothing and writing is refused.
    pub fn open(dir: &Utf8Path) -> DirStore {
        let made = make_dir(dir).and_then(|()| make_dir(&dir.join("slots")));
        DirStore {
            dir: dir.to_owned(),
            missing: made.err().map(|e| format!("{dir}: {e}")),
            room: STATE_ROOM,
        }
    }

    /// Takes room for every document, so that they can be written when nothing else can. A file system that accepts no
    /// write at all counts as missing; what it holds is read all the same.
    pub fn with_room(mut self) -> DirStore {
        if self.missing.is_none() {
            self.missing = self.reserve().err().map(|e| format!("{}: {e}", self.dir));
        }
        self
    }

    /// As [`DirStore::with_room`] for a disk that does not run: where there is no room for all of it nothing is kept, and the
    /// directory counts as missing. Nobody waits for an offline disk, so it is better not to begin.
    pub fn with_all_room(mut self) -> DirStore {
        self.room = OFFLINE_ROOM;
        if self.missing.is_none() {
            let documents = self.documents();
            let taken = documents
                .iter()
                .try_for_each(|(path, room)| document::reserve(path, *room, PRIVATE));
            if let Err(e) = taken {
                documents.iter().for_each(|(path, _)| document::release(path));
                self.missing = Some(format!("{}: {e}", self.dir));
            }
        }
        self
    }

    /// Documents that must be writable when nothing else is, with the room that each needs.
    fn documents(&self) -> [(Utf8PathBuf, usize); 4] {
        [
            (self.state(), self.room),
            (self.record(Slot::A), RECORD_ROOM),
            (self.record(Slot::B), RECORD_ROOM),
            (self.keep_etc(), RECORD_ROOM),
        ]
    }

    fn reserve(&self) -> std::io::Result<()> {
        for (path, room) in self.documents() {
            match document::reserve(&path, room, PRIVATE) {
                Err(e) if e.kind() == std::io::ErrorKind::ReadOnlyFilesystem => return Err(e),
                Err(e) => tracing::warn!(%path, %e, "no room could be kept for it"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Which slot keeps its own /etc in its trial; read by the initramfs.
    fn keep_etc(&self) -> Utf8PathBuf {
        self.dir.join("etc-keep")
    }

    /// Written by the initramfs and by the units that end a trial.
    fn sign_file(&self) -> Utf8PathBuf {
        self.dir.join("trial-signs")
    }

    /// A directory that is not there; `why` goes into every refusal.
    pub fn absent(dir: &Utf8Path, why: impl Into<String>) -> DirStore {
        DirStore {
            dir: dir.to_owned(),
            missing: Some(why.into()),
            room: STATE_ROOM,
        }
    }

    /// For looking only: nothing is created and no room is taken, so that looking leaves no trace. A directory that is not there
    /// is empty; one where this user can write nothing counts as missing, as it would for a writer.
    pub fn look(dir: &Utf8Path) -> DirStore {
        let closed = dir.ancestors().find(|d| d.exists()).and_then(space::closed);
        DirStore {
            dir: dir.to_owned(),
            missing: closed.map(|e| format!("{dir}: {e}")),
            room: STATE_ROOM,
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    fn state(&self) -> Utf8PathBuf {
        self.dir.join("state.json")
    }

    fn record(&self, slot: Slot) -> Utf8PathBuf {
        self.dir.join("slots").join(format!("{slot}.json"))
    }

    fn write(&self, path: &Utf8Path, text: &[u8], room: usize) -> Result<()> {
        if let Some(why) = &self.missing {
            return Err(AgentError::new(
                Code::StateWriteFailed,
                format!("cannot write {path}: {why}"),
            ));
        }
        document::write(path, text, room, PRIVATE)
    }
}

fn make_dir(dir: &Utf8Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn read(path: &Utf8Path) -> std::result::Result<Option<Vec<u8>>, String> {
    document::read(path).map_err(|e| format!("{path}: {e}"))
}

impl StateStore for DirStore {
    fn load(&self) -> std::result::Result<Option<Vec<u8>>, String> {
        read(&self.state())
    }

    fn load_previous(&self) -> Option<Vec<u8>> {
        document::previous(&self.state())
    }

    fn save(&self, text: &[u8]) -> Result<()> {
        self.write(&self.state(), text, self.room)
    }

    fn load_record(&self, slot: Slot) -> std::result::Result<Option<Vec<u8>>, String> {
        read(&self.record(slot))
    }

    fn save_record(&self, slot: Slot, text: &[u8]) -> Result<()> {
        self.write(&self.record(slot), text, RECORD_ROOM)
    }

    fn keep_damaged(&self, text: &[u8]) {
        if self.missing.is_some() {
            return;
        }
        if let Err(e) = atomic::replace(&self.dir.join("state.json.damaged"), text, PRIVATE) {
            tracing::warn!(%e, "the damaged state could not be kept");
        }
    }

    fn missing(&self) -> Option<String> {
        self.missing.clone()
    }

    fn journal(&self) -> Option<Box<dyn JournalStore>> {
        self.missing
            .is_none()
            .then(|| Box::new(JournalFile::new(self.dir.join("stage.journal"))) as Box<dyn JournalStore>)
    }

    fn prepare_trial(&self, keep_etc: Option<Slot>) -> Result<()> {
        let word = keep_etc.map_or("-", Slot::letter);
        self.write(&self.keep_etc(), format!("{word}\n").as_bytes(), RECORD_ROOM)?;
        atomic::remove(&self.sign_file())
    }

    fn signs(&self) -> Vec<Sign> {
        let text = std::fs::read(self.sign_file()).unwrap_or_default();
        evidence::signs(&String::from_utf8_lossy(&text))
    }

    fn room_for_trial(&self) -> Result<()> {
        let Some(layers) = self.dir.parent().map(|p| p.join("etc")).filter(|p| p.is_dir()) else {
            return Ok(());
        };
        let Ok(free) = space::free(&layers) else {
            return Ok(());
        };
        let (bytes, inodes) = [Slot::A, Slot::B]
            .map(|s| space::used(&layers.join(s.letter())))
            .into_iter()
            .fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        if free.bytes >= bytes + TRIAL_SLACK && free.inodes >= inodes + TRIAL_INODES {
            return Ok(());
        }
        Err(AgentError::new(
            Code::StateWriteFailed,
            format!(
                "PERSIST is full: {} KiB and {} inodes are free, a trial's copy of /etc needs {} KiB and {}: make room first",
                free.bytes >> 10,
                free.inodes,
                (bytes + TRIAL_SLACK) >> 10,
                inodes + TRIAL_INODES
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_a_missing_directory_refuses() {
        let d = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(d.path()).unwrap().join("a/b");
        let s = DirStore::open(&dir);
        assert_eq!(s.load().unwrap(), None);
        s.save(b"x").unwrap();
        s.save_record(Slot::B, b"y").unwrap();
        let again = DirStore::open(&dir);
        assert_eq!(again.load().unwrap().unwrap(), b"x");
        assert_eq!(again.load_record(Slot::B).unwrap().unwrap(), b"y");
        assert_eq!(again.load_record(Slot::A).unwrap(), None);

        // Word for the initramfs; signs of life start over.
        std::fs::write(dir.join("trial-signs"), "b1 4 initramfs\n").unwrap();
        assert_eq!(again.signs().len(), 1);
        again.prepare_trial(Some(Slot::A)).unwrap();
        assert!(again.signs().is_empty());
        let word = std::fs::read_to_string(dir.join("etc-keep")).unwrap();
        assert_eq!(word.split_whitespace().collect::<Vec<_>>(), ["A"]);
        again.prepare_trial(None).unwrap();
        assert!(
            std::fs::read_to_string(dir.join("etc-keep"))
                .unwrap()
                .starts_with("-\n")
        );
        again.room_for_trial().unwrap();

        let file = Utf8Path::from_path(d.path()).unwrap().join("file");
        std::fs::write(&file, "").unwrap();
        let broken = DirStore::open(&file.join("below"));
        assert!(broken.missing().is_some());
        assert_eq!(broken.save(b"x").unwrap_err().code, Code::StateWriteFailed);
    }
}
