//! A dry run: the bundle's steps run for real, but in private namespaces, with everything writable replaced by overlays that
//! vanish. Where that cannot be built completely, the dry run is refused.
//!
//! Outside, `unshare` makes the namespaces and starts this program again; inside, [`enter`] builds the root and goes there.

use crate::error::{Result, StepsError};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::CapabilitySet;
use std::ffi::CString;

/// What to start instead of running here: `unshare`'s argument vector, followed by the program and its arguments.
///
/// # Errors
/// `NotPermitted` where namespaces cannot be made, naming what is missing.
pub fn command(program: &str, args: &[String]) -> Result<Vec<String>> {
    if !rustix::process::geteuid().is_root() {
        return Err(StepsError::new(
            Code::NotPermitted,
            "a dry run needs root: it hides the node behind overlays; `os-agent steps plan` does not",
        ));
    }
    let unshare = ["/usr/bin/unshare", "/bin/unshare"]
        .into_iter()
        .find(|p| Utf8Path::new(p).exists())
        .ok_or_else(|| refuse("there is no unshare(1) (package util-linux)"))?;
    let flags = [
        "--mount",
        "--propagation",
        "private",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--",
        program,
    ];
    Ok(std::iter::once(unshare)
        .chain(flags)
        .map(str::to_owned)
        .chain(args.iter().cloned())
        .collect())
}

fn refuse(why: &str) -> StepsError {
    StepsError::new(Code::NotPermitted, format!("the dry run is refused: {why}"))
}

/// What happens to a mount of the real system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Treatment {
    Overlay,
    ReadOnly,
    Hidden,
}

/// Mount points below `/` in the order in which they must be covered, and how. PURE.
fn treatments(mountinfo: &str) -> Vec<(Utf8PathBuf, Treatment)> {
    let mut out: Vec<(Utf8PathBuf, Treatment)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let Some(at) = left.split(' ').nth(4) else {
            continue;
        };
        let at = Utf8PathBuf::from(at.replace("\\040", " ").replace("\\011", "\t"));
        let kind = right.split(' ').next().unwrap_or_default();
        if at == "/" {
            continue;
        }
        let system = ["/proc", "/sys", "/dev", "/run"]
            .iter()
            .any(|d| at.starts_with(d));
        let how = match kind {
            _ if system => continue,
            "ext4" | "ext3" | "ext2" | "xfs" | "btrfs" | "f2fs" | "overlay" | "tmpfs" => Treatment::Overlay,
            "squashfs" | "erofs" | "iso9660" | "vfat" | "exfat" => Treatment::ReadOnly,
            _ => Treatment::Hidden,
        };
        out.retain(|(p, _)| *p != at);
        out.push((at, how));
    }
    out.sort();
    out
}

fn mount(what: &str, at: &Utf8Path, kind: &str, flags: MountFlags, data: &str) -> Result<()> {
    let data = CString::new(data).map_err(|_| refuse("a path holds a zero byte"))?;
    rustix::mount::mount(what, at.as_str(), kind, flags, Some(data.as_c_str()))
        .map_err(|e| refuse(&format!("{kind} on {at}: {e}")))
}

fn bind_read_only(what: &Utf8Path, at: &Utf8Path) -> Result<()> {
    let fail = |e: rustix::io::Errno| refuse(&format!("{what} read-only: {e}"));
    rustix::mount::mount_bind(what.as_str(), at.as_str()).map_err(fail)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV;
    rustix::mount::mount_remount(at.as_str(), flags, "").map_err(fail)
}

fn dir(path: &Utf8Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| refuse(&format!("{path}: {e}")))
}

