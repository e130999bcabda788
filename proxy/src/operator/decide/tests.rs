//! The pure decider in virtual time: a world of simulated nodes that obey orders, break, lie and come back.

mod invariants;
mod policy;
mod reports;

mod scale;
pub(crate) mod world;
