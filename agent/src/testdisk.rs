//! Small Slipway disks and ports for tests: a partition table, os-state and empty slots in a plain file.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::indexing_slicing)] // test support only

use crate::ports::{Clock, Report};
use crate::sys::lock::FileLock;
use camino::Utf8Path;
use os_proto::env_block::Env;
use os_proto::layout::{Arch, MIB, OS_STATE_SIZE, PHYSICAL_ORDER, Role, Slot, StateGeometry, state_geometry};
use os_proto::state_fs;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;
use uuid::Uuid;

/// A disk to make.
#[derive(Debug, Clone)]
pub struct TestDisk {
    /// Logical sector size in bytes.
    pub sector: u32,
    /// Size of each slot in MiB.
    pub slot_mib: u64,
    /// Content of both environment copies.
    pub env: Env,
}

impl Default for TestDisk {
    fn default() -> Self {
        TestDisk {
            sector: 512,
            slot_mib: 4,
            env: Env::committed(Slot::A, 1),
        }
    }
}

impl TestDisk {
    /// Writes the disk to `path`, sparse.
    pub fn create(&self, path: &Utf8Path) {
        let s = u64::from(self.sector);
        let mut at = MIB;
        let mut rows = Vec::new();
        for role in PHYSICAL_ORDER {
            let size = match role {
                Role::Bios if self.sector != 512 => continue,
                Role::Bios => {
                    rows.push((role, 40 * s, MIB - 40 * s));
                    continue;
                }
                Role::OsState => OS_STATE_SIZE,
                Role::RootA | Role::RootB => self.slot_mib * MIB,
                Role::Boot | Role::Persist => MIB,
            };
            rows.push((role, at, size));
            at += size;
        }
        let file = File::create(path).unwrap();
        let size = at + MIB;
        file.set_len(size).unwrap();
        write_gpt(&file, self.sector, size, &rows);
        let state = rows.iter().find(|(r, _, _)| *r == Role::OsState).unwrap();
        let g = state_geometry(self.sector).unwrap();
        file.write_all_at(&os_state(g, &self.env), state.1).unwrap();
        let boot = rows.iter().find(|(r, _, _)| *r == Role::Boot).unwrap();
        file.write_all_at(&boot_fat(self.sector, boot.2), boot.1).unwrap();
    }
}

fn guid(role: Role) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, role.name().as_bytes())
}

fn crc(b: &[u8]) -> u32 {
    let mut c = flate2::Crc::new();
    c.update(b);
    c.sum()
}

/// Both copies of a table with these partitions (bytes), and a protective MBR.
fn write_gpt(file: &File, sector: u32, size: u64, rows: &[(Role, u64, u64)]) {
    let s = u64::from(sector);
    let mut array = vec![0u8; 128 * 128];
    for (role, at, len) in rows {
        let e = &mut array[(role.number() as usize - 1) * 128..][..128];
        e[..16].copy_from_slice(&role.type_guid(Arch::X86_64).to_bytes_le());
        e[16..32].copy_from_slice(&guid(*role).to_bytes_le());
        e[32..40].copy_from_slice(&(at / s).to_le_bytes());
        e[40..48].copy_from_slice(&((at + len) / s - 1).to_le_bytes());
        for (i, u) in role.name().encode_utf16().enumerate() {
            e[56 + i * 2..58 + i * 2].copy_from_slice(&u.to_le_bytes());
        }
    }
    let array_sectors = (array.len() as u64).div_ceil(s);
    let last = size / s - 1;
    let header = |my: u64, other: u64, entries: u64| {
        let mut h = vec![0u8; sector as usize];
        h[..8].copy_from_slice(b"EFI PART");
        h[8..12].copy_from_slice(&0x1_0000u32.to_le_bytes());
        h[12..16].copy_from_slice(&92u32.to_le_bytes());
        h[24..32].copy_from_slice(&my.to_le_bytes());
        h[32..40].copy_from_slice(&other.to_le_bytes());
        h[40..48].copy_from_slice(&(2 + array_sectors).to_le_bytes());
        h[48..56].copy_from_slice(&(last - array_sectors - 1).to_le_bytes());
        h[56..72].copy_from_slice(&Uuid::from_u128(0xd15c).to_bytes_le());
        h[72..80].copy_from_slice(&entries.to_le_bytes());
        h[80..84].copy_from_slice(&128u32.to_le_bytes());
        h[84..88].copy_from_slice(&128u32.to_le_bytes());
        h[88..92].copy_from_slice(&crc(&array).to_le_bytes());
        let sum = crc(&h[..92]);
        h[16..20].copy_from_slice(&sum.to_le_bytes());
        h
    };
    let mut mbr = [0u8; 512];
    mbr[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0]);
    mbr[458..462].copy_from_slice(&u32::try_from(last).unwrap().to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&mbr, 0).unwrap();
    file.write_all_at(&header(1, last, 2), s).unwrap();
    file.write_all_at(&array, 2 * s).unwrap();
    let backup = last - array_sectors;
    file.write_all_at(&array, backup * s).unwrap();
    file.write_all_at(&header(last, 1, backup), last * s).unwrap();
}

