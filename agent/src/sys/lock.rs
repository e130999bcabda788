//! Advisory locks (flock(2)) that end with the process, however it ends.

use crate::error::{AgentError, Result};
use camino::Utf8Path;
use os_proto::codes::Code;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A held exclusive lock; dropping it releases it.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock on `file` at once or not at all.
    ///
    /// # Errors
    /// `Busy` when another process holds it, `Internal` otherwise.
    pub fn on(file: File, name: &Utf8Path) -> Result<FileLock> {
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FileLock { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(AgentError::new(
                Code::Busy,
                format!("{name}: another process holds the lock; wait for it to end"),
            )),
            Err(e) => Err(AgentError::new(Code::Internal, format!("{name}: lock: {e}"))),
        }
    }

    /// Creates `path` where needed (mode 0600) and takes its lock at once or not at all.
    ///
    /// # Errors
    /// As [`FileLock::on`].
    pub fn try_exclusive(path: &Utf8Path) -> Result<FileLock> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|e| AgentError::new(Code::StateWriteFailed, format!("{path}: {e}")))?;
        FileLock::on(file, path)
    }

    /// The lock on the file that `file` is open on, shared by everything in this process: a disk image's slot and its
    /// environment are locked by the same process at the same time, while other processes stay out.
    ///
    /// # Errors
    /// As [`FileLock::on`].
    pub fn in_process(file: &File, name: &Utf8Path) -> Result<Arc<FileLock>> {
        static HELD: OnceLock<Mutex<HashMap<(u64, u64), Weak<FileLock>>>> = OnceLock::new();
        let io = |e: std::io::Error| AgentError::new(Code::Internal, format!("{name}: {e}"));
        let meta = file.metadata().map_err(io)?;
        let key = (meta.dev(), meta.ino());
        let mut held = HELD
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        held.retain(|_, w| w.strong_count() > 0);
        if let Some(lock) = held.get(&key).and_then(Weak::upgrade) {
            return Ok(lock);
        }
        // A descriptor of its own: the lock must outlive `file`. Reopened through /proc, so that it is the same file.
        let own = reopen(file).map_err(io)?;
        let lock = Arc::new(FileLock::on(own, name)?);
        held.insert(key, Arc::downgrade(&lock));
        Ok(lock)
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn reopen(file: &File) -> std::io::Result<File> {
    use std::os::fd::AsRawFd;
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_shared_inside_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("lock");
        let first = FileLock::try_exclusive(&path).unwrap();
        assert_eq!(FileLock::try_exclusive(&path).unwrap_err().code, Code::Busy);
        assert_eq!(
            FileLock::in_process(&File::open(&path).unwrap(), &path)
                .unwrap_err()
                .code,
            Code::Busy
        );
        drop(first);
        let a = FileLock::in_process(&File::open(&path).unwrap(), &path).unwrap();
        let b = FileLock::in_process(&File::open(&path).unwrap(), &path).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(FileLock::try_exclusive(&path).unwrap_err().code, Code::Busy);
        drop((a, b));
        FileLock::try_exclusive(&path).unwrap();
    }
}
