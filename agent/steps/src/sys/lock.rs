//! The runner's lock: one run at a time on a node. It ends with the process, however it ends.

use crate::error::{Result, StepsError};
use camino::Utf8Path;
use os_proto::codes::Code;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;

/// The held lock.
#[derive(Debug)]
pub struct RunLock(File);

impl Drop for RunLock {
    fn drop(&mut self) {
        // Not by closing alone: a child that is just being started holds a copy until it becomes another program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl RunLock {
    /// Takes the lock in `dir` at once or not at all.
    ///
    /// # Errors
    /// `Busy` while another run holds it.
    pub fn take(dir: &Utf8Path) -> Result<RunLock> {
        let path = dir.join("lock");
        let file = super::atomic::append(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(RunLock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StepsError::new(
                Code::Busy,
                format!("{path}: a run is going on; see `os-agent steps status`"),
            )),
            Err(e) => Err(StepsError::new(Code::Internal, format!("{path}: lock: {e}"))),
        }
    }
}
