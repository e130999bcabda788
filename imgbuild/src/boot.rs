//! What boots: the static grub.cfg, the GRUB modules and prefixes, and the environment files with kernel arguments. Pure.
//!
//! A disk in the field keeps grub.cfg for life. What may change with an image lies in its root (`/boot/args.env`), what may
//! change with a node lies in files on BOOT (`/grub/user-A.env`, `/grub/user-B.env`, `/grub/menu.env`); GRUB reads all of
//! them as data, never as code.

use os_proto::env_block;
use os_proto::kernel_args::{checked, limited};
use os_proto::layout::Arch;

pub use os_proto::kernel_args::BadArgs;

/// The text of `/grub/grub.cfg` on BOOT.
pub const GRUB_CFG: &str = include_str!("boot/grub.cfg");

/// Where files lie on BOOT, relative to its root.
pub mod esp {
    /// The static boot logic.
    pub const GRUB_CFG: &str = "grub/grub.cfg";
    /// Optional, key `menu` = `on` or `off`.
    pub const MENU: &str = "grub/menu.env";
}

/// A kind of firmware that GRUB is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// BIOS; x86-64 only.
    Pc,
    /// UEFI.
    Efi(Arch),
}

const MODULES: [&str; 24] = [
    // What grub.cfg needs.
    "part_gpt",
    "fat",
    "ext2",
    "normal",
    "loadenv",
    "linux",
    "boot",
    "test",
    "echo",
    "reboot",
    "sleep",
    "regexp",
    "probe",
    "terminal",
    // What a person at the menu's command line needs.
    "configfile",
    "gzio",
    "cat",
    "ls",
    "halt",
    "minicmd",
    "search",
    "search_label",
    "search_fs_uuid",
    "help",
];

impl Platform {
    /// The platforms that one image of `arch` carries.
    pub const fn of(arch: Arch) -> &'static [Platform] {
        match arch {
            Arch::X86_64 => &[Platform::Efi(Arch::X86_64), Platform::Pc],
            Arch::Aarch64 => &[Platform::Efi(Arch::Aarch64)],
        }
    }

    /// GRUB's name: the directory below `/usr/lib/grub` and `grub-mkimage -O`.
    pub const fn format(self) -> &'static str {
        match self {
            Platform::Pc => "i386-pc",
            Platform::Efi(Arch::X86_64) => "x86_64-efi",
            Platform::Efi(Arch::Aarch64) => "arm64-efi",
        }
    }

    /// `grub-mkimage -p`. UEFI names the device that it started; for BIOS the empty drive part means the same.
    pub const fn prefix(self) -> &'static str {
        match self {
            Platform::Pc => "(,gpt1)/grub",
            Platform::Efi(_) => "/grub",
        }
    }

    /// Modules to embed; nothing is loaded from disk later, so that a damaged BOOT cannot take a command away.
    pub fn modules(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            Platform::Pc => &["biosdisk", "serial", "vga"],
            Platform::Efi(Arch::X86_64) => &["efi_gop", "efi_uga", "all_video", "efifwsetup"],
            Platform::Efi(Arch::Aarch64) => &["efi_gop", "all_video", "efifwsetup"],
        };
        MODULES.iter().chain(own).copied().collect()
    }

    /// Path on BOOT that firmware starts without any boot entry; `None` for BIOS.
    pub const fn removable_path(self) -> Option<&'static str> {
        match self {
            Platform::Pc => None,
            Platform::Efi(Arch::X86_64) => Some("EFI/BOOT/BOOTX64.EFI"),
            Platform::Efi(Arch::Aarch64) => Some("EFI/BOOT/BOOTAA64.EFI"),
        }
    }
}

/// Arguments that every image has. `panic` and `oops` restart a crashed slot, `rd.*` keeps the initramfs from waiting for a
/// person, systemd feeds the watchdog. softdog's settings count only on a machine without a watchdog of its own, where the
/// initramfs loads it.
pub fn default_args(arch: Arch) -> Vec<&'static str> {
    let serial = match arch {
        Arch::X86_64 => "console=ttyS0,115200",
        Arch::Aarch64 => "console=ttyAMA0,115200",
    };
    vec![
        "rootfstype=ext4",
        "console=tty0",
        serial,
        "panic=10",
        "oops=panic",
        "softlockup_panic=1",
        "rd.shell=0",
        "rd.emergency=reboot",
        "softdog.nowayout=1",
        "softdog.soft_margin=60",
        "systemd.watchdog_sec=60",
        "quiet",
        "systemd.show_status=0",
    ]
}

/// Most bytes of image arguments: the kernel's limit is 2048 with grub.cfg's own and the node's.
pub const MAX_ARGS: usize = 1400;
/// The image's arguments: the defaults, then the recipe's `[boot] args` (each entry one argument or several with blanks
/// between). The kernel and systemd use the last of a repeated key, so a recipe can override a default.
///
/// # Errors
/// [`BadArgs`] for the first argument that cannot work.
pub fn image_args<S: AsRef<str>>(arch: Arch, recipe: &[S]) -> Result<String, BadArgs> {
    let own = checked(recipe)?;
    let all: Vec<&str> = default_args(arch)
        .into_iter()
        .chain(own.iter().map(String::as_str))
        .collect();
    limited(all.join(" "), MAX_ARGS)
}

/// Content of `/boot/args.env` in the root, from [`image_args`].
///
/// # Errors
/// As [`image_args`].
pub fn args_env<S: AsRef<str>>(arch: Arch, recipe: &[S]) -> Result<Vec<u8>, BadArgs> {
    Ok(env_block::single("args", &image_args(arch, recipe)?))
}

/// Content of `/grub/menu.env` on BOOT, the recipe's `[boot] menu`. Without the menu nothing waits and no key is read.
pub fn menu_env(menu: bool) -> Vec<u8> {
    env_block::single("menu", if menu { "on" } else { "off" })
}

#[cfg(test)]
mod tests;
