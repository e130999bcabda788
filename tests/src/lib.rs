//! Slipway's fixture distribution, QEMU harness and the helpers of the end-to-end tests. Not published.
//!
//! End-to-end tests need root, QEMU and Debian packages: they run only with `SLIPWAY_E2E=1`, which `tests/run` sets after
//! installing what is needed. Plain `cargo test` skips them and says so.
// The harness is not the product: it starts programs, reads clocks and writes scratch files directly.
#![allow(clippy::disallowed_methods)]

pub mod cluster;
pub mod disk;
pub mod ext4;
pub mod fixture;
pub mod grub_matrix;
pub mod guest;
pub mod http;
pub mod images;
pub mod node;
pub mod proc;
pub mod product;
pub mod scratch;
pub mod vm;

/// Whether end-to-end tests may run; prints why not.
pub fn e2e(test: &str) -> bool {
    let on = std::env::var_os("SLIPWAY_E2E").is_some_and(|v| v == "1");
    if !on {
        println!("skipped: {test} needs root, QEMU and Debian packages; `tests/run` runs it (SLIPWAY_E2E=1)");
    }
    on
}
