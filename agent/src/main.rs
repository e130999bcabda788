//! The os-agent program.
fn main() {}
