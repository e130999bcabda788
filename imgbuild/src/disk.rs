//! The disk image: partition table and partitions in one sparse file, and GRUB's boot code for BIOS.

use crate::error::{BuildError, Kind, Result};
use crate::plan::Plan;
use crate::progress::Progress;
use camino::{Utf8Path, Utf8PathBuf};
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::partition::Partition;
use gpt::partition_types::{OperatingSystem, Type};
use os_proto::layout::Role;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// GRUB for BIOS as its own tools made it, not yet placed.
#[derive(Debug, Clone, Copy)]
pub struct BiosBoot<'a> {
    /// `boot.img`, one sector.
    pub boot_img: &'a [u8],
    /// `core.img` for the `bios` partition.
    pub core_img: &'a [u8],
}

/// What goes into a partition.
#[derive(Debug)]
pub enum Content {
    /// A file, at most as long as the partition.
    File(Utf8PathBuf),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// Writes the disk image. Partitions without content stay holes.
///
/// # Errors
/// IO028 and IO001 for the disk, DSK001 when something does not fit (a bug of the plan).
pub fn write(
    image: &Utf8Path,
    plan: &Plan,
    contents: &[(Role, Content)],
    bios: Option<BiosBoot<'_>>,
    progress: &dyn Progress,
) -> Result<()> {
    let file = crate::files::create(image)?;
    let io = |e: std::io::Error| BuildError::io(format!("writing {image}"), &e);
    file.set_len(plan.disk_size).map_err(io)?;
    table(&file, plan)?;
    for (role, content) in contents {
        let part = plan.partition(*role)?;
        let length = match content {
            Content::Bytes(b) => {
                file.write_all_at(b, part.start).map_err(io)?;
                b.len() as u64
            }
            Content::File(from) => crate::files::copy_sparse(from, &file, part.start, &mut |done, total| {
                progress.step(done, total, part.name);
            })?,
        };
        if length > part.size {
            return Err(broken(format!(
                "{}: {length} bytes for {} bytes",
                part.name, part.size
            )));
        }
    }
    if let Some(bios) = bios {
        let part = plan.partition(Role::Bios)?;
        let mut mbr = [0u8; 512];
        file.read_exact_at(&mut mbr, 0).map_err(io)?;
        let lba = part.start / u64::from(plan.sector_size);
        let (boot, core) = embed(&mbr, bios, lba, part.size)?;
        file.write_all_at(&boot, 0).map_err(io)?;
        file.write_all_at(&core, part.start).map_err(io)?;
    }
    file.sync_all().map_err(io)
}

fn broken(what: impl std::fmt::Display) -> BuildError {
    BuildError::new(Kind::Bug, "DSK001", what.to_string())
}

/// Protective MBR, and both copies of the partition table with all identifiers given: nothing random, numbers dense.
fn table(file: &File, plan: &Plan) -> Result<()> {
    let sector = u64::from(plan.sector_size);
    let mut device = file.try_clone().map_err(broken)?;
    let last = u32::try_from(plan.disk_size / sector - 1).unwrap_or(u32::MAX);
    ProtectiveMBR::with_lb_size(last)
        .overwrite_lba0(&mut device)
        .map_err(broken)?;
    let mut disk = gpt::GptConfig::new()
        .writable(true)
        .logical_block_size(LogicalBlockSize::try_from(sector).map_err(broken)?)
        .create_from_device(device, Some(plan.disk_guid))
        .map_err(broken)?;
    let entries: BTreeMap<u32, Partition> = plan
        .partitions
        .iter()
        .map(|p| {
            let entry = Partition {
                part_type_guid: Type {
                    guid: p.type_guid,
                    os: OperatingSystem::None,
                },
                part_guid: p.guid,
                first_lba: p.start / sector,
                last_lba: (p.start + p.size) / sector - 1,
                flags: 0,
                name: p.name.to_owned(),
            };
            (p.number, entry)
        })
        .collect();
    disk.update_partitions(entries).map_err(broken)?;
    disk.write().map_err(broken)?;
    Ok(())
}

/// Places GRUB for BIOS: `boot.img` into the first sector around the protective MBR, with the address of `core.img`;
/// `core.img` with the list of its own remaining sectors. Offsets: GRUB's `include/grub/i386/pc/boot.h` and
/// `grub-core/boot/i386/pc/diskboot.S`.
fn embed(mbr: &[u8; 512], bios: BiosBoot<'_>, lba: u64, room: u64) -> Result<([u8; 512], Vec<u8>)> {
    /// Address of core.img in boot.img.
    const KERNEL_SECTOR: usize = 0x5c;
    /// Boot drive; 0xff = the one that the BIOS started.
    const BOOT_DRIVE: usize = 0x64;
    /// A jump around a fix-up of wrong drive numbers; two no-ops let the fix-up run only where boot.img wants it.
    const DRIVE_CHECK: usize = 0x66;
    /// What the partition table owns: disk signature and the entries.
    const MBR_OWN: std::ops::Range<usize> = 0x1b8..0x1fe;
    /// First entry of the block list at the end of core.img's first sector: u64 sector, u16 count, u16 segment.
    const LIST: usize = 0x1f4;

    let too_large = |what: String| BuildError::new(Kind::Build, "DSK002", what);
    if bios.boot_img.len() != 512 {
        return Err(too_large(format!(
            "GRUB's boot.img has {} bytes, expected 512",
            bios.boot_img.len()
        )));
    }
    let core_len = bios.core_img.len() as u64;
    if core_len < 1024 || core_len > room {
        return Err(too_large(format!(
            "GRUB's core.img has {core_len} bytes, the bios partition has room for {room}"
        )));
    }
    let mut boot = [0u8; 512];
    boot.copy_from_slice(bios.boot_img);
    boot[KERNEL_SECTOR..KERNEL_SECTOR + 8].copy_from_slice(&lba.to_le_bytes());
    boot[BOOT_DRIVE] = 0xff;
    boot[DRIVE_CHECK..DRIVE_CHECK + 2].copy_from_slice(&[0x90, 0x90]);
    boot[MBR_OWN].copy_from_slice(&mbr[MBR_OWN]);

    let mut core = bios.core_img.to_vec();
    let rest = u16::try_from(core_len.div_ceil(512) - 1).map_err(broken)?;
    core[LIST..LIST + 8].copy_from_slice(&(lba + 1).to_le_bytes());
    core[LIST + 8..LIST + 10].copy_from_slice(&rest.to_le_bytes());
    Ok((boot, core))
}

#[cfg(test)]
mod tests;
