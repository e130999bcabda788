//! `OSInstance`: one per node, named like it, in namespace `default`. The operator writes its spec (orders), the node's
//! proxy its status ([`super::report`]).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::os::Configs;
use super::report::OsInstanceStatus;
use super::status::GrantKind;

/// Orders of the operator for one node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "upgrade.openeuler.org",
    version = "v1alpha1",
    kind = "OSInstance",
    plural = "osinstances",
    singular = "osinstance",
    namespaced,
    status = "OsInstanceStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(default)]
pub struct OsInstanceSpec {
    /// KubeOS's word for the order: idle, upgrade or config.
    pub nodestatus: String,
    /// The OS object that claims this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespacedname: Option<NamespacedName>,
    /// Settings to apply after the reboot, or in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysconfigs: Option<Configs>,
    /// Settings to apply before the reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgradeconfigs: Option<Configs>,

    /// UID of the claiming OS object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub osuid: Option<String>,
    /// The order.
    pub desired: Desired,
    /// What to stage and boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Counts the grants of this node, never reset.
    pub attempt: u32,
    /// Operation id of the order; the proxy answers with it in status.lastResult.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opid: Option<String>,
    /// The node must still be in this boot when it is told to reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expectbootid: Option<String>,
    /// How to drain and when the node counts as good, all defaults filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<NodePolicy>,
    /// The grant behind a Boot, Rollback or Config order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantOrder>,
    /// How often which digest failed here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedTarget>,
    /// Digests that are not tried here again without a human.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// Digests whose denial the proxy lifts in the agent (`Forget`) before it stages again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forgive: Vec<String>,
}

/// Name and namespace of an OS object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamespacedName {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// The order of the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Desired {
    /// Nothing to do; clean up what is ours.
    #[default]
    Idle,
    /// Write the target into the inactive slot; nothing else.
    Stage,
    /// With a grant: cordon, drain, boot the target, verify, commit, uncordon.
    Boot,
    /// Give the grant back if the node has not been told to reboot.
    Abort,
    /// With a grant: apply sysconfigs in place.
    Config,
    /// As Boot; the target is the previous system.
    Rollback,
}

/// What to stage and boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Target {
    /// osversion of the OS object.
    pub version: String,
    /// SHA-256, 64 lower-case hex digits; `config:VERSION` for a Config order.
    pub digest: String,
    /// Where it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Why the node may go down.
    pub kind: GrantKind,
}

/// Where the payload comes from. Exactly one of url, image and slot is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Source {
    /// http(s) URL (imagetype disk).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Image reference (imagetype docker, containerd).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `previous`: the other slot, read back against its record (rollback).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Plain http is permitted (flagSafe).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allowhttp: bool,
    /// Present the client certificate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mtls: bool,
    /// File names below /etc/KubeOS/certs/.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cacert: String,
    /// See cacert.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clientcert: String,
    /// See cacert.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clientkey: String,
}

/// The grant behind an order, copied from the ledger. The ledger decides; this only saves a look-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantOrder {
    /// Epoch of the operator.
    #[serde(default)]
    pub epoch: i64,
    /// When it was granted.
    pub grantedat: Time,
    /// Before Boot nothing is done after this instant.
    pub notafter: Time,
}

/// How often a target failed on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FailedTarget {
    /// Digest or `config:VERSION`.
    pub digest: String,
    /// Failed operations.
    pub count: u32,
    /// Operation id of the last one counted.
    pub opid: String,
    /// Reason of the last one.
    pub reason: String,
}

/// What to do when a drain does not end in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDrainTimeout {
    /// Uncordon, give the grant back, try later.
    #[default]
    Abort,
    /// Delete what is left.
    Delete,
    /// Reboot all the same.
    Reboot,
}

/// How to drain and when the node counts as good, all defaults filled in. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodePolicy {
    /// Longest drain.
    pub draintimeoutseconds: i64,
    /// What then.
    pub ontimeout: OnDrainTimeout,
    /// -1 = the pod's own.
    pub graceperiodseconds: i64,
    /// Pods with emptyDir volumes may go.
    pub deleteemptydirdata: bool,
    /// Pods without a controller may go.
    pub evictunmanagedpods: bool,
    /// 0 = wait for all terminating pods.
    pub skipwaitfordeleteseconds: i64,
    /// Only matching pods are drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub podselector: Option<LabelSelector>,
    /// Evictions under way at once.
    pub concurrency: i64,
    /// Longest wait for volumes.
    pub volumedetachtimeoutseconds: i64,
    /// Go on when volumes stay attached.
    pub proceedwithvolumes: bool,
    /// Longest time from Boot until the node is back.
    pub reboottimeoutseconds: i64,
    /// Node Ready for this long.
    pub readyseconds: i64,
    /// Longest wait for all gates.
    pub healthtimeoutseconds: i64,
    /// `namespace/name`; absent = all of kube-system with a pod on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemonsets: Option<Vec<String>>,
    /// Names of annotation gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub annotationgates: Vec<String>,
    /// Roll back when the API stays unreachable after the boot.
    pub rollbackonapiunreachable: bool,
    /// Serial mode: the label `serial` is set as well.
    pub serial: bool,
}

impl Default for NodePolicy {
    fn default() -> Self {
        NodePolicy {
            draintimeoutseconds: 30 * 60,
            ontimeout: OnDrainTimeout::Abort,
            graceperiodseconds: -1,
            deleteemptydirdata: false,
            evictunmanagedpods: false,
            skipwaitfordeleteseconds: 0,
            podselector: None,
            concurrency: 25,
            volumedetachtimeoutseconds: 5 * 60,
            proceedwithvolumes: true,
            reboottimeoutseconds: 60 * 60,
            readyseconds: 60,
            healthtimeoutseconds: 15 * 60,
            daemonsets: None,
            annotationgates: Vec::new(),
            rollbackonapiunreachable: false,
            serial: false,
        }
    }
}
