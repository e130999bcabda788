//! The one time that an image carries.

/// Used when the environment names no other: 14 November 2023.
const DEFAULT: u64 = 1_700_000_000;

/// Seconds since 1970 for everything in an image that needs a time: `SOURCE_DATE_EPOCH` from the environment
/// (<https://reproducible-builds.org/specs/source-date-epoch/>), else a fixed one. Never the clock.
pub fn source_date_epoch() -> u64 {
    parse(std::env::var("SOURCE_DATE_EPOCH").ok().as_deref())
}

fn parse(value: Option<&str>) -> u64 {
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins() {
        assert_eq!(parse(Some("1234")), 1234);
        assert_eq!(parse(Some("soon")), DEFAULT);
        assert_eq!(parse(None), DEFAULT);
    }
}
