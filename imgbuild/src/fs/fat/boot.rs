//! BOOT: a FAT32 written once, files one after the other, nothing fragmented.

use super::broken;
use super::entry::{DIR, FILE, LABEL, entry, short_name};
use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use fatfs::{FatType, FileSystem, FsOptions};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

const SECTOR: u64 = 512;
const RESERVED: u64 = 32;
const LAST: u32 = 0x0fff_ffff;
const ROOT_CLUSTER: u32 = 2;

/// A file for BOOT: path without leading slash, content.
pub type FatFile = (String, Vec<u8>);

/// Makes the EFI system partition: a FAT32 of `size` bytes with these files.
///
/// # Errors
/// SIZE001 when the files do not fit, IO028 and IO001 for the disk, FAT001 when a name is not a short one or a file reads
/// back differently.
pub fn boot_image(image: &Utf8Path, size: u64, volume_id: u32, files: &[FatFile]) -> Result<()> {
    let content: u64 = files.iter().map(|f| f.1.len() as u64).sum();
    if content + (4 << 20) > size {
        return Err(BuildError::new(
            Kind::Space,
            "SIZE001",
            format!(
                "BOOT needs {} MiB, partition is {} MiB; raise disk.esp_mib",
                (content >> 20) + 4,
                size >> 20
            ),
        ));
    }
    let file = crate::files::create(image)?;
    file.set_len(size)
        .map_err(|e| BuildError::io(format!("writing {image}"), &e))?;
    let mut volume = Volume::new(&file, size, image);
    let root = Node::tree(files)?;
    volume.directory(&root, ROOT_CLUSTER, 0, Some(b"BOOT       "))?;
    volume.finish(volume_id)?;
    read_back(image, files)
}

/// A file or directory to come.
enum Node<'a> {
    File(&'a [u8]),
    Dir(BTreeMap<&'a str, Node<'a>>),
}

impl<'a> Node<'a> {
    fn tree(files: &'a [FatFile]) -> Result<BTreeMap<&'a str, Node<'a>>> {
        let mut root = BTreeMap::new();
        for (path, bytes) in files {
            Self::insert(&mut root, path, bytes)
                .ok_or_else(|| broken(format!("BOOT: {path:?} cannot be a file")))?;
        }
        Ok(root)
    }

    fn insert(dir: &mut BTreeMap<&'a str, Node<'a>>, path: &'a str, bytes: &'a [u8]) -> Option<()> {
        match path.split_once('/') {
            None => dir.insert(path, Node::File(bytes)).is_none().then_some(()),
            Some((name, rest)) => match dir.entry(name).or_insert_with(|| Node::Dir(BTreeMap::new())) {
                Node::Dir(sub) => Self::insert(sub, rest, bytes),
                Node::File(_) => None,
            },
        }
    }
}

struct Volume<'a> {
    file: &'a File,
    image: &'a Utf8Path,
    sectors: u64,
    fat_sectors: u64,
    cluster_sectors: u64,
    clusters: u64,
    /// The FAT so far; index = cluster.
    fat: Vec<u32>,
}

