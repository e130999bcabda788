//! GRUB for both firmwares, made by the image's own tools from its own modules. Nothing of the host's GRUB is used.

use crate::boot::Platform;
use crate::cmd::{Cmd, chroot};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::Recipe;
use crate::rootfs::{inroot, io_error};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::layout::Arch;

/// The boot loader's programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrubImages {
    /// For UEFI, the file at [`Platform::removable_path`].
    pub efi: Vec<u8>,
    /// For BIOS, the first sector as GRUB ships it; empty where the architecture has no BIOS.
    pub boot_img: Vec<u8>,
    /// For BIOS, GRUB itself; empty where the architecture has no BIOS.
    pub core_img: Vec<u8>,
}

/// Both names of the tool: Debian's and Fedora's.
pub(crate) const TOOLS: [&str; 2] = ["grub-mkimage", "grub2-mkimage"];

/// Convenience for a person at the menu; a GRUB without them boots as well.
const SPARE: [&str; 5] = ["efi_uga", "efifwsetup", "help", "search_label", "search_fs_uuid"];

/// Makes the programs in the sandbox.
///
/// # Errors
/// `IMG005` where the image lacks the tool or the modules.
pub fn images(
    recipe: &Recipe,
    root: &Utf8Path,
    _work: &Utf8Path,
    progress: &dyn Progress,
) -> Result<GrubImages> {
    progress.stage("boot loader");
    let tool = tool(root)?;
    let mut images = GrubImages::default();
    let mounts = chroot::Mounts::new(root)?;
    for platform in Platform::of(recipe.arch) {
        let modules = modules_of(root, *platform)?;
        let name = format!("run/{}.img", platform.format());
        Cmd::new(tool)
            .args(["-O", platform.format(), "-p", platform.prefix(), "-o"])
            .arg(format!("/{name}"))
            .args(modules)
            .chroot(root)
            .run()?;
        let bytes = fs_err::read(root.join(&name))
            .map_err(|e| io_error("cannot read what grub-mkimage wrote", &e))?;
        match platform {
            Platform::Efi(_) => images.efi = bytes,
            Platform::Pc => {
                images.core_img = bytes;
                let boot = directory(root, *platform)?.join("boot.img");
                images.boot_img =
                    fs_err::read(&boot).map_err(|e| io_error("cannot read GRUB's first sector", &e))?;
            }
        }
    }
    drop(mounts);
    Ok(images)
}

fn tool(root: &Utf8Path) -> Result<&'static str> {
    let there = |tool: &str| {
        ["usr/bin", "usr/sbin"]
            .iter()
            .any(|d| inroot::resolve_all(root, Utf8Path::new(d).join(tool)).is_ok_and(|p| p.is_file()))
    };
    TOOLS.into_iter().find(|t| there(t)).ok_or_else(|| {
        BuildError::new(
            Kind::Build,
            "IMG005",
            "program \"grub-mkimage\" or \"grub2-mkimage\" is not in the image; add the package grub2-tools to [rootfs] packages, or set [boot] loader = \"none\"",
        )
    })
}

/// The package that usually brings the modules of a platform.
pub(crate) const fn package(platform: Platform) -> &'static str {
    match platform {
        Platform::Pc => "grub2-pc-modules",
        Platform::Efi(Arch::X86_64) => "grub2-efi-x64-modules",
        Platform::Efi(Arch::Aarch64) => "grub2-efi-aa64-modules",
    }
}

fn directory(root: &Utf8Path, platform: Platform) -> Result<Utf8PathBuf> {
    let dir = format!("usr/lib/grub/{}", platform.format());
    let at = inroot::resolve_all(root, &dir).map_err(|e| io_error(&dir, &e))?;
    if at.join("moddep.lst").is_file() {
        return Ok(at);
    }
    let package = package(platform);
    Err(BuildError::new(
        Kind::Build,
        "IMG005",
        format!("/{dir} is not in the image; add the package {package} to [rootfs] packages"),
    ))
}

/// The modules to embed; those that are a convenience only where the image has them.
fn modules_of(root: &Utf8Path, platform: Platform) -> Result<Vec<&'static str>> {
    let dir = directory(root, platform)?;
    let there = |m: &str| dir.join(format!("{m}.mod")).is_file();
    let modules = platform.modules();
    let missing: Vec<&str> = modules
        .iter()
        .copied()
        .filter(|m| !SPARE.contains(m) && !there(m))
        .collect();
    if !missing.is_empty() {
        return Err(BuildError::new(
            Kind::Build,
            "IMG005",
            format!(
                "the image's GRUB for {} lacks the modules {}",
                platform.format(),
                missing.join(", ")
            ),
        ));
    }
    Ok(modules.into_iter().filter(|m| there(m)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn what_an_image_lacks_is_named_with_its_package() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert!(tool(root).unwrap_err().message.contains("package grub2-tools"));
        std::fs::create_dir_all(root.join("usr/sbin")).unwrap();
        std::fs::write(root.join("usr/sbin/grub2-mkimage"), "").unwrap();
        assert_eq!(tool(root).unwrap(), "grub2-mkimage");
        let e = modules_of(root, Platform::Pc).unwrap_err();
        assert!(
            e.message.contains("/usr/lib/grub/i386-pc") && e.message.contains("grub2-pc-modules"),
            "{e}"
        );
        let modules = root.join("usr/lib/grub/i386-pc");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("moddep.lst"), "").unwrap();
        for m in Platform::Pc.modules() {
            std::fs::write(modules.join(format!("{m}.mod")), "").unwrap();
        }
        assert_eq!(modules_of(root, Platform::Pc).unwrap(), Platform::Pc.modules());
        std::fs::remove_file(modules.join("help.mod")).unwrap();
        assert!(!modules_of(root, Platform::Pc).unwrap().contains(&"help"));
        std::fs::remove_file(modules.join("linux.mod")).unwrap();
        assert!(
            modules_of(root, Platform::Pc)
                .unwrap_err()
                .message
                .ends_with("lacks the modules linux")
        );
    }
}
