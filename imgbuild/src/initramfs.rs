//! What the kernel needs to find its root: kernel image, initramfs by the image's own dracut, kernel arguments.
//!
//! dracut is run for any machine, not for the one that builds, and its exit status proves nothing: the archive is opened and
//! must hold what a slot needs to boot. It is compressed here, so that the image needs no compressor.

mod cpio;
mod drivers;

use crate::boot;
use crate::cmd::{Cmd, chroot, quote_tail};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::Recipe;
use crate::rootfs::kernel::{self, Kernel};
use crate::rootfs::{finish, inroot, io_error, write_new};
use camino::Utf8Path;
use std::io::Write as _;

/// dracut modules, those that the image's dracut does not have left out. Their dependencies come by themselves.
const MODULES: [&str; 12] = [
    "base",
    "systemd",
    "systemd-initrd",
    "dracut-systemd",
    "systemd-udevd",
    "udev-rules",
    "rootfs-block",
    "fs-lib",
    "kernel-modules",
    "kernel-modules-extra",
    "shutdown",
    "slipway",
];

/// Further modules where the image has their program.
const OPTIONAL: [(&str, &str); 2] = [("dm", "dmsetup"), ("mdraid", "mdadm")];

/// Paths that must be in the archive, by their ends.
const NEEDED: [&str; 8] = [
    "init",
    "usr/lib/systemd/systemd",
    "usr/lib/slipway/mounts",
    "slipway-pstore.sh",
    "slipway-watchdog.sh",
    "slipway-pre-pivot.sh",
    "/mount",
    "/e2fsck",
];

/// Where dracut writes, on a tmpfs that goes away by itself.
const SCRATCH: &str = "run/initramfs.cpio";

/// Writes `/boot/vmlinuz`, `/boot/initramfs.img` and `/boot/args.env` into `root`. [`finish::finish`] has run before.
///
/// # Errors
/// `IMG001` (kernel), `IMG002` (initramfs), `IMG005` (no dracut in the image), `CFG014` (kernel arguments).
pub fn build(recipe: &Recipe, root: &Utf8Path, _work: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    let kernel = kernel::only(root)?;
    progress.stage("initramfs");
    let args = boot::args_env(recipe.arch, &recipe.boot.args).map_err(|e| {
        BuildError::new(
            Kind::Input,
            "CFG014",
            format!("{}: [boot] args: {e}", recipe.file),
        )
    })?;
    let dir = root.join("usr/lib/modules").join(&kernel.version);
    let table =
        drivers::Table::read(&dir).map_err(|e| io_error("cannot read the kernel's list of modules", &e))?;
    let (archive, complaints) = dracut(root, &kernel, &table)?;
    let missing = missing(&archive, &table);
    if !missing.is_empty() {
        return Err(BuildError::new(
            Kind::Build,
            "IMG002",
            format!(
                "dracut made an initramfs without: {}{}",
                missing.join(", "),
                quote_tail(&complaints.join("\n"), b"", 20)
            ),
        ));
    }
    for line in complaints
        .iter()
        .filter(|l| l.contains("FAILED:") || l.contains("dracut-install: ERROR"))
    {
        progress.warning("IMG009", line);
    }
    if !table.has("softdog") {
        progress.warning(
            "IMG010",
            "the kernel has no softdog: on a machine without a hardware watchdog nothing ends a version that hangs",
        );
    }
    let compressed = compress(&archive, unpacks_zstd(root, &kernel))
        .map_err(|e| io_error("cannot compress the initramfs", &e))?;
    write_new(&in_boot(root, "initramfs.img")?, &compressed, 0o644)?;
    write_new(&in_boot(root, "args.env")?, &args, 0o644)?;
    link_kernel(root, &kernel)?;
    finish::clamp_times(root)
}

fn in_boot(root: &Utf8Path, name: &str) -> Result<camino::Utf8PathBuf> {
    inroot::resolve(root, Utf8Path::new("boot").join(name)).map_err(|e| io_error("/boot", &e))
}

