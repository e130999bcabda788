//! Slipway's node agent, as a library: the binary, the end-to-end tests and the cluster tests share it.
//!
//! Decisions (`machine`, `gates`, `slots`, `config`) are pure; `engine` alone performs their effects through `ports`.

pub mod activate;
pub mod apiproxy;
pub mod boot;
pub mod client;
pub mod config;
pub mod crashtest;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod etc_layer;
pub mod evidence;
pub mod fetch;
pub mod gates;
pub mod gpt_table;
pub mod grow_persist;
pub mod health;
pub mod inspect;
pub mod machine;
pub mod metrics;
pub mod node;
pub mod notify;
pub mod payload;
pub mod ports;
pub mod rootfs;
pub mod server;
pub mod settings;
pub mod slots;
pub mod state;
pub mod steps;
pub mod store;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testdisk;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verify;
pub mod wire;
pub mod write;