/// BOOT as imgbuild makes it, without a boot loader: a FAT with the directory `grub`.
pub fn boot_fat(sector: u32, size: u64) -> Vec<u8> {
    let mut fat = std::io::Cursor::new(vec![0u8; size as usize]);
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_sector(sector as u16)
        .volume_label(*b"BOOT       ");
    fatfs::format_volume(&mut fat, options).unwrap();
    {
        let fs = fatfs::FileSystem::new(&mut fat, fatfs::FsOptions::new()).unwrap();
        fs.root_dir().create_dir("grub").unwrap();
        fs.unmount().unwrap();
    }
    fat.into_inner()
}

/// A disk in a directory of its own, for the tests of this crate.
#[cfg(test)]
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    /// The image file.
    pub(crate) path: camino::Utf8PathBuf,
}

#[cfg(test)]
impl TestDisk {
    /// Makes the disk in a directory of its own.
    pub(crate) fn scratch(&self) -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
        self.create(&path);
        Scratch { dir, path }
    }
}

#[cfg(test)]
impl Scratch {
    /// A small disk with sectors of this size.
    pub(crate) fn of(sector: u32) -> Scratch {
        TestDisk {
            sector,
            ..TestDisk::default()
        }
        .scratch()
    }

    /// The directory that goes with it.
    pub(crate) fn dir(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).unwrap()
    }

    /// Its layout while slot A counts as running.
    pub(crate) fn layout(&self) -> crate::slots::Layout {
        crate::sys::discover::offline(&self.path, Slot::A).unwrap()
    }

    /// Where a role lies.
    pub(crate) fn region(&self, role: Role) -> crate::slots::Region {
        self.layout().region(role).unwrap()
    }

    /// The image, to read and to spoil.
    pub(crate) fn open(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap()
    }

    /// All its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }
}

/// The first bytes of os-state: FAT12 with `ENV1` and `ENV2`.
pub fn os_state(g: &StateGeometry, env: &Env) -> Vec<u8> {
    state_fs::head(g, state_fs::NO_VOLUME_ID, env)
}

/// A fake ext4 image of `bytes`: a superblock that says so and pseudo-random content from `seed`.
pub fn fake_ext4(bytes: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761).max(1);
    let mut data = vec![0u8; bytes];
    for w in data.chunks_mut(4) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        w.copy_from_slice(&x.to_le_bytes()[..w.len()]);
    }
    let head = bytes.min(2048);
    data[..head].fill(0);
    data[1024 + 4..1024 + 8].copy_from_slice(&((bytes / 4096) as u32).to_le_bytes());
    data[1024 + 0x18..1024 + 0x1c].copy_from_slice(&2u32.to_le_bytes());
    data[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
    // Extents.
    data[1024 + 0x60] = 0x40;
    data
}

/// The real clock.
#[derive(Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn unix(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64
    }
    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed()
    }
    fn sleep(&self, span: Duration, cancel: &crate::ports::Cancel) {
        let until = self.monotonic() + span;
        while !cancel.is_cancelled() {
            let left = until.saturating_sub(self.monotonic());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// Keeps what it was told.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Steps in order.
    pub steps: Mutex<Vec<(&'static str, Option<u64>)>>,
    /// Reasons for waiting in order.
    pub waits: Mutex<Vec<Option<String>>>,
    /// Last `done`.
    pub done: std::sync::atomic::AtomicU64,
}

impl Report for Recorder {
    fn step(&self, name: &'static str, total_bytes: Option<u64>) {
        self.steps.lock().unwrap().push((name, total_bytes));
    }
    fn done(&self, bytes: u64) {
        self.done.store(bytes, std::sync::atomic::Ordering::SeqCst);
    }
    fn waiting(&self, why: Option<String>) {
        self.waits.lock().unwrap().push(why);
    }
}

/// Takes the lock on an image file as another process would: through a descriptor of its own.
pub fn foreign_lock(path: &Utf8Path) -> FileLock {
    let file = OpenOptions::new().read(true).open(path).unwrap();
    FileLock::on(file, path).unwrap()
}
