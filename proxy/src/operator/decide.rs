//! PURE: the whole policy of the operator. A snapshot in, everything to do out, *with the reasons*, what is blocked and why
//! included. Nothing here reads a clock; conditions, Events and `plan` only repeat what is said here.
//!
//! Order of writes, so that a crash in between leaves too much protection, never too little:
//! grant: ledger → order to the node; release: node reports → ledger → order. An order for a grant is made only once the
//! grant is in the *observed* ledger.

mod budget;
mod claims;
mod clean;
mod ledger;
mod orders;
mod standing;
mod status;
mod waves;

#[cfg(test)]
pub(crate) mod tests;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::{FINALIZER_OS, OS, OSInstance, OsStatus};

use super::check::{Problem, Wish, check};
use super::facts::Fleet;
pub(crate) use orders::source_words;
pub(crate) use standing::Member;
pub use standing::Standing;

/// Everything to do now, and when to look again if nothing happens.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Status (with the ledger) of OS objects that must be written, by compare-and-swap.
    pub statuses: Vec<StatusWrite>,
    /// Finalizers of OS objects.
    pub finalizers: Vec<FinalizerWrite>,
    /// Orders to nodes.
    pub instances: Vec<InstanceWrite>,
    /// Nodes with a cordon of ours that nobody owns any more.
    pub orphans: Vec<Orphan>,
    /// Events; each is sent once (its name is made from its cause).
    pub events: Vec<EventNote>,
    /// Next instant at which time alone changes the decision.
    pub wake: Option<Timestamp>,
    /// Per OS object: who stands where and why. For `plan`, metrics and tests.
    pub views: Vec<OsView>,
    /// Names of the instances that are written.
    taken: std::collections::BTreeSet<String>,
}

impl Decision {
    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        self.statuses.is_empty()
            && self.finalizers.is_empty()
            && self.instances.is_empty()
            && self.orphans.is_empty()
    }
}

/// An OS object, by name and identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl OsRef {
    /// Of an object.
    pub fn of(os: &OS) -> OsRef {
        OsRef {
            namespace: os.namespace().unwrap_or_else(|| "default".into()),
            name: os.name_any(),
            uid: os.uid().unwrap_or_default(),
        }
    }
}

/// A new status.
#[derive(Clone, Debug)]
pub struct StatusWrite {
    /// Whose.
    pub os: OsRef,
    /// Precondition.
    pub resource_version: String,
    /// The whole status.
    pub status: OsStatus,
    /// Nodes that get a grant by this write; each is read live before.
    pub granted: Vec<String>,
}

/// A finalizer to add to or take from an OS object.
#[derive(Clone, Debug)]
pub struct FinalizerWrite {
    /// Whose.
    pub os: OsRef,
    /// Precondition.
    pub resource_version: String,
    /// The whole list.
    pub finalizers: Vec<String>,
}

/// A write to an OSInstance.
#[derive(Clone, Debug)]
pub enum InstanceWrite {
    /// It does not exist yet.
    Create(Box<OSInstance>),
    /// Update with the resourceVersion it carries.
    Update(Box<OSInstance>),
    /// Its node is gone or another one. Finalizers are taken off first.
    Delete(Box<OSInstance>),
}

/// A Node with a cordon of ours that nobody owns any more: flag, mark and labels go in one patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Node name.
    pub node: String,
    /// Precondition.
    pub resource_version: String,
}

/// An Event about an OS object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// About which.
    pub os: OsRef,
    /// Warning or Normal.
    pub warning: bool,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// What makes it the same Event when it is found again.
    pub cause: String,
}

/// How one OS object stands.
#[derive(Clone, Debug, Default)]
pub struct OsView {
    /// Which.
    pub os: OsRef,
    /// Most nodes that may be unavailable.
    pub limit: usize,
    /// Nodes that are unavailable, grant holders included.
    pub unavailable: usize,
    /// Selected nodes with an agent.
    pub total: usize,
    /// Why nothing new is granted at the moment, if so: reason and message.
    pub blocked: Option<(String, String)>,
    /// Per node: what and why.
    pub nodes: Vec<NodeView>,
}

/// How one node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Node name.
    pub node: String,
    /// One word.
    pub standing: String,
    /// A sentence, where there is something to say.
    pub why: String,
}

