//! The two environment copies of our own disks: one in-place write of a whole 4 KiB cluster each, never renamed, never
//! truncated, never through a file system.

use super::fat12;
use crate::error::{AgentError, Result};
use crate::ports::{Bootloader, EnvCopies, SlotDevice};
use crate::slots::Region;
use crate::sys::block::{open_durable, open_read};
use crate::sys::buf::AlignedBuf;
use os_proto::codes::Code;
use os_proto::env_block::{self, Env};
use os_proto::layout::{ENV_CLUSTER, StateGeometry, state_geometry};

/// How a device is opened; replaced by tests that inject failures.
pub type Opener = Box<dyn Fn(&Region, Access) -> Result<Box<dyn SlotDevice>> + Send + Sync>;

/// What for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only, without a lock.
    Read,
    /// Reading and durable writes, under an exclusive lock.
    Write,
}

/// The environment copies in os-state.
pub struct DualEnv {
    region: Region,
    open: Opener,
}

impl DualEnv {
    /// On the region of os-state.
    pub fn new(region: Region) -> DualEnv {
        Self::with_opener(
            region,
            Box::new(|region, access| match access {
                Access::Read => open_read(region),
                Access::Write => Ok(Box::new(open_durable(region)?)),
            }),
        )
    }

    /// With another opener.
    pub fn with_opener(region: Region, open: Opener) -> DualEnv {
        DualEnv { region, open }
    }

    fn broken(&self, why: impl std::fmt::Display) -> AgentError {
        AgentError::new(
            Code::StateBroken,
            format!(
                "{} (os-state): {why}; nothing was written there; run doctor",
                self.region.path
            ),
        )
    }

    fn geometry(&self) -> Result<&'static StateGeometry> {
        state_geometry(self.region.sector_size)
            .ok_or_else(|| self.broken(format!("sectors of {} bytes", self.region.sector_size)))
    }

    fn positions(&self, device: &mut dyn SlotDevice) -> Result<fat12::Positions> {
        let geometry = self.geometry()?;
        let len = usize::try_from(device.size()).map_or(fat12::LOOK, |s| s.min(fat12::LOOK));
        let mut look = AlignedBuf::zeroed(len);
        device.read_at(0, &mut look)?;
        fat12::locate(&look, geometry).map_err(|e| self.broken(e))
    }

    fn read_one(device: &mut dyn SlotDevice, at: u64) -> Result<std::result::Result<Env, String>> {
        let mut cluster = AlignedBuf::zeroed(ENV_CLUSTER);
        device.read_at(at, &mut cluster)?;
        let block = cluster.get(..env_block::SIZE).unwrap_or_default();
        Ok(Env::decode(block).map_err(|e| e.to_string()))
    }

    fn write_one(&self, device: &mut dyn SlotDevice, name: &str, at: u64, env: &Env) -> Result<()> {
        let failed =
            |e: AgentError| AgentError::new(Code::EnvWriteFailed, format!("os-state: {name}: {}", e.message));
        let mut cluster = AlignedBuf::zeroed(ENV_CLUSTER);
        for (d, s) in cluster.iter_mut().zip(env.encode()) {
            *d = s;
        }
        device.write_at(at, &cluster).map_err(failed)?;
        device.flush().map_err(failed)
    }
}

impl Bootloader for DualEnv {
    fn read(&self) -> Result<EnvCopies> {
        let mut device = (self.open)(&self.region, Access::Read)?;
        // Other writers' pages of the same medium, where reads are not direct.
        device.drop_cache()?;
        let at = self.positions(&mut *device)?;
        Ok(EnvCopies {
            env1: Self::read_one(&mut *device, at.env1)?,
            env2: Self::read_one(&mut *device, at.env2)?,
        })
    }

    fn write(&self, env: &Env) -> Result<()> {
        let mut device = (self.open)(&self.region, Access::Write)?;
        let at = self.positions(&mut *device)?;
        self.write_one(&mut *device, "env2", at.env2, env)?;
        self.write_one(&mut *device, "env1", at.env1, env)?;
        device.drop_cache()?;
        for (name, at) in [("env2", at.env2), ("env1", at.env1)] {
            let back = Self::read_one(&mut *device, at)?;
            if back.as_ref() != Ok(env) {
                let found = back.map_or_else(|e| e, |e| format!("{e:?}"));
                return Err(AgentError::new(
                    Code::EnvWriteFailed,
                    format!("os-state: {name} reads back as {found}, wrote {env:?}; the medium is failing"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
