//! Everything that two Slipway programs must agree on. No I/O, no async runtime.
//!
//! A disk in the field keeps [`layout`], [`env_block`] and [`boot_choice`] for life, so they change only by addition.

pub mod boot_choice;
pub mod bundle;
pub mod codes;
pub mod digest;
pub mod env_block;
pub mod json;
pub mod kernel_args;
pub mod layout;
pub mod record;
pub mod state_fs;
pub mod suggest;
pub mod terminal;
pub mod version;

/// Generated messages, client and server of `os.agent.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used
)]
pub mod v1 {
    tonic::include_proto!("os.agent.v1");
}

/// Where the agent listens on a node. The directory is 0750, the socket 0660, both root:[`SOCKET_GROUP`].
pub const SOCKET_PATH: &str = "/run/os-agent/os-agent.sock";
/// Members of this group may call the agent; so may uid 0.
pub const SOCKET_GROUP: &str = "os-agent";
/// `google.rpc.ErrorInfo.domain` of every error that the agent returns.
pub const ERROR_DOMAIN: &str = "os-agent";
