//! os-proxy: takes its own node through an update, and no other.
//!
//! [`facts`] is what was observed, [`decide`] (pure) says what is done next and why, [`act`] does it, [`run`] is the loop.
//! Every timer is a time stamp in the status, so that a restart is a re-read.

pub mod act;
pub mod agent;
pub mod decide;
pub mod facts;
pub mod metrics;
pub mod observe;
pub mod run;
