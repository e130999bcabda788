//! The only syscalls, the only `Command`, the only clock of this crate.

pub mod atomic;
pub mod cgroup;
pub mod child;
pub mod clock;
pub mod hosts;
pub mod lock;
pub mod tree;
