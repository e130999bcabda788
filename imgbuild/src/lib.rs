//! Slipway's image builder. See the README for the recipe format; `imgbuild --help` for commands.

pub mod boot;
pub mod cmd;
pub mod epoch;
pub mod error;
pub mod progress;
pub mod recipe;
pub mod rootfs;
pub mod suggest;
