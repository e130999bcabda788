//! Artefacts in their formats.

pub mod qcow2;
pub mod raw;
pub mod update;