/// Builds the root and moves this process into it. Everything written afterwards is in memory and ends with the process.
///
/// # Errors
/// `NotPermitted` naming what could not be built; nothing was run then.
pub fn enter() -> Result<()> {
    if std::process::id() != 1 {
        return Err(refuse("not in a process namespace of its own"));
    }
    let info =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| refuse(&format!("mountinfo: {e}")))?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| refuse(&format!("private mounts: {e}")))?;
    let nodev = MountFlags::NODEV | MountFlags::NOSUID;
    let scratch = Utf8Path::new("/run");
    mount("tmpfs", scratch, "tmpfs", nodev, "mode=0700,size=50%")?;
    let root = scratch.join("root");
    dir(&root)?;
    overlay(0, Utf8Path::new("/"), &root)?;
    for (i, (at, how)) in treatments(&info).into_iter().enumerate() {
        let to = root.join(at.as_str().trim_start_matches('/'));
        if !at.is_dir() {
            if at.exists() && to.exists() {
                bind_read_only(&at, &to)?;
            }
            continue;
        }
        if !to.is_dir() {
            // Hidden by a later mount already.
            continue;
        }
        match how {
            Treatment::Overlay => overlay(i + 1, &at, &to)?,
            Treatment::ReadOnly => bind_read_only(&at, &to)?,
            Treatment::Hidden => mount("tmpfs", &to, "tmpfs", nodev | MountFlags::RDONLY, "size=4k")?,
        }
    }
    system(&root)?;
    let old = root.join("run/old");
    dir(&old)?;
    rustix::process::pivot_root(root.as_str(), old.as_str())
        .map_err(|e| refuse(&format!("pivot_root: {e}")))?;
    std::env::set_current_dir("/").map_err(|e| refuse(&format!("/: {e}")))?;
    rustix::mount::unmount("/run/old", UnmountFlags::DETACH)
        .map_err(|e| refuse(&format!("the old root: {e}")))?;
    // Whatever is left that reaches the real machine: modules, clocks, devices, mounts.
    for cap in [
        CapabilitySet::SYS_ADMIN,
        CapabilitySet::SYS_MODULE,
        CapabilitySet::SYS_RAWIO,
        CapabilitySet::SYS_BOOT,
        CapabilitySet::SYS_TIME,
        CapabilitySet::MKNOD,
    ] {
        rustix::thread::remove_capability_from_bounding_set(cap)
            .map_err(|e| refuse(&format!("capabilities: {e}")))?;
    }
    Ok(())
}

fn overlay(n: usize, lower: &Utf8Path, at: &Utf8Path) -> Result<()> {
    let (upper, work) = (format!("/run/{n}.upper"), format!("/run/{n}.work"));
    dir(Utf8Path::new(&upper))?;
    dir(Utf8Path::new(&work))?;
    if lower.as_str().contains([',', ':', '\\']) {
        return Err(refuse(&format!(
            "{lower}: its name cannot be given to an overlay"
        )));
    }
    mount(
        "overlay",
        at,
        "overlay",
        MountFlags::NODEV,
        &format!("lowerdir={lower},upperdir={upper},workdir={work}"),
    )
}

/// /proc, /sys, /dev and /run of the new root.
fn system(root: &Utf8Path) -> Result<()> {
    let safe = MountFlags::NODEV | MountFlags::NOSUID;
    for d in ["proc", "sys", "dev", "run"] {
        dir(&root.join(d))?;
    }
    let proc = root.join("proc");
    mount("proc", &proc, "proc", safe, "")?;
    for part in ["sys", "sysrq-trigger", "irq", "bus"] {
        let p = proc.join(part);
        if p.exists() {
            bind_read_only(&p, &p)?;
        }
    }
    mount("sysfs", &root.join("sys"), "sysfs", safe | MountFlags::RDONLY, "")?;
    mount("tmpfs", &root.join("run"), "tmpfs", safe, "mode=0755,size=16m")?;
    let dev = root.join("dev");
    mount("tmpfs", &dev, "tmpfs", MountFlags::NOSUID, "mode=0755,size=1m")?;
    for node in ["null", "zero", "full", "random", "urandom", "tty"] {
        let to = dev.join(node);
        crate::sys::atomic::append(&to)?;
        rustix::mount::mount_bind(format!("/dev/{node}"), to.as_str())
            .map_err(|e| refuse(&format!("/dev/{node}: {e}")))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlink(target, dev.join(name).as_str())
            .map_err(|e| refuse(&format!("/dev/{name}: {e}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mount_is_covered_hidden_or_read_only() {
        let info = "\
22 1 254:2 / / rw - ext4 /dev/vda3 rw
23 22 0:20 / /proc rw - proc proc rw
24 22 254:5 / /persist rw - ext4 /dev/vda5 rw
25 22 0:30 / /etc rw - overlay overlay rw
26 22 254:5 /var /var rw - ext4 /dev/vda5 rw
27 22 254:1 / /boot/efi rw - vfat /dev/vda1 rw
28 22 0:33 / /mnt/nfs rw - nfs4 server:/x rw
29 22 0:34 / /run rw - tmpfs tmpfs rw
30 22 0:35 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
";
        let got: Vec<(String, Treatment)> = treatments(info)
            .into_iter()
            .map(|(p, t)| (p.into_string(), t))
            .collect();
        assert_eq!(
            got,
            [
                ("/boot/efi".to_owned(), Treatment::ReadOnly),
                ("/etc".to_owned(), Treatment::Overlay),
                ("/mnt/nfs".to_owned(), Treatment::Hidden),
                ("/persist".to_owned(), Treatment::Overlay),
                ("/var".to_owned(), Treatment::Overlay),
            ]
        );
    }
}
