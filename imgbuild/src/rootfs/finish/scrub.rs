//! Takes out what only one machine may have, and what differs from build to build.

use super::super::{accounts, inroot, io_error, write_new};
use super::in_root;
use crate::epoch::source_date_epoch;
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

/// Directories that are emptied: a node mounts something there, or starts with its own.
const EMPTY: [&str; 7] = ["dev", "proc", "run", "sys", "tmp", "var/cache", "var/tmp"];

/// Files and directories that are removed.
const REMOVE: [&str; 20] = [
    "etc/.pwd.lock",
    "etc/.updated",
    "etc/group-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow-",
    "etc/subgid-",
    "etc/subuid-",
    "root/.bash_history",
    "root/.lesshst",
    "root/.rpmdb",
    "var/.updated",
    "var/lib/dnf",
    "var/lib/systemd/credential.secret",
    "var/lib/systemd/random-seed",
    "var/lib/NetworkManager/secret_key",
    "var/lib/cloud/instances",
    "boot/grub/grubenv",
    "boot/grub2/grubenv",
    ".dnf",
];

/// Replaced by what [`crate::initramfs`] makes; an image whose initramfs is not made here keeps its own.
const INITRAMFS: &str = "boot/initramfs.img";

/// Cleans the tree; `initramfs` tells whether one is made afterwards.
pub(super) fn scrub(root: &Utf8Path, initramfs: bool) -> Result<()> {
    if initramfs {
        remove(&in_root(root, INITRAMFS)?)?;
    }
    for name in EMPTY {
        let at = inroot::resolve_all(root, name).map_err(|e| io_error(name, &e))?;
        if at.is_dir() {
            same_device(root, &at)?;
            for entry in list(&at)? {
                remove(&entry)?;
            }
        }
    }
    for name in REMOVE {
        remove(&in_root(root, name)?)?;
    }
    // A link to /etc/machine-id is right, a copy of one machine's is not.
    let dbus = in_root(root, "var/lib/dbus/machine-id")?;
    if !dbus.is_symlink() {
        remove(&dbus)?;
    }
    let ssh = in_root(root, "etc/ssh")?;
    if ssh.is_dir() {
        for entry in list(&ssh)? {
            if entry.file_name().is_some_and(|n| n.starts_with("ssh_host_")) {
                remove(&entry)?;
            }
        }
    }
    let logs = inroot::resolve_all(root, "var/log").map_err(|e| io_error("var/log", &e))?;
    if logs.is_dir() {
        remove_files(&logs)?;
    }
    // Empty, not missing: systemd then gives each machine its own and can write it down.
    write_new(&in_root(root, "etc/machine-id")?, b"", 0o444)?;
    shadow_dates(root)
}

/// Days of the last password change, where a program took them from the clock.
fn shadow_dates(root: &Utf8Path) -> Result<()> {
    let at = in_root(root, "etc/shadow")?;
    let Ok(meta) = fs_err::metadata(&at) else {
        return Ok(());
    };
    let old = accounts::read(root, "shadow");
    let new = clamp_shadow(&old, source_date_epoch() / 86_400);
    if new == old {
        return Ok(());
    }
    write_new(&at, new.as_bytes(), meta.permissions().mode() & 0o7777)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(()); // the file is his who wrote it, as it was before
    }
    super::give(&at, meta.uid(), meta.gid())
}

fn clamp_shadow(text: &str, today: u64) -> String {
    text.lines()
        .map(|line| {
            let mut fields: Vec<String> = line.split(':').map(str::to_owned).collect();
            if let Some(day) = fields.get_mut(2)
                && day.parse::<u64>().is_ok_and(|d| d > today)
            {
                *day = today.to_string();
            }
            fields.join(":") + "\n"
        })
        .collect()
}

