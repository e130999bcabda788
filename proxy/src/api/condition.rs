//! Conditions: set without touching the time of a transition that did not happen.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Types of the conditions of an `OS`.
pub mod condition_type {
    /// The spec can be followed.
    pub const ACCEPTED: &str = "Accepted";
    /// Work is under way or waits for something.
    pub const PROGRESSING: &str = "Progressing";
    /// Every selected node runs the target.
    pub const COMPLETE: &str = "Complete";
    /// Somebody should look.
    pub const DEGRADED: &str = "Degraded";
    /// The failure budget is used up; latched.
    pub const HALTED: &str = "Halted";
    /// A user paused.
    pub const PAUSED: &str = "Paused";
}

/// Finds a condition.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition stands and is true.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|c| c.status == "True")
}

/// Sets a condition. `lastTransitionTime` changes only with `status`; returns whether status or reason changed.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    generation: i64,
    now: Timestamp,
) -> bool {
    let status = if status { "True" } else { "False" };
    let fresh = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: Some(generation),
        last_transition_time: Time(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        None => {
            conditions.push(fresh);
            true
        }
        Some(old) => {
            let changed = old.status != fresh.status || old.reason != fresh.reason;
            let since = if old.status == fresh.status {
                old.last_transition_time.clone()
            } else {
                fresh.last_transition_time.clone()
            };
            *old = Condition {
                last_transition_time: since,
                ..fresh
            };
            changed
        }
    }
}
