//! The cluster API: kinds `OS` and `OSInstance` of `upgrade.openeuler.org/v1alpha1`, with every field that KubeOS users
//! have plus Slipway's optional ones, and the names of labels and annotations.
//!
//! Spec keys are lower case (as KubeOS's), except `flagSafe`; new status keys are camelCase. Nothing here reads a clock or
//! talks to a server. Decoding is lenient on purpose: one odd object must never hide all others from a watch; what is
//! wrong with an object is said by `operator::check`, in its conditions.

mod condition;
mod instance;
mod names;
mod os;
mod report;
mod status;

#[cfg(test)]
mod tests;

pub use condition::*;
pub use instance::*;
pub use names::*;
pub use os::*;
pub use report::*;
pub use status::*;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
