//! `OS.status`, written by the operator alone. Its `grants` are the only place where a right to take a node down exists.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator knows and has granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OsStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is being rolled out: a digest (64 hex digits), or `config:VERSION`, or `rollback:VERSION`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_digest: Option<String>,
    /// One word for people; machines read the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `updated/total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Nodes by what they are doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// The ledger: rights to take a node down that are in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// Grant holders past their time that a user wrote off with ignore-unavailable; they no longer use up the budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostNode>,
    /// Where the canary and waves stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveStatus>,
    /// The last lifting of a halt by a human.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeStatus>,
    /// Entries of spec.forgive that were honoured; each is honoured once while it stands there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forgiven: Vec<String>,
    /// Digests that are not rolled out again without a human.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denylist: Vec<DeniedDigest>,
    /// The last failures, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureRecord>,
    /// Accepted, Progressing, Complete, Degraded, Halted, Paused; each with observedGeneration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Nodes by what they are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Counts {
    /// Selected nodes with an agent.
    pub total: u32,
    /// On the target.
    pub updated: u32,
    /// Writing the inactive slot.
    pub staging: u32,
    /// Ready to be taken down.
    pub staged: u32,
    /// Holding a grant.
    pub updating: u32,
    /// Failed on the target.
    pub failed: u32,
    /// Selected, but without an agent, or claimed by another OS.
    pub excluded: u32,
    /// Not available for any reason, grant holders included.
    pub unavailable: u32,
}

/// Why a node may be taken down.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum GrantKind {
    /// Boot the staged slot.
    #[default]
    Upgrade,
    /// Boot the previous system.
    Rollback,
    /// Apply settings in place; neither cordon nor reboot.
    Config,
    /// Reboot the same system.
    Reboot,
}

/// A right to take a node down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Node name.
    pub node: String,
    /// UID of the Node object; another UID is another node.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Why.
    pub kind: GrantKind,
    /// Counts the grants of this node; part of the cordon's owner mark.
    pub attempt: u32,
    /// When.
    pub granted_at: Time,
    /// Before Boot nothing is done after this instant: no cordon, no eviction, no Boot.
    pub not_after: Time,
    /// `leaseTransitions` of the operator's Lease when it was made.
    #[serde(default)]
    pub epoch: i64,
}

/// A grant holder that was written off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LostNode {
    /// Node name.
    pub node: String,
    /// UID of the Node object.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Attempt of the grant it held.
    pub attempt: u32,
    /// When it was written off.
    pub since: Time,
}

/// Where the canary and waves stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WaveStatus {
    /// 0 = the canary where there is one, else the first wave.
    pub index: u32,
    /// End of the wait after the wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak_until: Option<Time>,
}

/// A halt was lifted: failures up to then no longer count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ResumeStatus {
    /// Generation that annotation resume named.
    pub generation: i64,
    /// Nodes that had failed by then.
    pub failures: u32,
}

/// A digest that is not rolled out again without a human.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeniedDigest {
    /// Digest (or `config:VERSION`).
    pub digest: String,
    /// How many nodes failed on it.
    #[serde(default)]
    pub nodes: u32,
    /// Since when.
    pub since: Time,
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// Node name.
    pub node: String,
    /// Digest (or `config:VERSION`) it failed on.
    pub digest: String,
    /// Attempt.
    #[serde(default)]
    pub attempt: u32,
    /// One word.
    pub reason: String,
    /// A sentence.
    #[serde(default)]
    pub message: String,
    /// When the operator saw it.
    pub at: Time,
}
