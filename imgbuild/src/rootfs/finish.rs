//! Makes an image out of a tree of packages: the agent and its units, identity, users, files, and nothing that only one
//! machine may have.

mod agent;
mod elf;
mod embedded;
mod files;
mod os_release;
mod scrub;
mod units;
mod users;

use super::{accounts, inroot, io_error, kernel, write_new};
use crate::cmd::{Cmd, chroot, sandbox};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::{Loader, Recipe, Rootfs};
use camino::Utf8Path;

pub use scrub::clamp_times;

/// Directories that must exist, with their modes. Most are places to mount something.
const DIRECTORIES: [(&str, u32); 17] = [
    ("boot", 0o755),
    ("boot/efi", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("persist", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
];

/// Completes `root` by the recipe and cleans it.
///
/// # Errors
/// `CFG011` (users and owners), `CFG012` (agent), `IMG001` (kernel), `IMG004` (units), and what programs report.
pub fn finish(recipe: &Recipe, root: &Utf8Path, work: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    progress.stage("complete the root");
    let from_packages = matches!(recipe.rootfs, Rootfs::Packages { .. });
    if recipe.boot.loader == Loader::Grub {
        kernel::only(root)?;
    }
    directories(root)?;
    identity(recipe, root)?;
    if from_packages {
        database_link(root)?;
    }
    if from_packages || has(root, "usr/lib/systemd") {
        embedded::install(root)?;
        embedded::trial_deadline(recipe, root)?;
    }
    agent::install(recipe, root, progress)?;
    if sandbox::inside() {
        let mounts = chroot::Mounts::new(root)?;
        settle(root, progress)?;
        drop(mounts);
    }
    users::apply(recipe, root)?;
    files::apply(recipe, root)?;
    units::apply(recipe, root)?;
    progress.stage("clean the root");
    scrub::scrub(root, recipe.boot.loader == Loader::Grub)?;
    files::lost(recipe, root, progress)?;
    scrub::lint(root, work, progress)?;
    clamp_times(root)
}

/// Looks at the recipe's agent as [`finish`] will, before a build begins. The C library is known for a tree only.
///
/// # Errors
/// Why `[agent] path` cannot work in the image.
pub fn check_agent(recipe: &Recipe) -> std::result::Result<(), String> {
    let root = match &recipe.rootfs {
        Rootfs::Tree(tree) => Some(tree.as_path()),
        Rootfs::Packages { .. } => None,
    };
    match &recipe.agent {
        Some(path) => agent::read(path, recipe.arch, root).map(drop),
        None => Ok(()),
    }
}

/// What packages leave to the end: system users, the linker's cache, the list of modules.
fn settle(root: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    let run = |program: &str, args: &[&str]| -> Result<()> {
        if ["usr/sbin", "usr/bin", "sbin", "bin"]
            .iter()
            .any(|d| has(root, &format!("{d}/{program}")))
        {
            progress.step(0, 0, program);
            Cmd::new(program).args(args).chroot(root).run()?;
        }
        Ok(())
    };
    run("systemd-sysusers", &[])?;
    run("ldconfig", &[])?;
    for version in kernel::versions(root) {
        run("depmod", &["-a", &version])?;
    }
    Ok(())
}

fn has(root: &Utf8Path, path: &str) -> bool {
    inroot::resolve_all(root, path).is_ok_and(|p| p.exists())
}

fn directories(root: &Utf8Path) -> Result<()> {
    for (name, mode) in DIRECTORIES {
        let at = inroot::resolve(root, name).map_err(|e| io_error(name, &e))?;
        if !at.is_symlink() {
            fs_err::create_dir_all(&at).map_err(|e| io_error("cannot make a directory", &e))?;
            // Only what nobody else decides: a package may have given another mode to the rest.
            if mode & 0o1000 != 0 || ["proc", "sys", "dev", "run", "persist"].contains(&name) {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                fs_err::set_permissions(&at, mode).map_err(|e| io_error("cannot make a directory", &e))?;
            }
        }
    }
    Ok(())
}

fn identity(recipe: &Recipe, root: &Utf8Path) -> Result<()> {
    let base = inroot::resolve_all(root, "etc/os-release")
        .ok()
        .and_then(|p| fs_err::read_to_string(p).ok())
        .unwrap_or_default();
    let at = in_root(root, os_release::PATH)?;
    write_new(&at, os_release::text(recipe, &base).as_bytes(), 0o644)?;
    link(root, "etc/os-release", &format!("../{}", os_release::PATH))
}

/// `/var` of a node outlives an update; the package database belongs to the image.
fn database_link(root: &Utf8Path) -> Result<()> {
    let at = in_root(root, "var/lib/rpm")?;
    match at.symlink_metadata() {
        Ok(m) if m.is_symlink() => Ok(()),
        // Empty as a package brought it; anything else in it is not ours to take away.
        Ok(m) if m.is_dir() && fs_err::remove_dir(&at).is_err() => Ok(()),
        _ => link(root, "var/lib/rpm", "../../usr/lib/sysimage/rpm"),
    }
}

fn in_root(root: &Utf8Path, path: &str) -> Result<camino::Utf8PathBuf> {
    inroot::resolve(root, path).map_err(|e| io_error(path, &e))
}

/// Makes a link in the tree, replacing a file or link.
fn link(root: &Utf8Path, path: &str, target: &str) -> Result<()> {
    let at = in_root(root, path)?;
    let make = || -> std::io::Result<()> {
        if let Some(dir) = at.parent() {
            fs_err::create_dir_all(dir)?;
        }
        match fs_err::remove_file(&at) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(target, &at)
    };
    make().map_err(|e| io_error(&format!("cannot make the link {path}"), &e))
}

/// Gives a path to an owner. What an ordinary user owns becomes root's in the image ([`crate::fs::ext4`]); another owner
/// cannot be given without root, nor the user's own number, which would become root's as well.
fn give(at: &Utf8Path, uid: u32, gid: u32) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        if uid == 0 && gid == 0 {
            return Ok(());
        }
        let m = format!(
            "{at}: only a build as root can make {uid}:{gid} its owner; run imgbuild with sudo, or leave the owner out: then \
             it is root:root"
        );
        return Err(BuildError::new(Kind::Input, "CFG017", m));
    }
    std::os::unix::fs::lchown(at, Some(uid), Some(gid))
        .map_err(|e| io_error(&format!("cannot change the owner of {at}"), &e))
}

/// Numeric owner for `user`, `user:group` or numbers; a user without a group brings its own.
fn owner(root: &Utf8Path, text: &str) -> std::result::Result<(u32, u32), String> {
    let (user, group) = match text.split_once(':') {
        Some((u, g)) => (u, Some(g)),
        None => (text, None),
    };
    let (passwd, groups) = (accounts::read(root, "passwd"), accounts::read(root, "group"));
    let find = |kind: &str, table: &str, name: &str| -> std::result::Result<u32, String> {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        match (accounts::id_of(table, name), name) {
            (Some(id), _) => Ok(id),
            // A tree without accounts still has root.
            (None, "root") => Ok(0),
            (None, _) => Err(format!("{kind} {name:?} not provided by any package")),
        }
    };
    let uid = find("user", &passwd, user)?;
    let gid = match group {
        Some(g) => find("group", &groups, g)?,
        None => accounts::primary_group(&passwd, user).unwrap_or(uid),
    };
    Ok((uid, gid))
}

fn bad_owner(key: &str, why: &str) -> BuildError {
    BuildError::new(Kind::Build, "CFG011", format!("{key}: {why}"))
}

#[cfg(test)]
mod tests;