impl<'a> Volume<'a> {
    fn new(file: &'a File, size: u64, image: &'a Utf8Path) -> Self {
        let sectors = size / SECTOR;
        // Enough clusters to be a FAT32 (65,525 and more), few enough for a small table.
        let cluster_sectors = if size < 256 << 20 { 1 } else { 8 };
        let mut fat_sectors = 1;
        let mut clusters;
        loop {
            clusters = (sectors - RESERVED - 2 * fat_sectors) / cluster_sectors;
            let needed = ((clusters + 2) * 4).div_ceil(SECTOR);
            if needed <= fat_sectors {
                break;
            }
            fat_sectors = needed;
        }
        Volume {
            file,
            image,
            sectors,
            fat_sectors,
            cluster_sectors,
            clusters,
            fat: vec![0x0fff_fff8, LAST, LAST],
        }
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, at)
            .map_err(|e| BuildError::io(format!("writing {}", self.image), &e))
    }

    fn cluster_bytes(&self) -> u64 {
        self.cluster_sectors * SECTOR
    }

    fn offset(&self, cluster: u32) -> u64 {
        (RESERVED + 2 * self.fat_sectors) * SECTOR + u64::from(cluster - ROOT_CLUSTER) * self.cluster_bytes()
    }

    /// Allocates a chain of consecutive clusters for `bytes` and writes them; 0 for an empty file.
    fn store(&mut self, bytes: &[u8]) -> Result<u32> {
        let n = (bytes.len() as u64).div_ceil(self.cluster_bytes());
        if n == 0 {
            return Ok(0);
        }
        if self.fat.len() as u64 + n > self.clusters + 2 {
            return Err(broken(format!("{}: full", self.image)));
        }
        let first = u32::try_from(self.fat.len()).map_err(broken)?;
        for i in 1..n {
            self.fat.push(first + u32::try_from(i).map_err(broken)?);
        }
        self.fat.push(LAST);
        self.write(bytes, self.offset(first))?;
        Ok(first)
    }

    /// Writes a directory into its one cluster, and before that everything below it.
    fn directory(
        &mut self,
        dir: &BTreeMap<&str, Node<'_>>,
        own: u32,
        parent: u32,
        label: Option<&[u8; 11]>,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        match label {
            Some(label) => bytes.extend_from_slice(&entry(label, LABEL, 0, 0, 0)),
            None => {
                bytes.extend_from_slice(&entry(b".          ", DIR, 0, own, 0));
                bytes.extend_from_slice(&entry(b"..         ", DIR, 0, parent, 0));
            }
        }
        // The root is named 0 by its children.
        let as_parent = if own == ROOT_CLUSTER { 0 } else { own };
        for (name, node) in dir {
            let (short, case) =
                short_name(name).ok_or_else(|| broken(format!("BOOT: {name:?} is not a short name")))?;
            let line = match node {
                Node::File(content) => {
                    let cluster = self.store(content)?;
                    let size = u32::try_from(content.len()).map_err(broken)?;
                    entry(&short, FILE, case, cluster, size)
                }
                Node::Dir(sub) => {
                    let cluster = self.store(&[0])?;
                    self.directory(sub, cluster, as_parent, None)?;
                    entry(&short, DIR, case, cluster, 0)
                }
            };
            bytes.extend_from_slice(&line);
        }
        if bytes.len() as u64 > self.cluster_bytes() {
            return Err(broken("BOOT: too many files in one directory"));
        }
        bytes.resize(self.cluster_bytes() as usize, 0);
        self.write(&bytes, self.offset(own))
    }

    fn finish(&self, volume_id: u32) -> Result<()> {
        let fat: Vec<u8> = self.fat.iter().flat_map(|e| e.to_le_bytes()).collect();
        for copy in 0..2 {
            self.write(&fat, (RESERVED + copy * self.fat_sectors) * SECTOR)?;
        }
        let boot = self.boot_sector(volume_id);
        let info = self.info_sector();
        for at in [0, 6] {
            self.write(&boot, at * SECTOR)?;
            self.write(&info, (at + 1) * SECTOR)?;
        }
        Ok(())
    }

    /// Microsoft's FAT specification, section 3.
    fn boot_sector(&self, volume_id: u32) -> [u8; 512] {
        let mut b = [0u8; 512];
        b[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
        b[3..11].copy_from_slice(b"SLIPWAY ");
        b[11..13].copy_from_slice(&(SECTOR as u16).to_le_bytes());
        b[13] = self.cluster_sectors as u8;
        b[14..16].copy_from_slice(&(RESERVED as u16).to_le_bytes());
        b[16] = 2;
        b[21] = 0xf8;
        b[24..26].copy_from_slice(&32u16.to_le_bytes());
        b[26..28].copy_from_slice(&64u16.to_le_bytes());
        b[32..36].copy_from_slice(&(self.sectors as u32).to_le_bytes());
        b[36..40].copy_from_slice(&(self.fat_sectors as u32).to_le_bytes());
        b[44..48].copy_from_slice(&ROOT_CLUSTER.to_le_bytes());
        b[48..50].copy_from_slice(&1u16.to_le_bytes());
        b[50..52].copy_from_slice(&6u16.to_le_bytes());
        b[64] = 0x80;
        b[66] = 0x29;
        b[67..71].copy_from_slice(&volume_id.to_le_bytes());
        b[71..82].copy_from_slice(b"BOOT       ");
        b[82..90].copy_from_slice(b"FAT32   ");
        b[510..].copy_from_slice(&[0x55, 0xaa]);
        b
    }

    /// The same specification, section 5.
    fn info_sector(&self) -> [u8; 512] {
        let mut b = [0u8; 512];
        let free = self.clusters + 2 - self.fat.len() as u64;
        b[..4].copy_from_slice(b"RRaA");
        b[484..488].copy_from_slice(b"rrAa");
        b[488..492].copy_from_slice(&(free as u32).to_le_bytes());
        b[492..496].copy_from_slice(&(self.fat.len() as u32 - 1).to_le_bytes());
        b[510..].copy_from_slice(&[0x55, 0xaa]);
        b
    }
}

/// A reader that shares no code with the writer must find every file.
fn read_back(image: &Utf8Path, files: &[FatFile]) -> Result<()> {
    let io = |e: std::io::Error| BuildError::io(format!("reading {image}"), &e);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(image)
        .map_err(io)?;
    let fs = FileSystem::new(&file, FsOptions::new()).map_err(io)?;
    if fs.fat_type() != FatType::Fat32 {
        return Err(broken(format!("{image} is not a FAT32")));
    }
    for (path, bytes) in files {
        let mut found = Vec::new();
        fs.root_dir()
            .open_file(path)
            .and_then(|mut f| f.read_to_end(&mut found))
            .map_err(io)?;
        if found != *bytes {
            return Err(broken(format!("{image}: {path} reads back differently")));
        }
    }
    Ok(())
}
