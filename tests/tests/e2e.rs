//! The tests on real parts, one module for each story: dnf, GRUB, QEMU, kube-apiserver. One program for all of them, because linking
//! one per story would take longer than everything else that `cargo test` does. `tests/run` runs them module by module
//! (`cargo test -p os-e2e --test e2e grub_matrix::`); without SLIPWAY_E2E=1 they are skipped.

mod common;

mod broken3;
mod causes;
mod cluster_chaos;
mod cluster_drain;
mod cluster_fleet;
mod cluster_join;
mod cluster_operator;
mod cluster_proxy;
mod cluster_steps;
mod cluster_whole;
mod crash_images;
mod etc_slot;
mod grub_matrix;
mod image;
mod kill9_agent;
mod kill9_qemu;
mod mounts;
mod persist_broken;
mod refusals;
mod resume_cut;
mod steps_qemu;
mod upgrade;
