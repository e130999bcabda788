//! Emptying a node: which pods go, in which order, what every answer of the server means, and what is in the way.
//!
//! [`filter`], [`evict`], [`plan`] and [`volumes`] are pure; [`run`] is the only part that talks to the server. `kubectl
//! drain` on the same state must evict the same pods and refuse the same ones.

pub mod evict;
pub mod filter;
pub mod plan;
pub mod run;
mod server;
pub mod volumes;

use crate::api::{NodePolicy, OnDrainTimeout};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// How a node is drained. Spans in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Longest drain.
    pub timeout_secs: i64,
    /// What then.
    pub on_timeout: OnDrainTimeout,
    /// Below 0: the pod's own.
    pub grace_secs: i64,
    /// Pods with emptyDir volumes may go.
    pub delete_empty_dir: bool,
    /// Pods without a controller may go.
    pub evict_unmanaged: bool,
    /// Pods that are terminating for longer are not waited for; 0 = all are.
    pub skip_wait_secs: i64,
    /// Only these pods.
    pub pod_selector: Option<LabelSelector>,
    /// Evictions whose pods are still there, at most.
    pub concurrency: usize,
    /// Longest wait for volumes.
    pub detach_timeout_secs: i64,
    /// Go on when volumes stay attached.
    pub proceed_with_volumes: bool,
}

impl From<&NodePolicy> for Policy {
    fn from(p: &NodePolicy) -> Policy {
        Policy {
            timeout_secs: p.draintimeoutseconds.max(0),
            on_timeout: p.ontimeout,
            grace_secs: p.graceperiodseconds,
            delete_empty_dir: p.deleteemptydirdata,
            evict_unmanaged: p.evictunmanagedpods,
            skip_wait_secs: p.skipwaitfordeleteseconds.max(0),
            pod_selector: p.podselector.clone(),
            concurrency: usize::try_from(p.concurrency).unwrap_or(1).max(1),
            detach_timeout_secs: p.volumedetachtimeoutseconds.max(0),
            proceed_with_volumes: p.proceedwithvolumes,
        }
    }
}

/// Why a pod is in the way. The name is what `status.drain.blockedBy[].reason` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its budget allows no disruption now.
    PDBAtLimit,
    /// Its budget has not been looked at by the budget controller yet.
    PDBNotObserved,
    /// More than one budget selects it: no eviction ever succeeds.
    MultiplePDBs,
    /// The server forbids it.
    Forbidden,
    /// Unready, and its budget protects unready pods too.
    UnreadyProtected,
    /// Deleted, but a finalizer holds it.
    Finalizer,
    /// Deleted, but it does not end.
    StuckTerminating,
    /// A volume is still attached.
    VolumeAttached,
    /// No controller would start it again.
    Unmanaged,
    /// Data in an emptyDir would be lost.
    LocalData,
    /// An admission webhook says no.
    WebhookDenied,
}

impl Reason {
    /// Waiting alone does not cure it.
    pub fn is_permanent(self) -> bool {
        matches!(
            self,
            Reason::MultiplePDBs | Reason::Forbidden | Reason::Unmanaged | Reason::LocalData
        )
    }
}

/// A pod in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// `namespace/name`.
    pub pod: String,
    /// `namespace/name` of the budget, where the server named one.
    pub pdb: Option<String>,
    /// Why.
    pub reason: Reason,
    /// A sentence: what the server said, what helps.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

impl From<&Blocked> for crate::api::BlockedPod {
    fn from(b: &Blocked) -> Self {
        crate::api::BlockedPod {
            pod: b.pod.clone(),
            pdb: b.pdb.clone(),
            reason: format!("{:?}", b.reason),
            message: Some(b.message.clone()).filter(|m| !m.is_empty()),
            since: Some(crate::api::Time(b.since)),
        }
    }
}

/// What of a pod matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFact {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// A pod of the same name with another uid is another pod.
    pub uid: String,
    /// Succeeded or Failed.
    pub finished: bool,
    /// End of the grace period, if it was deleted: may lie in the future.
    pub deletion: Option<Timestamp>,
    /// Kind and name of the owner with `controller: true`.
    pub controller: Option<(String, String)>,
    /// Made by kubelet from a file.
    pub mirror: bool,
    /// Has an emptyDir volume.
    pub empty_dir: bool,
    /// Condition Ready is true.
    pub ready: bool,
    /// Priority class system-node-critical or system-cluster-critical.
    pub critical: bool,
    /// Has finalizers.
    pub finalizers: Vec<String>,
    /// Claims it mounts, those made for it alone (generic ephemeral volumes) too.
    pub claims: Vec<String>,
    /// Has a volume of a kind that may be attached to the node: anything but what kubelet makes by itself.
    pub attachable: bool,
}

impl PodFact {
    /// `namespace/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// `namespace/name` of the DaemonSet that controls it.
    pub fn daemonset(&self) -> Option<(String, String)> {
        self.controller
            .as_ref()
            .filter(|(kind, _)| kind == "DaemonSet")
            .map(|(_, name)| (self.namespace.clone(), name.clone()))
    }
}

impl From<&Pod> for PodFact {
    fn from(p: &Pod) -> PodFact {
        let m = &p.metadata;
        let spec = p.spec.as_ref();
        let status = p.status.as_ref();
        let volumes = || spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
        PodFact {
            namespace: m.namespace.clone().unwrap_or_default(),
            name: m.name.clone().unwrap_or_default(),
            uid: m.uid.clone().unwrap_or_default(),
            finished: status
                .and_then(|s| s.phase.as_deref())
                .is_some_and(|p| p == "Succeeded" || p == "Failed"),
            deletion: m.deletion_timestamp.as_ref().map(|t| t.0),
            controller: m
                .owner_references
                .iter()
                .flatten()
                .find(|o| o.controller == Some(true))
                .map(|o| (o.kind.clone(), o.name.clone())),
            mirror: m
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key("kubernetes.io/config.mirror")),
            empty_dir: volumes().any(|v| v.empty_dir.is_some()),
            ready: status
                .and_then(|s| s.conditions.as_ref())
                .into_iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True"),
            critical: spec
                .and_then(|s| s.priority_class_name.as_deref())
                .is_some_and(|c| c == "system-node-critical" || c == "system-cluster-critical"),
            finalizers: m.finalizers.clone().unwrap_or_default(),
            claims: volumes()
                .filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
                    (Some(c), _) => Some(c.claim_name.clone()),
                    (None, Some(_)) => Some(format!("{}-{}", m.name.as_deref().unwrap_or_default(), v.name)),
                    (None, None) => None,
                })
                .collect(),
            attachable: volumes().any(|v| {
                v.empty_dir.is_none()
                    && v.config_map.is_none()
                    && v.secret.is_none()
                    && v.projected.is_none()
                    && v.downward_api.is_none()
                    && v.host_path.is_none()
            }),
        }
    }
}

/// Spreads retries: between 0.8 and 1.2, always the same for the same words.
pub fn jitter(seed: &str, count: u32) -> f64 {
    // FNV-1a: any spread will do, but it must not change between runs.
    let hash = seed
        .bytes()
        .chain(count.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
    0.8 + (hash >> 40) as f64 / f64::from(1 << 24) * 0.4
}

#[cfg(test)]
mod tests;
