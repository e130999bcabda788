//! A small disk in Slipway's layout as a plain file, for offline tests: no root, no loop device.

use crate::proc;
use anyhow::{Context, Result};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::env_block::{self, Env};
use os_proto::layout::{MIB, SLIPWAY, Slot, type_guid};
use sha2::{Digest, Sha256};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

const ENV1: u64 = 12 << 10;
const ENV2: u64 = 16 << 10;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The disk.
#[derive(Debug, Clone)]
pub struct PlainDisk {
    /// Its file; the agent's offline state lies in `<path>.state`.
    pub path: Utf8PathBuf,
    /// Size of each slot in bytes.
    pub slot_size: u64,
}

/// Start of each partition in MiB: BOOT, os-state, ROOT-A, ROOT-B, PERSIST.
const BOOT: u64 = 1;
const BOOT_MIB: u64 = 8;
const STATE: u64 = BOOT + BOOT_MIB;
const ROOT_A: u64 = STATE + 2;
const PERSIST_MIB: u64 = 16;

fn tool(argv: &[&str]) -> Result<String> {
    let (program, args) = argv.split_first().context("empty command")?;
    proc::run(
        proc::command(program)
            .args(args)
            .env("PATH", PATH)
            .env("MTOOLS_SKIP_CHECK", "1"),
    )
}

impl PlainDisk {
    /// A new disk: slot A holds `root`, slot B is blank, the environment says A, no trial.
    ///
    /// # Errors
    /// When sgdisk, mkfs.vfat or mcopy is missing or fails.
    pub fn make(path: &Utf8Path, slot_mib: u64, root: &Utf8Path) -> Result<PlainDisk> {
        let disk = PlainDisk {
            path: path.to_owned(),
            slot_size: slot_mib * MIB,
        };
        let end = ROOT_A + 2 * slot_mib + PERSIST_MIB;
        let file = fs_err::File::create(path)?;
        file.set_len((end + 1) * MIB)?;
        let span = |number: u32| match number {
            1 => (BOOT * 2048, BOOT_MIB * 2048),
            2 => (ROOT_A * 2048, slot_mib * 2048),
            3 => ((ROOT_A + slot_mib) * 2048, slot_mib * 2048),
            4 => ((ROOT_A + 2 * slot_mib) * 2048, PERSIST_MIB * 2048),
            5 => (40, 2048 - 40),
            _ => (STATE * 2048, 2 * 2048),
        };
        let mut argv: Vec<String> = ["sgdisk", "-a", "1"].map(String::from).to_vec();
        for e in SLIPWAY {
            let (first, count) = span(e.number);
            let guid = match e.number {
                1 => type_guid::ESP,
                2 | 3 => type_guid::ROOT_X86_64,
                4 => type_guid::LINUX_DATA,
                5 => type_guid::BIOS_BOOT,
                _ => type_guid::OS_STATE,
            };
            let n = e.number;
            for (flag, value) in [
                ("-n", format!("{n}:{first}:{}", first + count - 1)),
                ("-t", format!("{n}:{guid}")),
                ("-c", format!("{n}:{}", e.name)),
            ] {
                argv.extend([flag.to_owned(), value]);
            }
        }
        argv.push(path.to_string());
        tool(&argv.iter().map(String::as_str).collect::<Vec<_>>())?;

        let dir = tempfile::tempdir()?;
        let dir = Utf8Path::from_path(dir.path()).context("temporary directory")?;
        let state = dir.join("state");
        fs_err::File::create(&state)?.set_len(2 * MIB)?;
        let fat = "mkfs.vfat -a -F 12 -S 512 -s 8 -R 12 -f 2 -r 128 --invariant";
        let mut argv: Vec<&str> = fat.split(' ').collect();
        argv.push(state.as_str());
        tool(&argv)?;
        for name in ["env1", "env2"] {
            let f = dir.join(name);
            fs_err::write(&f, Env::committed(Slot::A, 1).encode())?;
            tool(&["mcopy", "-i", state.as_str(), f.as_str(), &format!("::/{name}")])?;
        }
        disk.put(STATE * MIB, &state)?;
        disk.put(disk.slot_start(Slot::A), root)?;
        Ok(disk)
    }

