//! ext4 images from a directory: `mke2fs -d`, then one pass that takes out what differs between two equal trees.
//!
//! `mke2fs -d` copies atime and ctime of the source, which no one controls. A pass with `debugfs` sets atime, ctime and
//! creation time of every inode to one time and clamps mtime to it; afterwards the result is read back and checked.
//! The host's mke2fs.conf is not read, and all features are named here: GRUB and old kernels read them all.

mod inodes;

use crate::cmd::Cmd;
use crate::error::{BuildError, Kind, Result};
use camino::{Utf8Path, Utf8PathBuf};
use inodes::Inode;
use std::fmt::Write as _;
use uuid::Uuid;

/// Block size of every file system.
pub const BLOCK: u64 = 4096;
/// Size of an inode.
pub const INODE: u64 = 256;

/// Features of all our file systems. Not: 64bit, large_dir (not needed below 16 TiB), metadata_csum_seed, orphan_file
/// (GRUB 2.06 and older kernels refuse them).
const FEATURES: &str = "none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,\
                        extra_isize,metadata_csum";

/// In place of the host's mke2fs.conf; the classes of sizes exist, so that mke2fs does not warn.
const CONFIG: &[u8] =
    b"[defaults]\n base_features = none\n blocksize = 4096\n inode_size = 256\n[fs_types]\n\
 ext4 = {\n  inode_size = 256\n }\n small = {\n  inode_size = 256\n }\n floppy = {\n  inode_size = 256\n }\n\
 big = {\n  inode_size = 256\n }\n huge = {\n  inode_size = 256\n }\n";

/// What to make.
#[derive(Debug, Clone)]
pub struct Ext4<'a> {
    /// File to create.
    pub image: &'a Utf8Path,
    /// Its content.
    pub tree: &'a Utf8Path,
    /// Size in bytes, a multiple of [`BLOCK`].
    pub size: u64,
    /// UUID.
    pub uuid: Uuid,
    /// Seed of directory hashes.
    pub hash_seed: Uuid,
    /// Volume label, at most 16 bytes.
    pub label: &'a str,
    /// Time of everything.
    pub epoch: u64,
    /// What it is for.
    pub purpose: Purpose,
}

/// What a file system is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Mounted read-only: no journal, never resized, this many inodes. What belongs to the ordinary user who builds
    /// belongs to root in it: his number says nothing on a node, and two users get the same image.
    ReadOnly {
        /// Number of inodes.
        inodes: u64,
    },
    /// Mounted read-write and grown later; everything in it belongs to root.
    Data,
}

/// Makes the image. Needs `mke2fs` and `debugfs`; works without root.
///
/// # Errors
/// DEP001 when a tool is missing; EXT001 when the tree does not fit or cannot be read; EXT002 when the result is not what
/// it must be.
pub fn make(fs: &Ext4<'_>, work: &Utf8Path) -> Result<()> {
    let config = work.join("mke2fs.conf");
    crate::files::write(&config, CONFIG)?;
    let mut cmd = Cmd::new("mke2fs")
        .env("MKE2FS_CONFIG", &config)
        .env("E2FSPROGS_FAKE_TIME", fs.epoch.to_string())
        .env("SOURCE_DATE_EPOCH", fs.epoch.to_string())
        // Directory entries are sorted by the locale's rules.
        .env("LC_ALL", "C")
        .args([
            "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-r", "1",
        ])
        .args(["-U", &fs.uuid.to_string(), "-L", fs.label])
        .arg("-E")
        .arg(format!(
            "hash_seed={},lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0",
            fs.hash_seed
        ));
    cmd = match fs.purpose {
        Purpose::ReadOnly { inodes } => cmd.args(["-O", FEATURES, "-N", &inodes.to_string()]),
        Purpose::Data => cmd.args([
            "-O",
            &format!("{FEATURES},has_journal,resize_inode"),
            "-J",
            "size=32",
            "-i",
            "16384",
        ]),
    };
    cmd.arg("-d")
        .arg(fs.tree)
        .arg(fs.image)
        .arg(format!("{}k", fs.size / 1024))
        .run()
        .map_err(|e| refine(e, fs))?;
    normalise(fs, work)?;
    check(fs)
}

/// mke2fs says "Could not allocate block" for a full file system, which is our limit and not the host's.
fn refine(e: BuildError, fs: &Ext4<'_>) -> BuildError {
    if e.kind == Kind::Tools || e.message.contains("No space left on device") {
        return e;
    }
    if e.message.contains("Could not allocate") || e.message.contains("No free space") {
        return BuildError::new(
            Kind::Space,
            "SIZE001",
            format!(
                "the content of {} does not fit into {} MiB; {}",
                fs.tree,
                fs.size >> 20,
                e.message
            ),
        );
    }
    BuildError::new(
        Kind::Build,
        "EXT001",
        format!("making an ext4 image of {}: {}", fs.tree, e.message),
    )
}

