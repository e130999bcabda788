//! The one time that an image carries.

use crate::error::{BuildError, Kind, Result};
use std::env::VarError;

/// Used when the environment names no other: 14 November 2023.
const DEFAULT: u64 = 1_700_000_000;
/// Times that an image can carry: `mke2fs` takes 0 for "ask the clock", and from 2038 on `debugfs` and `mke2fs` disagree
/// about ext4's extra bits of a time.
const ALLOWED: std::ops::RangeInclusive<u64> = 1..=0x7fff_ffff;

/// Seconds since 1970 for everything in an image that needs a time: `SOURCE_DATE_EPOCH` from the environment
/// (<https://reproducible-builds.org/specs/source-date-epoch/>), else a fixed one. Never the clock.
///
/// # Errors
/// CFG018 for a value that is not such a number, or that an image cannot carry.
pub fn from_environment() -> Result<u64> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => parse(&text),
        Err(VarError::NotPresent) => Ok(DEFAULT),
        Err(VarError::NotUnicode(bytes)) => Err(wrong(&bytes.to_string_lossy())),
    }
}

/// [`from_environment`] for the stages of a build; every command has refused a wrong value before.
pub fn source_date_epoch() -> u64 {
    from_environment().unwrap_or(DEFAULT)
}

fn parse(text: &str) -> Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(n) if digits && ALLOWED.contains(&n) => Ok(n),
        _ => Err(wrong(text)),
    }
}

fn wrong(text: &str) -> BuildError {
    BuildError::new(
        Kind::Input,
        "CFG018",
        format!(
            "SOURCE_DATE_EPOCH is {text:?}: expected seconds since 1970, {} to {} (19 January 2038, the last second that \
             every reader of ext4 agrees on); correct it, or unset it for a fixed time",
            ALLOWED.start(),
            ALLOWED.end()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_that_an_image_can_carry() {
        for (text, n) in [("1", 1), ("1234", 1234), ("2147483647", 2_147_483_647)] {
            assert_eq!(parse(text), Ok(n));
        }
        for text in [
            "",
            "soon",
            "-5",
            "+5",
            " 5",
            "5 ",
            "0",
            "1.5",
            "0x10",
            "2147483648",
            "99999999999999",
            "99999999999999999999999",
        ] {
            let e = parse(text).unwrap_err();
            assert_eq!((e.kind, e.code), (Kind::Input, "CFG018"), "{text:?}");
            assert!(
                e.message
                    .contains(&format!("SOURCE_DATE_EPOCH is {text:?}: expected")),
                "{e}"
            );
        }
    }
}
