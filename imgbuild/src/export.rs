//! Artefacts in their formats. The raw disk, `system.img`, is what `disk` writes.

pub mod qcow2;
pub mod update;
