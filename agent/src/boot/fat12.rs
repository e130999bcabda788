//! PURE: finds the environment files in os-state's FAT12 and checks that they lie where the layout says.
//!
//! Format: Microsoft FAT specification (1.03). Reads only; nothing here ever changes the file system.

use os_proto::layout::{ENV_CLUSTER, StateGeometry};

/// Bytes from the start of os-state that [`locate`] looks at.
pub const LOOK: usize = 64 << 10;

/// Byte offsets of both environment files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// `env1`.
    pub env1: u64,
    /// `env2`.
    pub env2: u64,
}

/// Takes the positions from the file system at the start of `part` and compares them with `want`.
///
/// # Errors
/// A reason, for `StateBroken`.
pub fn locate(part: &[u8], want: &StateGeometry) -> Result<Positions, String> {
    let fat = Fat::parse(part)?;
    fat.same_geometry(want)?;
    let found = Positions {
        env1: fat.file(b"ENV1       ", "env1")?,
        env2: fat.file(b"ENV2       ", "env2")?,
    };
    for (name, at, expected) in [("env1", found.env1, want.env1), ("env2", found.env2, want.env2)] {
        if at != expected {
            return Err(format!("{name} lies at byte {at}, expected {expected}"));
        }
    }
    Ok(found)
}

struct Fat<'a> {
    part: &'a [u8],
    sector: u64,
    reserved: u64,
    fats: u64,
    fat_sectors: u64,
    root_entries: u64,
    cluster_sectors: u64,
}

impl<'a> Fat<'a> {
    fn parse(part: &'a [u8]) -> Result<Self, String> {
        let short = || "the partition is shorter than a boot sector".to_owned();
        let byte = |at: usize| part.get(at).copied().map(u64::from).ok_or_else(short);
        let word = |at: usize| Ok::<u64, String>(byte(at)? | (byte(at + 1)? << 8));
        if part.get(510..512) != Some(&[0x55, 0xaa]) {
            return Err("there is no FAT file system (no 55 AA signature)".into());
        }
        let fat = Fat {
            part,
            sector: word(11)?,
            cluster_sectors: byte(13)?,
            reserved: word(14)?,
            fats: byte(16)?,
            root_entries: word(17)?,
            fat_sectors: word(22)?,
        };
        if !matches!(fat.sector, 512 | 1024 | 2048 | 4096) || fat.cluster_sectors == 0 || fat.fat_sectors == 0
        {
            return Err("its FAT boot sector is not valid".into());
        }
        Ok(fat)
    }

    fn same_geometry(&self, want: &StateGeometry) -> Result<(), String> {
        for (what, found, expected) in [
            ("bytes per sector", self.sector, u64::from(want.sector)),
            ("reserved sectors", self.reserved, u64::from(want.reserved)),
            ("FATs", self.fats, u64::from(want.fats)),
            ("sectors per FAT", self.fat_sectors, u64::from(want.fat_sectors)),
            (
                "root directory entries",
                self.root_entries,
                u64::from(want.root_entries),
            ),
            (
                "sectors per cluster",
                self.cluster_sectors,
                u64::from(want.cluster_sectors),
            ),
        ] {
            if found != expected {
                return Err(format!("its FAT has {found} {what}, expected {expected}"));
            }
        }
        Ok(())
    }

    fn root_dir(&self) -> u64 {
        (self.reserved + self.fats * self.fat_sectors) * self.sector
    }

    fn data(&self) -> u64 {
        self.root_dir() + (self.root_entries * 32).div_ceil(self.sector) * self.sector
    }

    /// Byte offset of a file that has exactly 512 bytes in exactly one cluster.
    fn file(&self, short_name: &[u8; 11], name: &str) -> Result<u64, String> {
        let dir = self.root_dir() as usize;
        let entries = self
            .part
            .get(dir..dir + self.root_entries as usize * 32)
            .ok_or("its root directory lies outside")?;
        let mut found = None;
        for e in entries.chunks_exact(32) {
            match e.first() {
                Some(0) | None => break,
                Some(0xe5) => continue,
                Some(_) => {}
            }
            let attributes = e.get(11).copied().unwrap_or(0);
            // Bits: 8 = volume label (long names have it too), 16 = directory.
            if e.get(..11) == Some(short_name) && attributes & 0x18 == 0 && found.replace(e).is_some() {
                return Err(format!("{name} exists twice"));
            }
        }
        let e = found.ok_or_else(|| format!("{name} is missing"))?;
        let size = e
            .get(28..32)
            .and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)))
            .unwrap_or(0);
        if size != 512 {
            return Err(format!("{name} has {size} bytes, expected 512"));
        }
        let cluster = e
            .get(26..28)
            .and_then(|b| Some(u16::from_le_bytes(b.try_into().ok()?)))
            .unwrap_or(0);
        if cluster < 2 {
            return Err(format!("{name} has no cluster"));
        }
        for fat in 0..self.fats {
            let next = self
                .next(fat, cluster)
                .ok_or_else(|| format!("{name} lies outside"))?;
            if next < 0xff8 {
                return Err(format!(
                    "{name} is not exactly one cluster (FAT {fat} says {next:#05x})"
                ));
            }
        }
        let bytes = self.cluster_sectors * self.sector;
        let at = self.data() + (u64::from(cluster) - 2) * bytes;
        if bytes != ENV_CLUSTER as u64 || !at.is_multiple_of(bytes) {
            return Err(format!("{name}'s cluster is not {ENV_CLUSTER} aligned bytes"));
        }
        Ok(at)
    }

    /// The 12-bit entry of `cluster` in one of the FATs.
    fn next(&self, fat: u64, cluster: u16) -> Option<u16> {
        let base = ((self.reserved + fat * self.fat_sectors) * self.sector) as usize;
        let at = base + usize::from(cluster) * 3 / 2;
        let pair = u16::from_le_bytes(self.part.get(at..at + 2)?.try_into().ok()?);
        Some(if cluster.is_multiple_of(2) {
            pair & 0xfff
        } else {
            pair >> 4
        })
    }
}

#[cfg(test)]
mod tests;
