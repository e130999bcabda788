//! A disk of 37 MiB with the real partition table, the real grub.cfg and real GRUB, and dummies for kernels.

use super::states::Crash;
use crate::proc::sh;
use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use fs_err as fs;
use imgbuild::boot::{self, Platform, esp};
use os_proto::layout::{Arch, MIB, Role, SLIPWAY, STATE_512};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// GRUB's modules for both firmwares and the images made of them.
pub struct Grub {
    dir: Utf8PathBuf,
    boot_img: Vec<u8>,
    core_img: Vec<u8>,
}

impl Grub {
    /// Takes the host's modules, or downloads Debian's packages into the cache without installing them.
    ///
    /// # Errors
    /// When neither works or `grub-mkimage` fails.
    pub fn ensure(work: &Utf8Path) -> Result<Grub> {
        let modules = Self::modules()?;
        let dir = work.join("grub");
        fs::create_dir_all(&dir)?;
        for p in Platform::of(Arch::X86_64) {
            let from = modules.join(p.format());
            let out = dir.join(p.format());
            let mut argv = vec!["grub-mkimage", "-d", from.as_str(), "-O", p.format()];
            argv.extend(["-p", p.prefix(), "-o", out.as_str()]);
            argv.extend(p.modules());
            sh(&argv)?;
        }
        Ok(Grub {
            boot_img: fs::read(modules.join("i386-pc/boot.img"))?,
            core_img: fs::read(dir.join("i386-pc"))?,
            dir,
        })
    }

    fn modules() -> Result<Utf8PathBuf> {
        let complete =
            |d: &Utf8Path| d.join("i386-pc/boot.img").exists() && d.join("x86_64-efi/normal.mod").exists();
        let host = Utf8PathBuf::from("/usr/lib/grub");
        if complete(&host) {
            return Ok(host);
        }
        let home = std::env::var("HOME").context("HOME is not set")?;
        let cache = Utf8PathBuf::from(home).join(".cache/slipway/grub");
        let dir = cache.join("usr/lib/grub");
        if !complete(&dir) {
            fs::create_dir_all(&cache)?;
            let packages = ["grub-pc-bin", "grub-efi-amd64-bin"];
            crate::proc::run(
                crate::proc::command("apt-get")
                    .args(["-q", "download"])
                    .args(packages)
                    .current_dir(&cache),
            )?;
            for entry in fs::read_dir(&cache)? {
                let path = Utf8PathBuf::try_from(entry?.path())?;
                if path.extension() == Some("deb") {
                    sh(&["dpkg-deb", "-x", path.as_str(), cache.as_str()])?;
                }
            }
        }
        if !complete(&dir) {
            bail!("{dir}: GRUB's modules are not complete");
        }
        Ok(dir)
    }
}

/// What differs between disks.
pub struct Recipe<'a> {
    /// Content of `env1`; `None` = the file is missing.
    pub env1: Option<&'a [u8]>,
    /// Content of `env2`; `None` = the file is missing.
    pub env2: Option<&'a [u8]>,
    /// Whether slot A has a file where the kernel belongs.
    pub a_has_kernel: bool,
    /// Whether GRUB offers its menu.
    pub menu: bool,
    /// os-state and slots as a power cut left them, instead of what the fields above say of them.
    pub crash: Option<&'a Crash>,
}

/// A disk image file.
pub struct SmallDisk {
    /// Where it lies.
    pub path: Utf8PathBuf,
    has_env1: bool,
}

const BOOT: u64 = 1;
const STATE: u64 = 17;
const ROOT_A: u64 = 19;
const ROOT_B: u64 = 27;
const PERSIST: u64 = 35;
const END: u64 = 36;
const BIOS_LBA: u64 = 40;

