//! `OS.spec`: what a user wants a group of nodes to run.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::OsStatus;

/// Wanted system of a group of nodes, and how the cluster may get there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "upgrade.openeuler.org",
    version = "v1alpha1",
    kind = "OS",
    plural = "os",
    singular = "os",
    namespaced,
    status = "OsStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(default)]
pub struct OsSpec {
    /// Version that triggers: compared with the node's osImage (PRETTY_NAME) and VERSION_ID. The digest proves.
    pub osversion: String,
    /// What to do: upgrade, config or rollback.
    pub opstype: String,
    /// Where the payload comes from: docker, disk or containerd. Empty for config and rollback.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub imagetype: String,
    /// http(s) URL of the payload, for imagetype disk.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub imageurl: String,
    /// SHA-256 of the file (disk) or of the manifest (docker, containerd); `sha256:` prefix and upper case are accepted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    /// Image reference with tag or digest, for imagetype docker and containerd.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub containerimage: String,
    /// Older spelling of containerimage; used with a warning where that is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dockerimage: String,
    /// True permits plain http.
    #[serde(rename = "flagSafe")]
    pub flag_safe: bool,
    /// True presents a client certificate.
    pub mtls: bool,
    /// File name of the CA below /etc/KubeOS/certs/ on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cacert: String,
    /// File name of the client certificate below /etc/KubeOS/certs/ on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clientcert: String,
    /// File name of the client key below /etc/KubeOS/certs/ on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clientkey: String,
    /// True drains like `kubectl drain --ignore-daemonsets --delete-emptydir-data --force`, false like `--ignore-daemonsets`.
    pub evictpodforce: bool,
    /// Most nodes that may be unavailable at once, ours and others: a number, or a percentage such as "10%". 0 stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxunavailable: Option<IntOrString>,
    /// Which workers: `no-label` (default) = those without label upgrade.openeuler.org/node-selector, `all-label` = all,
    /// anything else = those whose label has that value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodeselector: Option<String>,
    /// serial (one node at a time) or parallel (default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executionmode: Option<String>,
    /// Seconds between full passes over the fleet; below 1 means 15. Changes are acted on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeinterval: Option<i64>,
    /// One window in the form of KubeOS, in the zone of the operator's `--timewindow-zone`. Not together with windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timewindow: Option<TimeWindow>,
    /// Settings applied after the reboot (upgrade, rollback) or in place (config).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysconfigs: Option<Configs>,
    /// Settings applied before the reboot of an upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgradeconfigs: Option<Configs>,

    /// Node label whose values form groups, for example topology.kubernetes.io/zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topologykey: Option<String>,
    /// Most nodes that may be unavailable at once within one group: a number, or a percentage of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxunavailablepergroup: Option<IntOrString>,
    /// The roll-out halts when this many nodes failed on the target: a number or a percentage. Default 1 up to ten nodes, else 5%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failurebudget: Option<IntOrString>,
    /// Boot operations per node and digest. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxattempts: Option<i64>,
    /// True: nothing new is started.
    pub paused: bool,
    /// What a pause does to nodes under way: finish (default), or abort those that have not rebooted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pausepolicy: Option<String>,
    /// Which workers, by label selector; replaces nodeselector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// How nodes are drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSpec>,
    /// Longest time from Boot until the node is back, for example 60m. At least three boots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboottimeout: Option<String>,
    /// When an updated node counts as good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSpec>,
    /// Nodes that go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
    /// Steps after the canary; without them the rest follows at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveSpec>,
    /// Times at which nodes may be taken down. Default: always.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowSpec>,
    /// Times at which no node may be taken down; they win over windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<ExclusionSpec>,
    /// Digests (or `any`) whose denial is lifted everywhere in one act.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forgive: Vec<String>,
}

/// KubeOS's time window: both bounds `YYYY-MM-DD HH:MM:SS` or both `HH:MM:SS`, exclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TimeWindow {
    /// First bound.
    pub starttime: String,
    /// Second bound; may lie before the first in the time-only form (crosses midnight).
    pub endtime: String,
}

/// A named set of settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Configs {
    /// Changing it triggers; equal versions do nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Applied in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<Config>,
}

/// Settings of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// kernel.sysctl, kernel.sysctl.persist, grub.cmdline.current, grub.cmdline.next, kubernetes.kubelet,
    /// container.containerd or pam.limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// File to change, where the model allows a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configpath: Option<String>,
    /// Entries, in order; the last of two equal keys wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<ConfigEntry>,
}

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfigEntry {
    /// Name of the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Any JSON value; absent and null are empty.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    #[schemars(schema_with = "any_value")]
    pub value: serde_json::Value,
    /// Empty = add or update; delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
}

fn any_value(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "description": "Any JSON value; absent and null are empty.",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// How nodes are drained. Durations are written as 90s, 30m, 1h30m.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DrainSpec {
    /// Longest drain. Default 30m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Then: abort (default), delete (needs an extra role) or reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ontimeout: Option<String>,
    /// Grace period in seconds for every pod; -1 (default) = the pod's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graceperiodseconds: Option<i64>,
    /// Pods with emptyDir volumes may go. Default: evictpodforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleteemptydirdata: Option<bool>,
    /// Pods without a controller: error or evict. Default: evict with evictpodforce, else error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmanagedpods: Option<String>,
    /// Pods that have been terminating for longer are not waited for; 0 (default) = wait for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipwaitfordeleteseconds: Option<i64>,
    /// Only pods that match are drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub podselector: Option<LabelSelector>,
    /// Evictions under way at once. Default 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Longest wait for volumes to be detached. Default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumedetachtimeout: Option<String>,
    /// Then: proceed (default) or abort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ondetachtimeout: Option<String>,
}

/// When an updated node counts as good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HealthSpec {
    /// The Node must be Ready for this long, in seconds. Default 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readyseconds: Option<i64>,
    /// Longest wait for all gates. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// DaemonSets (`namespace/name`) whose pods on the node must be Ready. Default: all of kube-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemonsets: Option<Vec<String>>,
    /// Names of Node annotations upgrade.openeuler.org/gate.NAME that must say `ok`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub annotationgates: Vec<String>,
    /// A node that cannot reach the API after its boot: keep (default) or rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onapiunreachable: Option<String>,
}

/// Nodes that go first: a number or a selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CanarySpec {
    /// How many nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,
    /// Which nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Wait after the last of them is updated, for example 30m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak: Option<String>,
}

/// One step of the roll-out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WaveSpec {
    /// Nodes updated at the end of this wave, all earlier ones included: a number or a percentage of all selected nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<IntOrString>,
    /// Wait after the wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak: Option<String>,
}

/// A recurring window [start, end); end at or before start crosses midnight and belongs to the start day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WindowSpec {
    /// Start days: Mon, Tue, Wed, Thu, Fri, Sat, Sun (or their full names). Empty = every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<String>,
    /// HH:MM.
    pub start: String,
    /// HH:MM; 24:00 is legal.
    pub end: String,
    /// IANA name. Default UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// A span [from, to) in RFC 3339.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExclusionSpec {
    /// First instant.
    pub from: String,
    /// First instant after it.
    pub to: String,
}
