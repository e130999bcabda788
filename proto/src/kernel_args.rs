//! Kernel arguments that grub.cfg loads as data: which are possible, and the optional file of a node for one slot.
//!
//! grub.cfg puts them behind its own (`root=`, `os.slot=` …) and behind those of the image (`/boot/args.env` in the root),
//! split at blanks, and ignores a file that names what only grub.cfg decides.

use crate::env_block;
use crate::layout::Slot;

/// Most bytes of a node's own arguments: the kernel's limit is 2048 together with those of image and boot loader.
pub const MAX_USER_ARGS: usize = 500;
/// The one variable of [`user_file`].
pub const USER_KEY: &str = "user_args";

/// Path, relative to the root of BOOT, of the node's own arguments for a slot. Optional.
pub const fn user_file(slot: Slot) -> &'static str {
    match slot {
        Slot::A => "grub/user-A.env",
        Slot::B => "grub/user-B.env",
    }
}

/// Why a kernel argument is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArgs {
    /// The root is decided by grub.cfg.
    #[error(
        "kernel argument {0:?}: the root is chosen at boot by partition (root=PARTUUID=...), because both slots may carry the same label and UUID; leave root= out"
    )]
    Root(String),
    /// A key or word that grub.cfg sets.
    #[error("kernel argument {0:?}: only the boot loader sets this; leave it out")]
    Reserved(String),
    /// A character that does not arrive at the kernel.
    #[error(
        "kernel argument {arg:?}: character {found:?} does not reach the kernel unchanged; expected printable ASCII without quotes and backslashes"
    )]
    Character {
        /// The argument.
        arg: String,
        /// The first such character.
        found: char,
    },
    /// Too long.
    #[error("kernel arguments: {found} bytes, at most {most} fit beside those of the boot loader")]
    TooLong {
        /// Length of all together.
        found: usize,
        /// Limit.
        most: usize,
    },
}

/// Whether one argument, `key` or `key=value`, reaches the kernel as it is and leaves alone what grub.cfg decides.
///
/// # Errors
/// [`BadArgs`].
pub fn check(arg: &str) -> Result<(), BadArgs> {
    if let Some(found) = arg
        .chars()
        .find(|c| !c.is_ascii_graphic() || matches!(c, '"' | '\'' | '\\'))
    {
        return Err(BadArgs::Character {
            arg: arg.to_owned(),
            found,
        });
    }
    let key = arg.split('=').next().unwrap_or(arg);
    match key {
        "root" => Err(BadArgs::Root(arg.to_owned())),
        "ro" | "rw" => Err(BadArgs::Reserved(arg.to_owned())),
        _ if key.starts_with("os.") => Err(BadArgs::Reserved(arg.to_owned())),
        _ => Ok(()),
    }
}

/// Splits at blanks and checks every argument. A line break is refused: in a recipe it is a slip, in an environment block
/// it would begin another variable.
///
/// # Errors
/// [`BadArgs`] for the first argument that cannot work.
pub fn checked<S: AsRef<str>>(args: &[S]) -> Result<Vec<String>, BadArgs> {
    let mut out = Vec::new();
    for entry in args {
        for arg in entry.as_ref().split(' ').filter(|a| !a.is_empty()) {
            check(arg)?;
            out.push(arg.to_owned());
        }
    }
    Ok(out)
}

/// `args` when it has at most `most` bytes.
///
/// # Errors
/// [`BadArgs::TooLong`].
pub fn limited(args: String, most: usize) -> Result<String, BadArgs> {
    if args.len() > most {
        return Err(BadArgs::TooLong {
            found: args.len(),
            most,
        });
    }
    Ok(args)
}

/// Content of a [`user_file`].
///
/// # Errors
/// [`BadArgs`] for the first argument that cannot work.
pub fn user_env<S: AsRef<str>>(args: &[S]) -> Result<Vec<u8>, BadArgs> {
    let args = limited(checked(args)?.join(" "), MAX_USER_ARGS)?;
    Ok(env_block::single(USER_KEY, &args))
}

/// The arguments of a [`user_file`], as GRUB splits them; none when it is no environment block.
pub fn user_args(block: &[u8]) -> Vec<String> {
    env_block::value(block, USER_KEY)
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_back_and_paths_differ_by_slot() {
        let block = user_env(&["hugepages=4 console=tty0", "quiet"]).unwrap();
        assert_eq!(user_args(&block), ["hugepages=4", "console=tty0", "quiet"]);
        assert!(user_args(b"garbage").is_empty());
        assert_ne!(user_file(Slot::A), user_file(Slot::B));
    }
}