/// What is known about one OS object while deciding.
pub(crate) struct Case<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) os: &'a OS,
    pub(crate) id: OsRef,
    pub(crate) wish: Result<Wish, Vec<Problem>>,
    pub(crate) old: OsStatus,
    pub(crate) generation: i64,
    pub(crate) deleting: bool,
    pub(crate) members: Vec<Member<'a>>,
    /// Selected nodes that another OS claims: node, `namespace/name`.
    pub(crate) conflicts: Vec<(String, String)>,
}

impl Case<'_> {
    fn annotation(&self, key: &str) -> Option<i64> {
        self.os.annotations().get(key)?.trim().parse().ok()
    }
}

/// Decides.
pub fn decide(fleet: &Fleet) -> Decision {
    let mut out = Decision::default();
    let mut wishes = Vec::new();
    for os in &fleet.oses {
        wishes.push(check(&os.spec, &fleet.settings));
    }
    let claims = claims::claims(fleet);
    for (index, (os, wish)) in fleet.oses.iter().zip(wishes).enumerate() {
        let case = Case {
            fleet,
            os,
            id: OsRef::of(os),
            wish,
            old: os.status.clone().unwrap_or_default(),
            generation: os.metadata.generation.unwrap_or(0),
            deleting: os.metadata.deletion_timestamp.is_some(),
            members: Vec::new(),
            conflicts: claims.conflicts(index),
        };
        one(case, &claims, index, &mut out);
    }
    clean::clean(fleet, &claims, &mut out);
    out.wake = out
        .wake
        .map(|w| w.max(fleet.now + SignedDuration::from_millis(500)));
    out
}

fn one<'a>(mut case: Case<'a>, claims: &claims::Claims<'a>, index: usize, out: &mut Decision) {
    let ledger = ledger::settle(&case, out);
    case.members = standing::members(&case, claims, index, &ledger);
    let verdict = budget::verdict(&case, &ledger, out);
    let wave = waves::position(&case);
    orders::in_flight(&case, &verdict, out);
    orders::releases(&case, &ledger, out);
    let mut granted = Vec::new();
    let has_finalizer = case.os.finalizers().iter().any(|f| f == FINALIZER_OS);
    let work = case.members.iter().any(|m| m.standing.wants_work());
    if case.deleting {
        orders::all_idle(&case, &ledger, out);
        if has_finalizer && ledger.is_empty() && !claims.held_by(&case.id.uid) {
            let rest = case
                .os
                .finalizers()
                .iter()
                .filter(|f| *f != FINALIZER_OS)
                .cloned()
                .collect();
            out.finalizers.push(finalizers(&case, rest));
        }
    } else if case.wish.is_ok() {
        orders::lift(&case, out);
        if !work {
            orders::idle(&case, out);
        } else if has_finalizer {
            if verdict.blocked.is_none() {
                granted = budget::grants(&case, &verdict, &wave);
            }
            orders::stage(&case, &verdict, &granted, &wave, out);
            orders::idle(&case, out);
        } else {
            let mut all = case.os.finalizers().to_vec();
            all.push(FINALIZER_OS.to_owned());
            out.finalizers.push(finalizers(&case, all));
        }
    }
    status::write(&case, &verdict, ledger, granted, wave, out);
}

fn finalizers(case: &Case<'_>, finalizers: Vec<String>) -> FinalizerWrite {
    FinalizerWrite {
        os: case.id.clone(),
        resource_version: case.os.resource_version().unwrap_or_default(),
        finalizers,
    }
}

impl Decision {
    /// Looks again at `at`, if that is to come and nothing is due earlier.
    pub(crate) fn wake_at(&mut self, now: Timestamp, at: Timestamp) {
        if at > now && self.wake.is_none_or(|w| at < w) {
            self.wake = Some(at);
        }
    }
}

/// The last look before a ledger write: nodes that, read live, are not fit to be taken down get no grant after all.
pub fn confirm(write: &mut StatusWrite, live: impl Fn(&str) -> Option<crate::operator::NodeFacts>) {
    let unfit = |g: &crate::api::Grant| {
        live(&g.node).is_none_or(|n| n.uid != g.node_uid || n.unavailable() || n.held().is_some())
    };
    let fresh = std::mem::take(&mut write.granted);
    write
        .status
        .grants
        .retain(|g| !fresh.contains(&g.node) || !unfit(g));
    write.granted = fresh
        .into_iter()
        .filter(|n| write.status.grants.iter().any(|g| g.node == *n))
        .collect();
}
