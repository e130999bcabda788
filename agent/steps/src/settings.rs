//! What the node's configuration says about steps (`[steps]`).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who may let an update's main steps begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Approval {
    /// Nobody needs to be asked.
    #[default]
    Auto,
    /// A person: `os-agent steps approve update`.
    Ask,
    /// The cluster, by Deckhouse's node annotations.
    Deckhouse,
}

/// Who may let a step disrupt the node, and who reboots it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disruption {
    /// Nobody reboots; it is only reported. Disruptive steps wait.
    #[default]
    None,
    /// os-operator sees `reboot_required` and gives the node its turn. Disruptive steps wait for the same.
    Slots,
    /// A person: `os-agent steps approve disruption`.
    Ask,
    /// The cluster: approval, drain, then the reboot.
    Deckhouse,
    /// The runner may disrupt and reboot at once.
    Auto,
}

/// Settings of the runner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Bundle to keep applied: directory, archive, http(s) URL, or empty.
    pub source: String,
    /// SHA-256 of the archive at an http(s) source.
    pub sha256: String,
    /// Plain http is permitted for `source`.
    pub allow_http: bool,
    /// Group of nodes for the cluster's bashible API; empty = no cluster.
    pub node_group: String,
    /// API servers, `https://host:port`, for the time without a local proxy.
    pub api_endpoints: Vec<String>,
    /// Bundles from the cluster are trusted without a signature.
    pub trust_cluster: bool,
    /// Unsigned bundles are refused.
    pub require_signature: bool,
    /// See [`Approval`].
    pub approval: Approval,
    /// See [`Disruption`].
    pub disruption: Disruption,
    /// More variables for steps.
    pub env: BTreeMap<String, String>,
}
