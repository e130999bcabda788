//! The runner's lock: one run at a time on a node. It ends with the process, however it ends.
//!
//! A record lock and not flock: a child that is being started has copies of our descriptors until it becomes another
//! program, and with flock such a child of a killed runner would hold the lock for a moment longer.

use crate::error::{Result, StepsError};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks of this process: a record lock neither excludes threads of one process nor survives the closing of any descriptor
/// of its file, so no file whose lock we hold is opened a second time.
static HELD: Mutex<BTreeSet<Utf8PathBuf>> = Mutex::new(BTreeSet::new());

fn held() -> MutexGuard<'static, BTreeSet<Utf8PathBuf>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path(dir: &Utf8Path) -> Utf8PathBuf {
    dir.canonicalize_utf8()
        .unwrap_or_else(|_| dir.to_owned())
        .join("lock")
}

/// The held lock.
#[derive(Debug)]
pub struct RunLock {
    path: Utf8PathBuf,
    file: Option<File>,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        let mut held = held();
        // Closed before anybody of this process may open it again.
        drop(self.file.take());
        held.remove(&self.path);
    }
}

impl RunLock {
    /// Takes the lock in `dir` at once or not at all.
    ///
    /// # Errors
    /// `Busy` while another run holds it.
    pub fn take(dir: &Utf8Path) -> Result<RunLock> {
        let path = path(dir);
        let busy = || {
            StepsError::new(
                Code::Busy,
                format!("{path}: a run is going on; see `os-agent steps status`"),
            )
        };
        let mut held = held();
        if held.contains(&path) {
            return Err(busy());
        }
        let file = super::atomic::append(&path)?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                held.insert(path.clone());
                Ok(RunLock {
                    path,
                    file: Some(file),
                })
            }
            Err(Errno::AGAIN | Errno::ACCESS) => Err(busy()),
            Err(e) => Err(StepsError::new(Code::Internal, format!("{path}: lock: {e}"))),
        }
    }

    /// Whether somebody holds the lock in `dir`; takes nothing, so that looking never refuses a run.
    pub fn is_held(dir: &Utf8Path) -> bool {
        let path = path(dir);
        let held = held();
        held.contains(&path)
            || File::open(&path).is_ok_and(|f| {
                fcntl_getlk(&f, &Flock::from(FlockType::WriteLock)).is_ok_and(|holder| holder.is_some())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Place;

    #[test]
    fn held_once_and_free_after_its_end() {
        let p = Place::new();
        let dir = p.root.as_path();
        assert!(!RunLock::is_held(dir));
        let lock = RunLock::take(dir).unwrap();
        assert!(RunLock::is_held(dir));
        assert_eq!(RunLock::take(dir).unwrap_err().code, Code::Busy);
        // Neither the look nor the refusal let it go.
        assert!(RunLock::is_held(dir));
        drop(lock);
        assert!(!RunLock::is_held(dir));
        RunLock::take(dir).unwrap();
    }
}
