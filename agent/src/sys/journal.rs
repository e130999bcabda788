//! A journal as a file: replaced by rename, then only written behind what is durable.

use super::atomic;
use crate::error::{AgentError, Result};
use crate::ports::JournalStore;
use camino::Utf8PathBuf;
use os_proto::codes::Code;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// No journal is longer: a record of 32 bytes for every MiB of 16 TiB.
const MAX: u64 = 512 << 20;

/// The journal at a path.
#[derive(Debug)]
pub struct JournalFile {
    path: Utf8PathBuf,
    file: Option<File>,
}

impl JournalFile {
    /// Opened when it is needed.
    pub fn new(path: Utf8PathBuf) -> JournalFile {
        JournalFile { path, file: None }
    }

    fn fail(&self, what: &str, e: &std::io::Error) -> AgentError {
        AgentError::new(
            Code::StateWriteFailed,
            format!("cannot {what} {}: {e}", self.path),
        )
    }

    fn open(&mut self) -> Result<&File> {
        if self.file.is_none() {
            let f = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&self.path)
                .map_err(|e| self.fail("open", &e))?;
            self.file = Some(f);
        }
        self.file
            .as_ref()
            .ok_or_else(|| AgentError::new(Code::Internal, "journal"))
    }
}

impl JournalStore for JournalFile {
    fn read(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        match File::open(&self.path) {
            Ok(f) => {
                f.take(MAX)
                    .read_to_end(&mut out)
                    .map_err(|e| AgentError::new(Code::Internal, format!("{}: {e}", self.path)))?;
                Ok(out)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(out),
            Err(e) => Err(AgentError::new(Code::Internal, format!("{}: {e}", self.path))),
        }
    }

    fn reset(&mut self, header: &[u8], room: u64) -> Result<()> {
        self.file = None;
        atomic::replace(&self.path, header, 0o600)?;
        let end = header.len() as u64;
        let file = self.open()?;
        // A disk that fills up while the download runs must not end the journal. Some file systems cannot reserve.
        let reserved = match fallocate(file.as_fd(), FallocateFlags::empty(), 0, end + room) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => other.map_err(Into::into),
        };
        reserved
            .and_then(|()| file.sync_all())
            .map_err(|e| self.fail("reserve room for", &e))
    }

    fn append(&mut self, at: u64, records: &[u8]) -> Result<()> {
        let file = self.open()?;
        file.write_all_at(records, at)
            .and_then(|()| file.sync_data())
            .map_err(|e| self.fail("write", &e))
    }

    fn clear(&mut self) -> Result<()> {
        self.file = None;
        atomic::remove(&self.path)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_replaced_grows_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(dir.path().join("stage.journal")).unwrap();
        let mut j = JournalFile::new(path.clone());
        assert!(j.read().unwrap().is_empty());
        assert_eq!(j.append(0, b"x").unwrap_err().code, Code::StateWriteFailed);
        j.reset(b"head", 100).unwrap();
        j.append(4, b"one").unwrap();
        j.append(7, b"two").unwrap();
        let mut other = JournalFile::new(path.clone());
        let seen = other.read().unwrap();
        assert!(seen.starts_with(b"headonetwo") && seen.len() <= 104);
        other.append(10, b"three").unwrap();
        assert!(j.read().unwrap().starts_with(b"headonetwothree"));
        j.reset(b"new", 0).unwrap();
        assert_eq!(j.read().unwrap(), b"new");
        j.clear().unwrap();
        j.clear().unwrap();
        assert!(!path.exists());
        let mut nowhere = JournalFile::new(path.join("below"));
        assert_eq!(nowhere.reset(b"x", 1).unwrap_err().code, Code::StateWriteFailed);
    }
}