/// Removes what depends on the host and the moment.
fn normalise(fs: &Ext4<'_>, work: &Utf8Path) -> Result<()> {
    let epoch = u32::try_from(fs.epoch).unwrap_or(u32::MAX);
    let before = inodes::read(fs.image)?;
    let me = rustix::process::geteuid();
    let roots = match fs.purpose {
        Purpose::Data => Roots::All,
        Purpose::ReadOnly { .. } if me.is_root() => Roots::Own,
        Purpose::ReadOnly { .. } => Roots::AndOf {
            uid: me.as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
    };
    let script = script(&before, epoch, roots);
    if !script.is_empty() {
        run_debugfs(fs, work, &script)?;
    }
    let left = inodes::read(fs.image)?
        .iter()
        .filter(|i| !changes(i, epoch, roots).is_empty())
        .count();
    if left > 0 {
        return Err(BuildError::new(
            Kind::Build,
            "EXT002",
            format!(
                "{}: {left} inodes kept times or owners of this machine although debugfs reported success",
                fs.image
            ),
        ));
    }
    Ok(())
}

fn run_debugfs(fs: &Ext4<'_>, work: &Utf8Path, script: &str) -> Result<()> {
    let file: Utf8PathBuf = work.join("debugfs.cmd");
    crate::files::write(&file, script.as_bytes())?;
    let out = Cmd::new("debugfs")
        .env("E2FSPROGS_FAKE_TIME", fs.epoch.to_string())
        .args(["-w", "-f"])
        .arg(&file)
        .arg(fs.image)
        .run()?;
    // debugfs ends with status 0 whatever happened; all it may say on stderr is its version.
    let complaint = out
        .stderr_tail
        .lines()
        .find(|l| !l.trim().is_empty() && !l.starts_with("debugfs "));
    match complaint {
        None => Ok(()),
        Some(line) => Err(BuildError::new(
            Kind::Build,
            "EXT002",
            format!("debugfs on {}: {line}", fs.image),
        )),
    }
}

/// What belongs to root besides what does already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Roots {
    /// Nothing.
    Own,
    /// Files of this user, and this group's files.
    AndOf {
        /// The builder.
        uid: u32,
        /// The builder's group.
        gid: u32,
    },
    /// Everything.
    All,
}

impl Roots {
    /// Whether user and group of a file become root.
    fn take(self, i: &Inode) -> (bool, bool) {
        match self {
            Roots::Own => (false, false),
            // In a directory with setgid, or after chgrp, a file of the user has another group of his: none of the image's.
            Roots::AndOf { uid, gid } => (i.uid == uid, i.uid == uid || i.gid == gid),
            Roots::All => (true, true),
        }
    }
}

/// The fields of an inode that must change, as debugfs commands without the inode.
fn changes(i: &Inode, epoch: u32, roots: Roots) -> Vec<String> {
    let mut out = Vec::new();
    let mut time = |name: &str, seconds: u32, extra: u32, wanted: bool| {
        if wanted && seconds != epoch {
            out.push(format!("{name} @{epoch}"));
        }
        if extra != 0 {
            out.push(format!("{name}_extra 0"));
        }
    };
    time("atime", i.atime, i.atime_extra, true);
    time("ctime", i.ctime, i.ctime_extra, true);
    time("crtime", i.crtime, i.crtime_extra, true);
    time("mtime", i.mtime, i.mtime_extra, i.mtime > epoch);
    let (uid, gid) = roots.take(i);
    if uid && i.uid != 0 {
        out.push("uid 0".to_owned());
    }
    if gid && i.gid != 0 {
        out.push("gid 0".to_owned());
    }
    out
}

fn script(inodes: &[Inode], epoch: u32, roots: Roots) -> String {
    let mut out = String::new();
    for i in inodes {
        for change in changes(i, epoch, roots) {
            let _ = writeln!(out, "sif <{}> {change}", i.number);
        }
    }
    out
}

/// A file system is not believed before it was checked.
fn check(fs: &Ext4<'_>) -> Result<()> {
    let (status, out) = Cmd::new("e2fsck").args(["-f", "-n"]).arg(fs.image).status()?;
    if status.success() {
        return Ok(());
    }
    let tail = crate::cmd::quote_tail(&out.stderr_tail, &out.stdout, 10);
    Err(BuildError::new(
        Kind::Build,
        "EXT002",
        format!("{}: e2fsck finds errors{tail}", fs.image),
    ))
}

#[cfg(test)]
mod tests;