    /// First byte of a slot.
    pub fn slot_start(&self, slot: Slot) -> u64 {
        ROOT_A * MIB + if slot == Slot::B { self.slot_size } else { 0 }
    }

    fn put(&self, at: u64, from: &Utf8Path) -> Result<()> {
        let mut to = fs_err::OpenOptions::new().write(true).open(&self.path)?;
        to.seek(SeekFrom::Start(at))?;
        std::io::copy(&mut fs_err::File::open(from)?, &mut to)?;
        to.flush()?;
        Ok(())
    }

    /// Both environment blocks as they lie on the disk.
    ///
    /// # Errors
    /// On I/O errors.
    pub fn env_bytes(&self) -> Result<[[u8; env_block::SIZE]; 2]> {
        let f = std::fs::File::open(&self.path)?;
        let mut out = [[0; env_block::SIZE]; 2];
        for (block, at) in out.iter_mut().zip([ENV1, ENV2]) {
            f.read_exact_at(block, STATE * MIB + at)?;
        }
        Ok(out)
    }

    /// Overwrites both environment blocks, as a boot loader or a test would.
    ///
    /// # Errors
    /// On I/O errors.
    pub fn set_env(&self, env: &Env) -> Result<()> {
        let f = fs_err::OpenOptions::new().write(true).open(&self.path)?;
        for at in [ENV2, ENV1] {
            f.file().write_all_at(&env.encode(), STATE * MIB + at)?;
        }
        Ok(())
    }

    /// SHA-256 of the first `len` bytes of a slot (the whole slot: `slot_size`).
    ///
    /// # Errors
    /// On I/O errors.
    pub fn slot_sha256(&self, slot: Slot, len: u64) -> Result<String> {
        let mut f = fs_err::File::open(&self.path)?;
        f.seek(SeekFrom::Start(self.slot_start(slot)))?;
        let mut h = Sha256::new();
        let mut left = f.take(len);
        let mut buf = vec![0; 1 << 20];
        loop {
            let n = left.read(&mut buf)?;
            if n == 0 {
                break;
            }
            h.update(&buf[..n]);
        }
        Ok(hex::encode(h.finalize()))
    }
}