/// A mount below the tree would mean that we are about to empty something that is not ours.
fn same_device(root: &Utf8Path, at: &Utf8Path) -> Result<()> {
    let dev = |p: &Utf8Path| {
        fs_err::metadata(p)
            .map(|m| m.dev())
            .map_err(|e| io_error("cannot look at the root", &e))
    };
    if dev(root)? == dev(at)? {
        return Ok(());
    }
    Err(BuildError::new(
        Kind::Bug,
        "BUG002",
        format!("{at} is a mount; nothing below it was removed"),
    ))
}

fn list(dir: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    dir.read_dir_utf8()
        .and_then(|d| d.map(|e| e.map(|e| e.into_path())).collect())
        .map_err(|e| io_error(&format!("cannot read {dir}"), &e))
}

fn remove(at: &Utf8Path) -> Result<()> {
    let result = match at.symlink_metadata() {
        Ok(m) if m.is_dir() => fs_err::remove_dir_all(at),
        Ok(_) => fs_err::remove_file(at),
        Err(_) => return Ok(()),
    };
    result.map_err(|e| io_error("cannot clean the root", &e))
}

/// Removes files below `dir`, keeps the directories: services expect theirs.
fn remove_files(dir: &Utf8Path) -> Result<()> {
    for entry in list(dir)? {
        if entry.is_dir() && !entry.is_symlink() {
            remove_files(&entry)?;
        } else {
            remove(&entry)?;
        }
    }
    Ok(())
}

/// Says what should not be in an image and was not taken out.
pub(super) fn lint(root: &Utf8Path, work: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    walk(root, &mut |at, meta| {
        let kind = meta.file_type();
        let shown = at.strip_prefix(root).unwrap_or(at);
        if kind.is_block_device() || kind.is_char_device() || kind.is_socket() || kind.is_fifo() {
            progress.warning(
                "IMG007",
                &format!("/{shown}: a device, socket or pipe does not belong into an image"),
            );
        }
        let small = kind.is_file() && meta.len() < 1 << 20;
        if small
            && shown.starts_with("etc")
            && fs_err::read(at).is_ok_and(|b| contains(&b, work.as_str().as_bytes()))
        {
            progress.warning(
                "IMG008",
                &format!("/{shown}: names {work}, a directory of this build"),
            );
        }
        Ok(())
    })
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && bytes.windows(needle.len()).any(|w| w == needle)
}

/// Sets modification times that are newer than the image's one time back to it.
pub fn clamp_times(root: &Utf8Path) -> Result<()> {
    let limit = i64::try_from(source_date_epoch()).unwrap_or(i64::MAX);
    let time = Timespec {
        tv_sec: limit,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let clamp = |at: &Utf8Path, meta: &std::fs::Metadata| {
        if meta.mtime() < limit || (meta.mtime() == limit && meta.mtime_nsec() == 0) {
            return Ok(());
        }
        utimensat(CWD, at.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(std::io::Error::from)
    };
    walk(root, &mut |at, meta| {
        clamp(at, meta).map_err(|e| io_error(&format!("cannot set the time of {at}"), &e))
    })
}

type Visit<'a> = dyn FnMut(&Utf8Path, &std::fs::Metadata) -> Result<()> + 'a;

/// Visits everything below and including `at`, children first, never over a link. Names that are not UTF-8 are skipped.
fn walk(at: &Utf8Path, visit: &mut Visit<'_>) -> Result<()> {
    let meta = fs_err::symlink_metadata(at).map_err(|e| io_error("cannot look at a file", &e))?;
    if meta.is_dir() {
        let entries = fs_err::read_dir(at).map_err(|e| io_error("cannot read a directory", &e))?;
        for entry in entries {
            let entry = entry.map_err(|e| io_error(at.as_str(), &e))?;
            if let Ok(path) = Utf8PathBuf::from_path_buf(entry.path()) {
                walk(&path, visit)?;
            }
        }
    }
    visit(at, &meta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_dates_are_clamped() {
        assert_eq!(
            clamp_shadow("root:*:20000:0:99999:7:::\nbin:*:100::::::\nx:!::::::\n", 19_675),
            "root:*:19675:0:99999:7:::\nbin:*:100::::::\nx:!::::::\n"
        );
    }
}
