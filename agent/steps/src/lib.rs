//! The embedded step runner: bashible bundles, verified, run as a real state machine, resumable.
//!
//! Knows nothing of the updater and needs no slots. `plan`, `lint` and `approval` are pure; `run` alone acts, through `sys`.
// Tests write scratch files and read clocks directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod approval;
pub mod bundle;
pub mod dirs;
pub mod dry;
pub mod error;
pub mod kube;
pub mod library;
pub mod lint;
pub mod needs;
pub mod plan;
pub mod render;
pub mod run;
pub mod settings;
pub mod source;
pub mod standard;
pub mod state;
pub mod store;
pub mod sys;
#[cfg(test)]
mod testing;
pub mod tick;