impl SmallDisk {
    /// Builds one.
    ///
    /// # Errors
    /// When a tool is missing or fails.
    pub fn build(grub: &Grub, path: &Utf8Path, recipe: &Recipe<'_>) -> Result<SmallDisk> {
        let scratch = path.with_extension("d");
        fs::create_dir_all(&scratch)?;
        let mut disk = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        disk.set_len((END + 1) * MIB)?;
        table(path)?;
        mbr(&disk, grub)?;

        let boot = [
            (grub.dir.join("x86_64-efi"), "EFI/BOOT/BOOTX64.EFI".to_owned()),
            (
                save(&scratch, "grub.cfg", boot::GRUB_CFG.as_bytes())?,
                esp::GRUB_CFG.to_owned(),
            ),
            (
                save(&scratch, "menu.env", &boot::menu_env(recipe.menu))?,
                esp::MENU.to_owned(),
            ),
        ];
        let image = fat(
            &scratch,
            "boot",
            (STATE - BOOT) * MIB,
            &["-F", "16"],
            &["EFI", "EFI/BOOT", "grub"],
            &boot,
        )?;
        put(&mut disk, BOOT, &image)?;

        if let Some(crash) = recipe.crash {
            put_bytes(&mut disk, STATE, &crash.state)?;
            for (mib, slot) in [ROOT_A, ROOT_B].into_iter().zip(&crash.slots) {
                if slot.len() as u64 > (ROOT_B - ROOT_A) * MIB {
                    bail!(
                        "a recorded slot of {} bytes is larger than the disk's",
                        slot.len()
                    );
                }
                put_bytes(&mut disk, mib, slot)?;
            }
            fs::remove_dir_all(&scratch)?;
            return Ok(SmallDisk {
                path: path.to_owned(),
                has_env1: true,
            });
        }
        let mut files = Vec::new();
        for (name, content) in [("env1", recipe.env1), ("env2", recipe.env2)] {
            if let Some(c) = content {
                files.push((save(&scratch, name, c)?, name.to_owned()));
            }
        }
        // The geometry of the layout table.
        let opts = [
            "-a", "-F", "12", "-S", "512", "-s", "8", "-R", "12", "-f", "2", "-r", "128",
        ];
        put(
            &mut disk,
            STATE,
            &fat(&scratch, "state", 2 * MIB, &opts, &[], &files)?,
        )?;

        put(&mut disk, ROOT_A, &slot(&scratch, "a", recipe.a_has_kernel)?)?;
        put(&mut disk, ROOT_B, &slot(&scratch, "b", true)?)?;
        fs::remove_dir_all(&scratch)?;
        Ok(SmallDisk {
            path: path.to_owned(),
            has_env1: recipe.env1.is_some_and(|e| !e.is_empty()),
        })
    }

    /// Offset of `env1` in the disk, if that file exists and is not empty.
    pub fn env1_at(&self) -> Option<usize> {
        self.has_env1
            .then(|| usize::try_from(STATE * MIB + STATE_512.env1).ok())?
    }

    /// The first sector of `env1` now.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn read_env1(&self) -> Result<Vec<u8>> {
        let mut b = vec![0; os_proto::env_block::SIZE];
        fs::File::open(&self.path)?
            .file()
            .read_exact_at(&mut b, STATE * MIB + STATE_512.env1)?;
        Ok(b)
    }
}

fn table(path: &Utf8Path) -> Result<()> {
    let mut argv = vec!["sgdisk".to_owned(), "-a".into(), "1".into()];
    for e in SLIPWAY {
        let (first, end) = match e.role {
            Role::Bios => (BIOS_LBA, BOOT * 2048),
            Role::Boot => (BOOT * 2048, STATE * 2048),
            Role::OsState => (STATE * 2048, ROOT_A * 2048),
            Role::RootA => (ROOT_A * 2048, ROOT_B * 2048),
            Role::RootB => (ROOT_B * 2048, PERSIST * 2048),
            Role::Persist => (PERSIST * 2048, END * 2048),
        };
        argv.extend([
            "-n".into(),
            format!("{}:{first}:{}", e.number, end - 1),
            "-t".into(),
            format!("{}:{}", e.number, e.role.type_guid(Arch::X86_64)),
            "-c".into(),
            format!("{}:{}", e.number, e.name),
        ]);
    }
    argv.push(path.to_string());
    sh(&argv)?;
    Ok(())
}

