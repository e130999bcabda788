//! `doctor --repair-state`: makes os-state anew for the slot that runs.

use super::look::Silent;
use crate::boot::DualEnv;
use crate::error::{AgentError, Result};
use crate::inspect;
use crate::ports::{Bootloader, Cancel, SlotDevice, StateStore};
use crate::slots::Layout;
use crate::sys::block;
use crate::sys::buf::AlignedBuf;
use crate::write;
use os_proto::codes::Code;
use os_proto::env_block::Env;
use os_proto::layout::{Role, state_geometry};
use os_proto::record::{Content, SlotRecord};
use os_proto::state_fs;
use std::sync::{Arc, Mutex};

/// Writes a new file system with both environment copies naming the running slot, without a trial, and reads them back.
/// Only where no copy can be read: a disk that still knows what it wants is left to the agent.
///
/// `records` is for a disk that does not run, where which slot runs is only somebody's word: that slot must then hold a system.
///
/// # Errors
/// `NothingToDo` while a copy is valid; `NotStaged`, `ChecksumMismatch` for a slot without a system; `DiskUnsupported`, `Busy`,
/// `StateBroken`, `EnvWriteFailed`, `Internal`.
pub fn repair(layout: &Layout, records: Option<&dyn StateStore>) -> Result<Env> {
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
    if let Some(records) = records {
        holds_a_system(layout, records)?;
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
    let content = state_fs::head(geometry, state_fs::NO_VOLUME_ID, &env);
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

/// Whether the slot that is to be the default reads as its record says, or, without a record, looks like a system that boots.
fn holds_a_system(layout: &Layout, records: &dyn StateStore) -> Result<()> {
    let slot = layout.running();
    let advice = "give the slot that has one with --running, or do it all the same with --force";
    let mut device = block::open_read(&layout.region(slot.role())?)?;
    let text = records
        .load_record(slot)
        .map_err(|e| AgentError::new(Code::StateBroken, e))?;
    let record = text.and_then(|t| SlotRecord::parse(&t).ok().flatten());
    let Some(record) = record else {
        let (size, name) = (device.size(), device.describe());
        let device = Arc::new(Mutex::new(device));
        return match inspect::device(&device, size, &name, &inspect::Wanted::default()) {
            Ok(_) => Ok(()),
            Err(e) => Err(AgentError::new(
                Code::NotStaged,
                format!("slot {slot} holds no system ({}): {advice}", e.message),
            )),
        };
    };
    if record.content == Content::Dirty || record.image_size > device.size() {
        return Err(AgentError::new(
            Code::NotStaged,
            format!("slot {slot} was not written to its end: {advice}"),
        ));
    }
    let found = write::hash_of(device.as_mut(), record.image_size, &Cancel::default(), &Silent)?;
    if found == record.image_sha256 {
        return Ok(());
    }
    Err(AgentError::new(
        Code::ChecksumMismatch,
        format!(
            "slot {slot} reads as {found}, recorded is {}: {advice}",
            record.image_sha256
        ),
    ))
}
