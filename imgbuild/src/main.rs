//! The imgbuild program.
fn main() {}
