//! Which package brings a program, for messages.

use crate::error::{BuildError, Kind, Result};

/// The error for programs that are missing on this host: all of them, with the packages that bring them.
pub fn missing_tools(programs: &[&str]) -> BuildError {
    let list: Vec<String> = programs
        .iter()
        .map(|p| format!("{p} ({})", package_on_host(p)))
        .collect();
    BuildError::new(
        Kind::Tools,
        "DEP001",
        format!(
            "missing: {}; install the packages in brackets (Debian name / RPM name)",
            list.join(", ")
        ),
    )
}

/// Checks that programs exist in `PATH`, before anything is written.
pub fn need_tools(programs: &[&str]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |p: &str| std::env::split_paths(&path).any(|d| d.join(p).is_file());
    let missing: Vec<&str> = programs.iter().copied().filter(|p| !found(p)).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(missing_tools(&missing))
    }
}

fn package_on_host(program: &str) -> &str {
    let name = program.rsplit('/').next().unwrap_or(program);
    match name {
        "mke2fs" | "e2fsck" | "debugfs" | "tune2fs" | "dumpe2fs" | "resize2fs" => "e2fsprogs",
        "mkfs.vfat" | "mkfs.fat" | "fsck.fat" | "fsck.vfat" => "dosfstools",
        "mcopy" | "mmd" | "mtype" => "mtools",
        "sgdisk" => "gdisk",
        "qemu-img" => "qemu-utils / qemu-img",
        "systemctl" | "systemd-sysusers" => "systemd",
        "createrepo_c" => "createrepo-c / createrepo_c",
        "rpmkeys" => "rpm",
        _ => name,
    }
}

pub(super) fn package_in_image(program: &str) -> Option<&'static str> {
    Some(match program.rsplit('/').next().unwrap_or(program) {
        "dracut" | "lsinitrd" => "dracut",
        "grub-mkimage" | "grub2-mkimage" => "grub2-tools",
        "depmod" => "kmod",
        "ldconfig" => "glibc",
        "systemctl" | "systemd-sysusers" => "systemd",
        _ => return None,
    })
}
