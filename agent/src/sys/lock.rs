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
use std::time::Duration;

/// What this process holds, by device and inode.
type Held<K, T> = OnceLock<Mutex<HashMap<K, Weak<T>>>>;

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

    /// Takes the lock on `file`, waiting up to `patience`.
    #[allow(clippy::disallowed_methods)] // a bounded wait for another process, before any work that could be cancelled
    fn patient(file: File, name: &Utf8Path, patience: Duration) -> Result<FileLock> {
        const STEP: Duration = Duration::from_millis(50);
        let mut waited = Duration::ZERO;
        loop {
            match FileLock::on(file.try_clone().map_err(|e| internal(name, &e))?, name) {
                Err(e) if e.code == Code::Busy && waited < patience => std::thread::sleep(STEP),
                other => return other,
            }
            waited += STEP;
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
    /// environment are locked by the same process at the same time, while other processes stay out. Waits up to `patience`
    /// for another process: udev holds a disk's lock for a moment while it looks at it.
    ///
    /// # Errors
    /// As [`FileLock::on`].
    pub fn in_process(file: &File, name: &Utf8Path, patience: Duration) -> Result<Arc<FileLock>> {
        static HELD: Held<(u64, u64), FileLock> = OnceLock::new();
        let meta = file.metadata().map_err(|e| internal(name, &e))?;
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
        let own = reopen(file).map_err(|e| internal(name, &e))?;
        let lock = Arc::new(FileLock::patient(own, name, patience)?);
        held.insert(key, Arc::downgrade(&lock));
        Ok(lock)
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// An exclusive claim on a block device (O_EXCL): nobody can mount it, swap on it or stack anything on it meanwhile.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

impl Claim {
    /// The claim on the device numbered `rdev`, shared by everything in this process: the slot that is staged may be staged
    /// anew while the proof of the old content still exists. `open` opens the device with O_EXCL.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn on(rdev: u64, open: impl FnOnce() -> Result<File>) -> Result<Arc<Claim>> {
        static HELD: Held<u64, Claim> = OnceLock::new();
        let mut held = HELD
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        held.retain(|_, w| w.strong_count() > 0);
        if let Some(claim) = held.get(&rdev).and_then(Weak::upgrade) {
            return Ok(claim);
        }
        let claim = Arc::new(Claim { _file: open()? });
        held.insert(rdev, Arc::downgrade(&claim));
        Ok(claim)
    }
}

fn internal(name: &Utf8Path, e: &std::io::Error) -> AgentError {
    AgentError::new(Code::Internal, format!("{name}: {e}"))
}

fn reopen(file: &File) -> std::io::Result<File> {
    use std::os::fd::AsRawFd;
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_taken_once_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dev");
        std::fs::write(&path, "").unwrap();
        let open = || Ok(File::open(&path).unwrap());
        let refuse = || Err(AgentError::new(Code::SlotBusy, "taken"));
        let a = Claim::on(u64::MAX, open).unwrap();
        let b = Claim::on(u64::MAX, refuse).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        drop((a, b));
        assert_eq!(Claim::on(u64::MAX, refuse).unwrap_err().code, Code::SlotBusy);
    }

    #[test]
    fn one_holder_at_a_time_and_shared_inside_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("lock");
        let first = FileLock::try_exclusive(&path).unwrap();
        assert_eq!(FileLock::try_exclusive(&path).unwrap_err().code, Code::Busy);
        assert_eq!(
            FileLock::in_process(&File::open(&path).unwrap(), &path, Duration::from_millis(60))
                .unwrap_err()
                .code,
            Code::Busy
        );
        drop(first);
        let a = FileLock::in_process(&File::open(&path).unwrap(), &path, Duration::ZERO).unwrap();
        let b = FileLock::in_process(&File::open(&path).unwrap(), &path, Duration::ZERO).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(FileLock::try_exclusive(&path).unwrap_err().code, Code::Busy);
        drop((a, b));
        FileLock::try_exclusive(&path).unwrap();
    }
}
