//! Hashes a payload file beside its unpacking.

use crate::error::{AgentError, Result};
use bytes::Bytes;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use sha2::{Digest, Sha256};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Pieces that wait to be hashed; each has at most 1 MiB.
const WAITING: usize = 3;

pub(super) struct Tap {
    sender: Option<SyncSender<Bytes>>,
    thread: JoinHandle<Sha256>,
}

impl Tap {
    pub(super) fn start() -> Tap {
        let (sender, receiver) = sync_channel::<Bytes>(WAITING);
        let thread = std::thread::spawn(move || {
            let mut sha = Sha256::new();
            for b in receiver {
                sha.update(&b);
            }
            sha
        });
        Tap {
            sender: Some(sender),
            thread,
        }
    }

    pub(super) fn feed(&mut self, bytes: Bytes) {
        // The receiver goes only with its thread, and that is noticed in `finish`.
        if let Some(s) = &self.sender {
            let _ = s.send(bytes);
        }
    }

    pub(super) fn finish(mut self) -> Result<Sha256Digest> {
        self.sender = None;
        let sha = self
            .thread
            .join()
            .map_err(|_| AgentError::new(Code::Internal, "the hashing thread died"))?;
        Ok(Sha256Digest(sha.finalize().into()))
    }
}
