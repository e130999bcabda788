//! The producing end of the pipeline: an image as it comes, or an archive that becomes one. A thread of its own: after an error
//! elsewhere it ends with its next buffer, and until then it may wait for the network, which nobody needs to wait for.

use super::{BLOCK, CHUNK, Chunk, too_small};
use crate::error::{AgentError, Result};
use crate::payload::{End, Payload};
use crate::ports::Report;
use crate::rootfs::ext4::Plan;
use crate::rootfs::tree::Tree;
use crate::rootfs::{self, Out};
use crate::sys::buf::AlignedBuf;
use os_proto::codes::Code;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// Where buffers come from and chunks go.
pub(super) struct Lanes {
    pub(super) free: Receiver<AlignedBuf>,
    pub(super) out: SyncSender<Chunk>,
    pub(super) slot_size: u64,
    pub(super) report: Arc<dyn Report>,
}

/// Passes an image on, from chunk `next` and byte `size` on.
///
/// # Errors
/// The payload's; `SlotTooSmall`.
pub(super) fn image(mut payload: Payload, (next, mut size): (u64, u64), lanes: &Lanes) -> Result<End> {
    for (index, mut buf) in (next..).zip(&lanes.free) {
        let len = payload.fill(&mut buf)?;
        if len == 0 {
            break;
        }
        size += len as u64;
        if size > lanes.slot_size {
            return Err(too_small(payload.describe(), size, lanes.slot_size));
        }
        if let Some(pad) = buf.get_mut(len..len.next_multiple_of(BLOCK)) {
            pad.fill(0);
        }
        lanes.report.done(payload.position());
        if lanes.out.send(Chunk::new(index, buf, len)).is_err() || len < CHUNK {
            break;
        }
    }
    payload.finish()
}

/// Builds a file system from an archive: its first chunk goes last.
///
/// # Errors
/// Those of [`rootfs::build`].
pub(super) fn archive(mut payload: Payload, plan: Plan, lanes: Lanes) -> Result<(End, Option<Tree>)> {
    let name = payload.describe().to_owned();
    let report = Arc::clone(&lanes.report);
    let mut chunks = Chunks {
        first: lanes.free.recv().map_err(|_| stopped())?,
        current: None,
        pos: u64::from(plan.front()) * BLOCK as u64,
        name: name.clone(),
        lanes,
    };
    let reader = Reporting {
        payload: &mut payload,
        report: &*report,
    };
    let built = rootfs::build(reader, &name, plan, &mut chunks)?;
    chunks.end(&built.front)?;
    Ok((payload.finish()?, Some(built.tree)))
}

fn stopped() -> AgentError {
    AgentError::new(Code::Internal, "the write pipeline has stopped")
}

struct Reporting<'a> {
    payload: &'a mut Payload,
    report: &'a dyn Report,
}

impl Read for Reporting<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.payload.read(buf)?;
        self.report.done(self.payload.position());
        Ok(n)
    }
}

/// Cuts what is pushed into chunks.
struct Chunks {
    lanes: Lanes,
    first: AlignedBuf,
    current: Option<AlignedBuf>,
    pos: u64,
    name: String,
}

impl Chunks {
    fn send(&mut self, index: u64, len: usize) -> Result<()> {
        match self.current.take() {
            Some(buf) => self
                .lanes
                .out
                .send(Chunk::new(index, buf, len))
                .map_err(|_| stopped()),
            None => Ok(()),
        }
    }

    fn end(mut self, front: &[u8]) -> Result<()> {
        let chunk = CHUNK as u64;
        self.send(self.pos / chunk, (self.pos % chunk) as usize)?;
        match self.first.get_mut(..front.len()) {
            Some(to) => to.copy_from_slice(front),
            None => return Err(too_small(&self.name, self.pos, self.lanes.slot_size)),
        }
        let len = usize::try_from(self.pos).map_or(CHUNK, |p| p.min(CHUNK));
        self.lanes
            .out
            .send(Chunk::new(0, self.first, len))
            .map_err(|_| stopped())
    }
}

impl Out for Chunks {
    fn push(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let (index, at) = (self.pos / CHUNK as u64, (self.pos % CHUNK as u64) as usize);
            let (now, rest) = data.split_at(data.len().min(CHUNK - at));
            let end = self.pos + now.len() as u64;
            if end > self.lanes.slot_size {
                return Err(too_small(&self.name, end, self.lanes.slot_size));
            }
            let buf = if index == 0 {
                &mut self.first
            } else {
                if self.current.is_none() {
                    self.current = Some(self.lanes.free.recv().map_err(|_| stopped())?);
                }
                self.current.as_mut().ok_or_else(stopped)?
            };
            if let Some(to) = buf.get_mut(at..at + now.len()) {
                to.copy_from_slice(now);
            }
            self.pos = end;
            if index > 0 && at + now.len() == CHUNK {
                self.send(index, CHUNK)?;
            }
            data = rest;
        }
        Ok(())
    }
}
