//! The cluster side of Slipway: `os-operator` grants the right to take a node down, `os-proxy` takes its own node through
//! the update once it holds that right. Every loop is observe → decide (pure) → act; only decisions carry reasons.

pub mod api;
pub mod clock;
pub mod connect;
pub mod crds;
pub mod drain;
pub mod http;
pub mod operator;
pub mod proxy;
pub mod window;

pub(crate) use connect::chain;
