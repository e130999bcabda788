//! os-operator: who may be taken down, when, and when to stop.
//!
//! `facts` is what is known, `check` validates a spec into a [`Wish`], `decide` is the whole policy and pure; `observe`
//! fills the facts from watches and `act` carries decisions out.

mod act;
mod check;
mod decide;
mod facts;
mod lease;
mod metrics;
mod observe;
pub mod plan;
mod run;

pub use check::{Amount, Problem, Select, Wave, WaveCap, Wish, check, select};
pub use decide::{
    Decision, EventNote, FinalizerWrite, InstanceWrite, NodeView, Orphan, OsRef, OsView, Standing,
    StatusWrite, confirm, decide,
};
pub use facts::{Fleet, NodeFacts, Settings, Trouble};
pub use lease::LeaseOptions;
pub use run::{Options, run};
