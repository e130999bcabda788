//! The content of a new os-state partition: FAT12 with `env1` and `env2` where [`crate::layout`] wants them. The image builder writes
//! it on a new disk, `os-agent doctor --repair` writes it again when it was lost.
//!
//! Format: Microsoft FAT specification (1.03).

use crate::env_block::Env;
use crate::layout::{ENV_CLUSTER, OS_STATE_SIZE, StateGeometry};

/// Bytes at the start of the partition that hold everything; the rest is zeros.
pub const HEAD: usize = 64 << 10;

/// Serial number of a volume that got none from an image's recipe: one that was repaired.
pub const NO_VOLUME_ID: u32 = u32::from_le_bytes(*b"SLWY");

/// 1980-01-01, the earliest date of FAT: the content depends on no clock.
const DATE: u16 = (1 << 5) | 1;

/// The first [`HEAD`] bytes of an os-state partition with `env` in both copies. `volume_id` is the volume's serial number.
pub fn head(g: &StateGeometry, volume_id: u32, env: &Env) -> Vec<u8> {
    let sector = g.sector as usize;
    let mut p = vec![0u8; HEAD];
    boot_record(&mut p, g, volume_id);
    let fat_bytes = usize::from(g.fat_sectors) * sector;
    let first_fat = usize::from(g.reserved) * sector;
    for fat in 0..usize::from(g.fats) {
        // Entries of 12 bits: media, reserved, and two chains of one cluster each.
        put(
            &mut p,
            first_fat + fat * fat_bytes,
            &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff],
        );
    }
    let root = first_fat + usize::from(g.fats) * fat_bytes;
    for (i, name) in [b"ENV1       ", b"ENV2       "].into_iter().enumerate() {
        let at = root + i * 32;
        put(&mut p, at, name);
        // A file; its name is shown in lower case.
        put(&mut p, at + 11, &[0x20, 0x08]);
        for date in [16, 18, 24] {
            put(&mut p, at + date, &DATE.to_le_bytes());
        }
        put(&mut p, at + 26, &u16::try_from(i + 2).unwrap_or(2).to_le_bytes());
        put(&mut p, at + 28, &512u32.to_le_bytes());
    }
    for at in [g.env1, g.env2] {
        put(&mut p, usize::try_from(at).unwrap_or(HEAD), &cluster(env));
    }
    p
}

/// One environment copy as it is written: the block and zeros to the end of its cluster.
pub fn cluster(env: &Env) -> [u8; ENV_CLUSTER] {
    let mut out = [0u8; ENV_CLUSTER];
    for (o, b) in out.iter_mut().zip(env.encode()) {
        *o = b;
    }
    out
}

/// BIOS parameter block and extended boot record of FAT12 (section 3 of the specification).
fn boot_record(p: &mut [u8], g: &StateGeometry, volume_id: u32) {
    let sectors = u16::try_from(OS_STATE_SIZE / u64::from(g.sector)).unwrap_or(u16::MAX);
    put(p, 0, &[0xeb, 0x3c, 0x90]);
    put(p, 3, b"SLIPWAY ");
    put(p, 11, &u16::try_from(g.sector).unwrap_or(u16::MAX).to_le_bytes());
    put(p, 13, &[g.cluster_sectors]);
    put(p, 14, &g.reserved.to_le_bytes());
    put(p, 16, &[g.fats]);
    put(p, 17, &g.root_entries.to_le_bytes());
    put(p, 19, &sectors.to_le_bytes());
    put(p, 21, &[0xf8]);
    put(p, 22, &g.fat_sectors.to_le_bytes());
    put(p, 24, &32u16.to_le_bytes());
    put(p, 26, &2u16.to_le_bytes());
    // Drive, signature of an extended record, serial number, label, type. fsck.fat wants the last two.
    put(p, 36, &[0x80, 0, 0x29]);
    put(p, 39, &volume_id.to_le_bytes());
    put(p, 43, b"NO NAME    FAT12   ");
    put(p, 510, &[0x55, 0xaa]);
}

fn put(p: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = p.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}
