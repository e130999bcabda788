//! Which pods go (PURE). The filters of `kubectl drain --ignore-daemonsets` in its order; the first that says "do not
//! delete" wins. All verdicts are collected first: one refusal, and nothing is evicted.

use super::{PodFact, Policy, Reason};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Whether DaemonSets exist, by `(namespace, name)`.
pub type DaemonSets = BTreeMap<(String, String), bool>;

/// What happens to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes.
    Evict,
    /// It stays, and that is fine.
    Skip(&'static str),
    /// It must not go, so nothing does.
    Refuse(Reason, String),
}

/// DaemonSets that must be looked up before [`verdict`] can be asked.
pub fn daemonsets_of(pods: &[PodFact]) -> BTreeSet<(String, String)> {
    pods.iter()
        .filter(|p| !p.finished)
        .filter_map(PodFact::daemonset)
        .collect()
}

/// The verdict on one pod. A DaemonSet that is not in `daemonsets` counts as existing.
pub fn verdict(pod: &PodFact, policy: &Policy, daemonsets: &DaemonSets, now: Timestamp) -> Verdict {
    if policy.skip_wait_secs > 0
        && let Some(end) = pod.deletion
        // The end of grace may lie in the future: signed.
        && now.as_second() - end.as_second() > policy.skip_wait_secs
    {
        return Verdict::Skip("terminating for long");
    }
    if let Some(owner) = pod.daemonset()
        && !pod.finished
    {
        if daemonsets.get(&owner).copied().unwrap_or(true) {
            return Verdict::Skip("DaemonSet");
        }
        if !policy.evict_unmanaged {
            return Verdict::Refuse(
                Reason::Unmanaged,
                format!(
                    "its DaemonSet {}/{} is gone: delete the pod, or allow pods without a controller to be evicted",
                    owner.0, owner.1
                ),
            );
        }
    }
    if pod.mirror {
        return Verdict::Skip("mirror pod");
    }
    if pod.empty_dir && !pod.finished && !policy.delete_empty_dir {
        return Verdict::Refuse(
            Reason::LocalData,
            "it has data in an emptyDir: set drain.deleteemptydirdata (or evictpodforce) if that may be lost"
                .into(),
        );
    }
    if pod.controller.is_none() && !pod.finished && !policy.evict_unmanaged {
        return Verdict::Refuse(
            Reason::Unmanaged,
            "no controller would start it again: set drain.unmanagedpods to evict (or evictpodforce) if it may go".into(),
        );
    }
    Verdict::Evict
}