/// A tree with what a slot must have (os-release, kernel, initramfs, agent) and `mib` MiB of noise, as an ext4 image of
/// `image_mib` MiB. The agent in it is `agent`, or nothing.
///
/// # Errors
/// When mke2fs fails.
pub fn root_image(
    out: &Utf8Path,
    version: &str,
    image_mib: u64,
    noise_mib: usize,
    agent: Option<&Utf8Path>,
    kernel: bool,
) -> Result<()> {
    let tree = tempfile::tempdir()?;
    let tree = Utf8Path::from_path(tree.path()).context("temporary directory")?;
    for d in [
        "boot",
        "etc",
        "usr/lib/systemd",
        "usr/bin",
        "usr/sbin",
        "dev",
        "proc",
        "sys",
        "run",
        "var",
        "persist",
    ] {
        fs_err::create_dir_all(tree.join(d))?;
    }
    for (link, to) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")] {
        std::os::unix::fs::symlink(to, tree.join(link))?;
    }
    let release = format!(
        "NAME=\"Slipway\"\nID=slipway\nVERSION_ID=\"{version}\"\nVERSION=\"{version}\"\nPRETTY_NAME=\"Slipway {version}\"\n"
    );
    fs_err::write(tree.join("usr/lib/os-release"), release)?;
    std::os::unix::fs::symlink("../usr/lib/os-release", tree.join("etc/os-release"))?;
    if kernel {
        fs_err::write(tree.join("boot/vmlinuz"), os_agent::testing::kernel(64 << 10))?;
    }
    let mut initramfs = b"070701".to_vec();
    initramfs.extend(noise(64 << 10));
    fs_err::write(tree.join("boot/initramfs.img"), initramfs)?;
    let mut args = b"# GRUB Environment Block\nargs=panic=10\n".to_vec();
    args.resize(1024, b'#');
    fs_err::write(tree.join("boot/args.env"), args)?;
    for program in ["usr/lib/systemd/systemd", "usr/sbin/init"] {
        fs_err::copy("/bin/true", tree.join(program))?;
    }
    if let Some(agent) = agent {
        fs_err::copy(agent, tree.join("usr/bin/os-agent"))?;
    }
    if noise_mib > 0 {
        let mut f = fs_err::File::create(tree.join("usr/lib/noise"))?;
        let block = noise(1 << 20);
        for i in 0..noise_mib {
            // Each MiB differs, so that nothing can be saved by finding equal blocks.
            let mut b = block.clone();
            for page in b.chunks_mut(4096) {
                page[..8].copy_from_slice(&(i as u64).to_le_bytes());
                page[8..16].copy_from_slice(
                    version
                        .as_bytes()
                        .first_chunk::<1>()
                        .map_or(&[0; 8], |c| if c[0] % 2 == 0 { &[1; 8] } else { &[2; 8] }),
                );
            }
            f.write_all(&b)?;
        }
    }
    let size = format!("{image_mib}M");
    tool(&[
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-m",
        "0",
        "-O",
        "^metadata_csum_seed,^orphan_file,^has_journal",
        "-E",
        "lazy_itable_init=0,root_owner=0:0",
        "-d",
        tree.as_str(),
        out.as_str(),
        &size,
    ])?;
    Ok(())
}

/// Bytes that nothing recognises, the same each time.
pub fn noise(len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 32);
    let mut block = Sha256::digest(b"noise");
    while out.len() < len {
        out.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_disk_reads_back() {
        for t in ["sgdisk", "mkfs.vfat", "mcopy", "mke2fs"] {
            if !proc::exists(t) {
                println!("skipped: {t} is not installed; `tests/run image` installs it");
                return;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let root = dir.join("root.img");
        root_image(&root, "1", 16, 2, Some("/bin/true".into()), true).unwrap();
        let ext4 = crate::ext4::Ext4 { image: root.clone() };
        let release = String::from_utf8(ext4.read("/usr/lib/os-release").unwrap()).unwrap();
        assert!(release.contains("VERSION_ID=\"1\""), "{release}");
        ext4.mkdir("/usr/lib/a/b").unwrap();
        ext4.write("/usr/lib/a/b/c", b"new\n", 0o755).unwrap();
        assert_eq!(ext4.read("/usr/lib/a/b/c").unwrap(), b"new\n");
        ext4.remove("/usr/lib/a/b/c").unwrap();
        assert!(ext4.read("/usr/lib/a/b/c").is_err());
        tool(&["e2fsck", "-fn", root.as_str()]).unwrap();

        let disk = PlainDisk::make(&dir.join("disk.img"), 16, &root).unwrap();
        let committed = Env::committed(Slot::A, 1);
        for b in disk.env_bytes().unwrap() {
            assert_eq!(Env::decode(&b).unwrap(), committed);
        }
        disk.set_env(&committed.armed(Slot::B)).unwrap();
        assert_eq!(
            Env::decode(&disk.env_bytes().unwrap()[1]).unwrap().trial(),
            Some(Slot::B)
        );
        let whole = crate::product::sha256(&root).unwrap();
        assert_eq!(disk.slot_sha256(Slot::A, disk.slot_size).unwrap(), whole);
        assert_ne!(disk.slot_sha256(Slot::B, disk.slot_size).unwrap(), whole);
        let said = tool(&["sgdisk", "-v", disk.path.as_str()]).unwrap();
        assert!(said.contains("No problems found"), "{said}");
    }
}
