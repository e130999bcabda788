use super::*;
use os_proto::env_block::TRIES;

#[test]
fn tries_are_three() {
    assert_eq!(u32::from(TRIES), SILENT_TRIES);
}
