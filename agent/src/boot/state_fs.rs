//! PURE: the content of a new os-state partition: FAT12 with `env1` and `env2` where the layout wants them.
//!
//! Format: Microsoft FAT specification (1.03). [`super::fat12`] reads it back.

use os_proto::env_block::Env;
use os_proto::layout::{ENV_CLUSTER, OS_STATE_SIZE, StateGeometry};

/// Bytes at the start of the partition that hold everything; the rest is zeros.
pub const HEAD: usize = 64 << 10;

/// The first [`HEAD`] bytes of an os-state partition with `env` in both copies.
pub fn head(g: &StateGeometry, env: &Env) -> Vec<u8> {
    let sector = g.sector as usize;
    let mut p = vec![0u8; HEAD];
    let sectors = u16::try_from(OS_STATE_SIZE / u64::from(g.sector)).unwrap_or(u16::MAX);
    put(&mut p, 0, &[0xeb, 0x3c, 0x90]);
    put(&mut p, 3, b"SLIPWAY ");
    put(
        &mut p,
        11,
        &u16::try_from(g.sector).unwrap_or(u16::MAX).to_le_bytes(),
    );
    put(&mut p, 13, &[g.cluster_sectors]);
    put(&mut p, 14, &g.reserved.to_le_bytes());
    put(&mut p, 16, &[g.fats]);
    put(&mut p, 17, &g.root_entries.to_le_bytes());
    put(&mut p, 19, &sectors.to_le_bytes());
    put(&mut p, 21, &[0xf8]);
    put(&mut p, 22, &g.fat_sectors.to_le_bytes());
    put(&mut p, 24, &32u16.to_le_bytes());
    put(&mut p, 26, &2u16.to_le_bytes());
    // Extended boot record: drive, signature, serial number, label, name of the type.
    put(&mut p, 36, &[0x80, 0, 0x29]);
    put(&mut p, 39, b"SLWYNO NAME    FAT12   ");
    put(&mut p, 510, &[0x55, 0xaa]);
    let fat_bytes = usize::from(g.fat_sectors) * sector;
    let first_fat = usize::from(g.reserved) * sector;
    for fat in 0..usize::from(g.fats) {
        // Media byte, end mark, and two files of one cluster each.
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
        put(&mut p, at + 11, &[0x20]);
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

fn put(p: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = p.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::fat12;
    use os_proto::layout::{STATE_512, STATE_4096, Slot};

    #[test]
    fn what_is_made_is_found_where_the_layout_says() {
        for g in [STATE_512, STATE_4096] {
            let env = Env::committed(Slot::B, 7);
            let p = head(&g, &env);
            let at = fat12::locate(&p, &g).unwrap();
            assert_eq!((at.env1, at.env2), (g.env1, g.env2));
            // Without a label and a type fsck.fat complains.
            assert_eq!((p[38], &p[43..62]), (0x29, &b"NO NAME    FAT12   "[..]));
            for at in [at.env1, at.env2] {
                let at = at as usize;
                assert_eq!(Env::decode(&p[at..at + 512]), Ok(env));
            }
        }
    }
}
