//! `OSInstance.status`: what a node's proxy reports, and the words it ends an order with.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::os::Configs;

/// What a node's proxy reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OsInstanceStatus {
    /// Settings that are applied (KubeOS); recorded only on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysconfigs: Option<Configs>,
    /// Settings that are applied (KubeOS); recorded only on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgradeconfigs: Option<Configs>,
    /// Where the node stands.
    pub phase: Phase,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Time>,
    /// Operation id that the proxy acts on or acted on last.
    #[serde(rename = "observedOpID", skip_serializing_if = "Option::is_none")]
    pub observed_op_id: Option<String>,
    /// What the agent says; absent = no agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentReport>,
    /// How the drain goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainReport>,
    /// The node was cordoned by somebody else before our turn; it stays cordoned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pre_cordoned: bool,
    /// Why the node does not get on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<NodeFailure>,
    /// Not before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry: Option<Time>,
    /// The step runner wants a reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_required: Option<RebootRequired>,
    /// How the last operation under a grant ended. Once its opID is that of spec.opid, the grant is given back: the node is
    /// uncordoned (if the cordon was ours) and nothing more will be done under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_result: Option<OpResult>,
}

/// Where a node stands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Nothing to do.
    #[default]
    Idle,
    /// Writing the inactive slot.
    Staging,
    /// The inactive slot holds the target, read back.
    Staged,
    /// A grant was seen.
    Granted,
    /// Cordoned; pods are evicted.
    Draining,
    /// Nothing evictable is left.
    Drained,
    /// The agent was or is about to be told to boot.
    Rebooting,
    /// Booted the target; gates are watched.
    Verifying,
    /// Gates passed; the slot becomes the default.
    Committing,
    /// Gates failed; the previous system is booted.
    RollingBack,
    /// The attempt is over; our cordon is being removed.
    Uncordoning,
    /// The grant is being given back before any reboot.
    Aborting,
    /// Attempts are used up for this target.
    Failed,
    /// Settings are applied in place.
    Configuring,
}

impl Phase {
    /// From here on the node may be down or on the new system, so a grant never expires.
    pub fn past_boot(self) -> bool {
        matches!(
            self,
            Phase::Rebooting | Phase::Verifying | Phase::Committing | Phase::RollingBack | Phase::Uncordoning
        )
    }
}

/// What the agent says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct AgentReport {
    /// Changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Of the machine.
    #[serde(rename = "machineID", skip_serializing_if = "String::is_empty")]
    pub machine_id: String,
    /// Running slot: A or B; empty = no slots.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slot: String,
    /// PRETTY_NAME of the running system.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub os_version: String,
    /// VERSION_ID of the running system.
    #[serde(rename = "versionID", skip_serializing_if = "String::is_empty")]
    pub version_id: String,
    /// Digest under which the running system was staged; empty = unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Every digest the running system is known by (image, payload files, manifests).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<String>,
    /// Digest of the inactive slot if that is complete and read back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub staged_digest: String,
    /// Every digest the inactive slot is known by, if complete and read back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub staged_digests: Vec<String>,
    /// Digest of the system a rollback would boot; empty = none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub previous_digest: String,
    /// PRETTY_NAME or version of the system a rollback would boot.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub previous_version: String,
    /// During a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries_left: Option<u32>,
    /// Self-test of the agent.
    pub healthy: bool,
}

impl OsInstanceStatus {
    /// Forgets what lies in the slot that does not run, unless that is `digest`.
    pub(crate) fn forget_other_slot(&mut self, digest: &str) {
        let Some(a) = &mut self.agent else { return };
        if digest.is_empty() || a.previous_digest != digest {
            a.previous_digest.clear();
            a.previous_version.clear();
            a.staged_digest.clear();
            a.staged_digests.clear();
        }
    }
}

impl AgentReport {
    /// Whether the running system is known by `digest`.
    pub fn runs(&self, digest: &str) -> bool {
        !digest.is_empty() && (self.digest == digest || self.digests.iter().any(|d| d == digest))
    }

    /// Whether the inactive slot holds `digest`, complete and read back.
    pub fn has_staged(&self, digest: &str) -> bool {
        !digest.is_empty()
            && (self.staged_digest == digest || self.staged_digests.iter().any(|d| d == digest))
    }

    /// Whether anything is known about what the running system was made from.
    pub fn knows_digest(&self) -> bool {
        !self.digest.is_empty() || !self.digests.is_empty()
    }
}

/// How the drain goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DrainReport {
    /// Pods to evict.
    pub total: u32,
    /// Pods still there.
    pub remaining: u32,
    /// What is in the way, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedPod>,
}

/// A pod that cannot go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockedPod {
    /// `namespace/name`.
    pub pod: String,
    /// `namespace/name` of the budget, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdb: Option<String>,
    /// PDBAtLimit, PDBNotObserved, MultiplePDBs, Forbidden, UnreadyProtected, Finalizer, StuckTerminating, VolumeAttached,
    /// Unmanaged, LocalData, WebhookDenied.
    pub reason: String,
    /// A sentence with what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Why a node does not get on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeFailure {
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// How often in a row.
    pub count: u32,
    /// Target it happened with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// The step runner wants a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RebootRequired {
    /// Why.
    pub reason: String,
    /// Which step.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub step: String,
}

/// How an operation under a grant ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// Done: the target runs and is committed, or the settings are applied.
    #[default]
    Done,
    /// Nothing was rebooted; the grant is given back.
    Aborted,
    /// Booted, and back on the previous system.
    RolledBack,
    /// Failed in another way.
    Failed,
}

/// How the last operation under a grant ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OpResult {
    /// Operation id.
    #[serde(rename = "opID")]
    pub op_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// One word: see [`counts_as_failure`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// Reasons for which a grant was given back because somebody wanted it so: the node itself may be granted again at once.
pub fn given_back_on_request(reason: &str) -> bool {
    matches!(
        reason,
        "" | "Aborted" | "GrantGone" | "GrantExpired" | "Held" | "Gated"
    )
}

/// Reasons that use up the failure budget. Drain timeouts, transient downloads and API errors do not.
pub fn counts_as_failure(reason: &str) -> bool {
    matches!(
        reason,
        "DigestMismatch"
            | "SignatureInvalid"
            | "WrongVersion"
            | "NotBootable"
            | "RebootTimeout"
            | "HealthFailed"
            | "RolledBack"
            | "AgentError"
            | "ConfigRejected"
    )
}
