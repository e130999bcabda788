//! `doctor --repair-state`: makes os-state anew for the slot that runs.

use crate::boot::{DualEnv, state_fs};
use crate::error::{AgentError, Result};
use crate::ports::{Bootloader, SlotDevice};
use crate::slots::Layout;
use crate::sys::block;
use crate::sys::buf::AlignedBuf;
use os_proto::codes::Code;
use os_proto::env_block::Env;
use os_proto::layout::{Role, state_geometry};

/// Writes a new file system with both environment copies naming the running slot, without a trial, and reads them back.
/// Only where no copy can be read: a disk that still knows what it wants is left to the agent.
///
/// # Errors
/// `NothingToDo` while a copy is valid; `DiskUnsupported`, `Busy`, `StateBroken`, `EnvWriteFailed`, `Internal`.
pub fn repair(layout: &Layout) -> Result<Env> {
    let region = layout.region(Role::OsState)?;
    let boot = DualEnv::new(region.clone());
    if let Ok(copies) = boot.read()
        && (copies.env1.is_ok() || copies.env2.is_ok())
    {
        return Err(AgentError::new(
            Code::NothingToDo,
            "os-state is where the layout says and a copy of the environment is valid; the agent repairs the other one when it \
             starts",
        ));
    }
    let geometry = state_geometry(region.sector_size).ok_or_else(|| {
        AgentError::new(
            Code::DiskUnsupported,
            format!(
                "{}: sectors of {} bytes, expected 512 or 4096",
                region.path, region.sector_size
            ),
        )
    })?;
    let env = Env::committed(layout.running(), 1);
    let content = state_fs::head(geometry, &env);
    let mut buf = AlignedBuf::zeroed(content.len());
    buf.copy_from_slice(&content);
    {
        let mut device = block::open_durable(&region)?;
        device.write_at(0, &buf)?;
        device.flush()?;
    }
    let back = boot.read()?;
    if back.env1.as_ref() == Ok(&env) && back.env2.as_ref() == Ok(&env) {
        return Ok(env);
    }
    Err(AgentError::new(
        Code::EnvWriteFailed,
        format!(
            "{} (os-state): was rewritten and reads back as {back:?}; the medium is failing",
            region.path
        ),
    ))
}
