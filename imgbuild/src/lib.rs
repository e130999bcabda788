//! Slipway's image builder. See the README for the recipe format; `imgbuild --help` for commands.

pub mod boot;
pub mod cmd;
pub mod disk;
pub mod epoch;
pub mod error;
pub mod export;
pub mod files;
pub mod fs;
pub mod grub;
pub mod identity;
pub mod initramfs;
pub mod outputs;
pub mod persist;
pub mod pipeline;
pub mod plan;
pub mod preflight;
pub mod progress;
pub mod recipe;
pub mod report;
pub mod rootfs;
pub mod url;
