//! FAT images: BOOT (FAT32) and os-state (FAT12 with a fixed geometry). No time of the clock in either.

mod boot;
mod entry;

pub use boot::{FatFile, boot_image};

use crate::error::{BuildError, Kind, Result};
use entry::{FILE, LOWER_BASE, entry};
use fatfs::{FatType, FileSystem, FsOptions};
use os_proto::layout::{ENV_CLUSTER, OS_STATE_SIZE, StateGeometry};
use std::io::Read;

fn broken(what: impl std::fmt::Display) -> BuildError {
    BuildError::new(Kind::Build, "FAT001", what.to_string())
}

/// Makes os-state with `env` as `env1` and `env2`, each alone in its cluster at the place that `geometry` gives.
///
/// # Errors
/// FAT001 when the result does not hold the files where they must be (a bug).
pub fn state_image(geometry: &StateGeometry, volume_id: u32, env: &[u8; 512]) -> Result<Vec<u8>> {
    let sector = geometry.sector as usize;
    let mut image = vec![0u8; OS_STATE_SIZE as usize];
    image[..512].copy_from_slice(&boot_sector(geometry, volume_id));
    let fats_at = usize::from(geometry.reserved) * sector;
    let fat_bytes = usize::from(geometry.fat_sectors) * sector;
    for fat in 0..usize::from(geometry.fats) {
        let at = fats_at + fat * fat_bytes;
        // Entries of 12 bits: media, reserved, and two chains of one cluster each.
        image[at..at + 6].copy_from_slice(&[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }
    let root_at = fats_at + usize::from(geometry.fats) * fat_bytes;
    for (i, name) in [b"ENV1       ", b"ENV2       "].into_iter().enumerate() {
        let cluster = 2 + u16::try_from(i).unwrap_or(0);
        image[root_at + i * 32..root_at + (i + 1) * 32].copy_from_slice(&entry(
            name,
            FILE,
            LOWER_BASE,
            u32::from(cluster),
            512,
        ));
    }
    for at in [geometry.env1, geometry.env2] {
        let at = at as usize;
        image[at..at + 512].copy_from_slice(env);
    }
    check_state(&image, geometry, env)?;
    Ok(image)
}

/// BIOS parameter block and extended boot record of FAT12 (Microsoft's FAT specification, section 3).
fn boot_sector(g: &StateGeometry, volume_id: u32) -> [u8; 512] {
    let mut b = [0u8; 512];
    let sectors = OS_STATE_SIZE / u64::from(g.sector);
    b[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    b[3..11].copy_from_slice(b"SLIPWAY ");
    b[11..13].copy_from_slice(&(g.sector as u16).to_le_bytes());
    b[13] = g.cluster_sectors;
    b[14..16].copy_from_slice(&g.reserved.to_le_bytes());
    b[16] = g.fats;
    b[17..19].copy_from_slice(&g.root_entries.to_le_bytes());
    b[19..21].copy_from_slice(&u16::try_from(sectors).unwrap_or(0).to_le_bytes());
    b[21] = 0xf8;
    b[22..24].copy_from_slice(&g.fat_sectors.to_le_bytes());
    b[24..26].copy_from_slice(&32u16.to_le_bytes());
    b[26..28].copy_from_slice(&2u16.to_le_bytes());
    b[36] = 0x80;
    b[38] = 0x29;
    b[39..43].copy_from_slice(&volume_id.to_le_bytes());
    b[43..54].copy_from_slice(b"NO NAME    ");
    b[54..62].copy_from_slice(b"FAT12   ");
    b[510..].copy_from_slice(&[0x55, 0xaa]);
    b
}

/// Reads the image as a FAT reader would.
fn check_state(image: &[u8], g: &StateGeometry, env: &[u8; 512]) -> Result<()> {
    let fs = FileSystem::new(std::io::Cursor::new(image.to_vec()), FsOptions::new())
        .map_err(|e| broken(format!("os-state: {e}")))?;
    if fs.fat_type() != FatType::Fat12 || fs.cluster_size() as usize != ENV_CLUSTER {
        return Err(broken("os-state is not the FAT12 that it must be"));
    }
    for (name, at) in [("env1", g.env1), ("env2", g.env2)] {
        let mut found = Vec::new();
        fs.root_dir()
            .open_file(name)
            .and_then(|mut f| f.read_to_end(&mut found))
            .map_err(|e| broken(format!("os-state: {name}: {e}")))?;
        let at = at as usize;
        if found != env || image[at..at + 512] != env[..] {
            return Err(broken(format!("os-state: {name} is not at byte {at}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
