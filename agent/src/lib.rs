//! Slipway's node agent, as a library: the binary, the end-to-end tests and the cluster tests share it.
//!
//! Decisions (`machine`, `slots`, `config`) are pure; `engine` alone performs their effects through `ports`.

pub mod boot;
pub mod error;
pub mod fetch;
pub mod gpt_table;
pub mod grow_persist;
pub mod inspect;
pub mod payload;
pub mod ports;
pub mod slots;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testdisk;
pub mod verify;
pub mod write;
