//! The state directory: `state.json`, `slots/{A,B}.json` and `stage.journal`.

use crate::error::{AgentError, Result};
use crate::ports::{JournalStore, StateStore};
use crate::sys::atomic;
use crate::sys::journal::JournalFile;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::Slot;

/// A directory, possibly one that cannot be used right now.
#[derive(Debug, Clone)]
pub struct DirStore {
    dir: Utf8PathBuf,
    missing: Option<String>,
}

impl DirStore {
    /// Uses `dir`, creating it (mode 0700) where needed. When that fails, reading gives nothing and writing is refused.
    pub fn open(dir: &Utf8Path) -> DirStore {
        let made = make_dir(dir).and_then(|()| make_dir(&dir.join("slots")));
        DirStore {
            dir: dir.to_owned(),
            missing: made.err().map(|e| format!("{dir}: {e}")),
        }
    }

    /// A directory that is not there; `why` goes into every refusal.
    pub fn absent(dir: &Utf8Path, why: impl Into<String>) -> DirStore {
        DirStore {
            dir: dir.to_owned(),
            missing: Some(why.into()),
        }
    }

    /// An empty one that is not created: for looking at a disk without leaving a trace.
    pub fn empty(dir: &Utf8Path) -> DirStore {
        DirStore {
            dir: dir.to_owned(),
            missing: None,
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

    fn write(&self, path: &Utf8Path, text: &[u8]) -> Result<()> {
        if let Some(why) = &self.missing {
            return Err(AgentError::new(
                Code::StateWriteFailed,
                format!("cannot write {path}: {why}"),
            ));
        }
        atomic::replace(path, text, 0o600)
    }
}

fn make_dir(dir: &Utf8Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn read(path: &Utf8Path) -> std::result::Result<Option<Vec<u8>>, String> {
    match std::fs::read(path) {
        Ok(t) => Ok(Some(t)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{path}: {e}")),
    }
}

impl StateStore for DirStore {
    fn load(&self) -> std::result::Result<Option<Vec<u8>>, String> {
        read(&self.state())
    }

    fn save(&self, text: &[u8]) -> Result<()> {
        self.write(&self.state(), text)
    }

    fn load_record(&self, slot: Slot) -> std::result::Result<Option<Vec<u8>>, String> {
        read(&self.record(slot))
    }

    fn save_record(&self, slot: Slot, text: &[u8]) -> Result<()> {
        self.write(&self.record(slot), text)
    }

    fn keep_damaged(&self, text: &[u8]) {
        if let Err(e) = self.write(&self.dir.join("state.json.damaged"), text) {
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

        let file = Utf8Path::from_path(d.path()).unwrap().join("file");
        std::fs::write(&file, "").unwrap();
        let broken = DirStore::open(&file.join("below"));
        assert!(broken.missing().is_some());
        assert_eq!(broken.save(b"x").unwrap_err().code, Code::StateWriteFailed);
    }
}