/// Runs dracut; returns the plain archive and what dracut complained about.
fn dracut(root: &Utf8Path, kernel: &Kernel, table: &drivers::Table) -> Result<(Vec<u8>, Vec<String>)> {
    let mounts = chroot::Mounts::new(root)?;
    let (status, out) = Cmd::new("dracut")
        .args([
            "--force",
            "--reproducible",
            "--no-hostonly",
            "--no-hostonly-cmdline",
            "--no-compress",
        ])
        .args(["--kver", &kernel.version])
        .args(["--tmpdir", "/tmp"])
        .args(["--modules", &modules(root).join(" ")])
        .args(["--add-drivers", &table.modules_of(drivers::WANTED).join(" ")])
        .arg(format!("/{SCRATCH}"))
        .env("SYSTEMD_OFFLINE", "1")
        .chroot(root)
        .status()?;
    let complaints: Vec<String> = out
        .stderr_tail
        .lines()
        .filter(|l| !l.contains("Could not find 'strip'"))
        .map(str::to_owned)
        .collect();
    let archive = fs_err::read(root.join(SCRATCH)).unwrap_or_default();
    drop(mounts);
    if !status.success() || archive.is_empty() {
        return Err(BuildError::new(
            Kind::Build,
            "IMG002",
            format!(
                "dracut made no initramfs{}",
                quote_tail(&complaints.join("\n"), &out.stdout, 20)
            ),
        ));
    }
    Ok((archive, complaints))
}

/// The modules that this image's dracut can take.
fn modules(root: &Utf8Path) -> Vec<&'static str> {
    let installed: Vec<String> = inroot::resolve_all(root, "usr/lib/dracut/modules.d")
        .and_then(|d| {
            d.read_dir_utf8()?
                .map(|e| e.map(|e| e.file_name().to_owned()))
                .collect()
        })
        .unwrap_or_default();
    // A directory is named with two digits for the order, then the module.
    let has = |module: &str| installed.iter().any(|d| d.get(2..) == Some(module));
    let program = |name: &str| {
        ["usr/sbin", "usr/bin", "sbin"]
            .iter()
            .any(|d| root.join(d).join(name).exists())
    };
    let optional = OPTIONAL.iter().filter(|(_, p)| program(p)).map(|(m, _)| *m);
    MODULES.into_iter().chain(optional).filter(|m| has(m)).collect()
}

/// What the archive lacks.
fn missing(archive: &[u8], table: &drivers::Table) -> Vec<String> {
    let names = match cpio::names(archive) {
        Ok(names) => names,
        Err(why) => return vec![format!("a readable archive ({why})")],
    };
    let mut missing: Vec<String> = NEEDED
        .iter()
        .filter(|needed| {
            !names
                .iter()
                .any(|n| n == *needed || n.ends_with(*needed) && **needed != "init")
        })
        .map(|n| (*n).to_owned())
        .collect();
    let inside: Vec<String> = names.iter().filter_map(|n| drivers::name_of(n)).collect();
    missing.extend(
        table
            .modules_of(drivers::WANTED)
            .into_iter()
            .filter(|m| !inside.contains(m))
            .map(|m| format!("driver {m}")),
    );
    missing.extend(
        drivers::REQUIRED
            .iter()
            .filter(|d| !table.has(d))
            .map(|d| format!("driver {d} (the kernel package does not have it)")),
    );
    missing
}

/// Whether the kernel says that it unpacks zstd; if it does not say, gzip always works.
fn unpacks_zstd(root: &Utf8Path, kernel: &Kernel) -> bool {
    [
        format!("boot/config-{}", kernel.version),
        format!("usr/lib/modules/{}/config", kernel.version),
    ]
    .iter()
    .filter_map(|p| fs_err::read_to_string(inroot::resolve_all(root, p).ok()?).ok())
    .any(|text| text.lines().any(|l| l == "CONFIG_RD_ZSTD=y"))
}

/// Compresses the archive; microcode in front stays as it is, because the kernel looks for it before it can unpack.
fn compress(archive: &[u8], zstd: bool) -> std::io::Result<Vec<u8>> {
    let (early, main) = archive.split_at(cpio::early_length(archive));
    let mut out = early.to_vec();
    if zstd {
        out.extend(zstd::bulk::compress(main, 9)?);
    } else {
        let mut gzip = flate2::GzBuilder::new().write(out, flate2::Compression::new(7));
        gzip.write_all(main)?;
        out = gzip.finish()?;
    }
    Ok(out)
}

/// `/boot/vmlinuz`: a second name for the kernel, or a copy where a link is not possible.
fn link_kernel(root: &Utf8Path, kernel: &Kernel) -> Result<()> {
    let from =
        inroot::resolve_all(root, &kernel.image).map_err(|e| io_error("cannot find the kernel", &e))?;
    let to = in_boot(root, "vmlinuz")?;
    if from == to {
        return Ok(());
    }
    match fs_err::remove_file(&to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(io_error("cannot replace /boot/vmlinuz", &e));
        }
        _ => {}
    }
    if fs_err::hard_link(&from, &to).is_err() {
        fs_err::copy(&from, &to).map_err(|e| io_error("cannot copy the kernel", &e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