/// GRUB's first sector, and its core in the partition for it, by block list.
fn mbr(disk: &fs::File, grub: &Grub) -> Result<()> {
    let mut old = [0; 512];
    disk.file().read_exact_at(&mut old, 0)?;
    let mut new = grub.boot_img.clone();
    let core_sectors = grub.core_img.len().div_ceil(512);
    let mut core = grub.core_img.clone();
    let patch = |image: &mut Vec<u8>, at: usize, bytes: &[u8]| -> Result<()> {
        image
            .get_mut(at..at + bytes.len())
            .context("GRUB image is too short")?
            .copy_from_slice(bytes);
        Ok(())
    };
    patch(&mut new, 0x5c, &BIOS_LBA.to_le_bytes())?;
    patch(&mut new, 0x64, &[0xff])?;
    patch(&mut new, 0x66, &[0x90, 0x90])?;
    patch(&mut new, 0x1b8, old.get(0x1b8..0x200).context("sector")?)?;
    patch(&mut core, 0x1f4, &(BIOS_LBA + 1).to_le_bytes())?;
    patch(&mut core, 0x1fc, &u16::try_from(core_sectors - 1)?.to_le_bytes())?;
    disk.file().write_all_at(&new, 0)?;
    disk.file().write_all_at(&core, BIOS_LBA * 512)?;
    Ok(())
}

fn save(dir: &Utf8Path, name: &str, content: &[u8]) -> Result<Utf8PathBuf> {
    let path = dir.join(name);
    fs::write(&path, content)?;
    Ok(path)
}

fn fat(
    dir: &Utf8Path,
    name: &str,
    size: u64,
    opts: &[&str],
    dirs: &[&str],
    files: &[(Utf8PathBuf, String)],
) -> Result<Utf8PathBuf> {
    let image = dir.join(format!("{name}.fat"));
    fs::File::create(&image)?.set_len(size)?;
    let mut argv = vec!["mkfs.vfat", "--invariant"];
    argv.extend(opts);
    argv.push(image.as_str());
    sh(&argv)?;
    for d in dirs {
        sh(&["mmd", "-i", image.as_str(), &format!("::/{d}")])?;
    }
    for (from, to) in files {
        sh(&["mcopy", "-i", image.as_str(), from.as_str(), &format!("::/{to}")])?;
    }
    Ok(image)
}

fn slot(dir: &Utf8Path, name: &str, kernel: bool) -> Result<Utf8PathBuf> {
    let root = dir.join(format!("root-{name}"));
    fs::create_dir_all(root.join("boot"))?;
    if kernel {
        fs::write(root.join("boot/vmlinuz"), "this is no kernel\n")?;
    }
    fs::write(
        root.join("boot/args.env"),
        boot::args_env(Arch::X86_64, &["test"])?,
    )?;
    let image = dir.join(format!("{name}.ext4"));
    let argv = [
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-O",
        "^metadata_csum_seed,^orphan_file,^has_journal",
    ];
    sh(&[&argv[..], &["-d", root.as_str(), image.as_str(), "8M"]].concat())?;
    Ok(image)
}

/// Copies an image to its partition, holes stay holes.
fn put(disk: &mut fs::File, mib: u64, image: &Utf8Path) -> Result<()> {
    put_bytes(disk, mib, &fs::read(image)?)
}

fn put_bytes(disk: &mut fs::File, mib: u64, content: &[u8]) -> Result<()> {
    for (i, chunk) in content.chunks(4096).enumerate() {
        if chunk.iter().any(|b| *b != 0) {
            disk.seek(SeekFrom::Start(mib * MIB + (i * 4096) as u64))?;
            disk.write_all(chunk)?;
        }
    }
    Ok(())
}
