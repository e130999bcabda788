//! The only place that asks what time it is; decisions get it as an argument.

use jiff::Timestamp;

/// Wall time.
pub fn now() -> Timestamp {
    Timestamp::now()
}
