//! What the operator knows when it decides. Nothing else goes into a decision: no clock, no server, no memory.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::api::{
    ANN_CORDONED_BY, ANN_GATE_PREFIX, ANN_HOLD, ANN_IGNORE_UNAVAILABLE, LABEL_CONTROL_PLANE, OS, OSInstance,
};

/// A snapshot of the fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Wall time of the snapshot.
    pub now: Timestamp,
    /// Every Node, by name.
    pub nodes: BTreeMap<String, NodeFacts>,
    /// Every OS object of every namespace.
    pub oses: Vec<OS>,
    /// Every OSInstance of namespace `default`, by name.
    pub instances: BTreeMap<String, OSInstance>,
    /// All three watches are synced and none has been cut off for longer than [`Settings::stale_secs`].
    pub fresh: bool,
    /// What went wrong with the last writes, if they did.
    pub trouble: Option<Trouble>,
    /// Fixed at start.
    pub settings: Settings,
}

/// What keeps the operator from doing its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word, the reason of condition Degraded.
    pub reason: String,
    /// A sentence with what to do.
    pub message: String,
}

/// Fixed at start of the program.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Zone of KubeOS's `timewindow`.
    pub timewindow_zone: TimeZone,
    /// Its name, for messages.
    pub timewindow_zone_name: String,
    /// `leaseTransitions` of our Lease, copied into grants.
    pub epoch: i64,
    /// Node on which this operator runs; it goes last.
    pub own_node: Option<String>,
    /// More than this share of all workers not Ready without a grant of ours: nothing is granted or staged.
    pub breaker_percent: u32,
    /// No grant when the window closes sooner than this.
    pub closing_secs: i64,
    /// Time from the end of the drain to the reboot that a grant leaves.
    pub grant_slack_secs: i64,
    /// A grant whose time ran out before Boot, and whose proxy says nothing, is dropped after this.
    pub unanswered_secs: i64,
    /// What a boot takes beyond the health timeout; reboottimeout must hold three of both.
    pub boot_margin_secs: i64,
    /// Watches cut off for longer make the snapshot stale.
    pub stale_secs: i64,
    /// Stage orders per decision; at five decisions per second the servers of images see ten new nodes per second.
    pub stage_burst: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            timewindow_zone: TimeZone::UTC,
            timewindow_zone_name: "UTC".into(),
            epoch: 0,
            own_node: None,
            breaker_percent: 20,
            closing_secs: 120,
            grant_slack_secs: 600,
            unanswered_secs: 600,
            boot_margin_secs: 300,
            stale_secs: 60,
            stage_burst: 2,
        }
    }
}

/// The few facts of a Node that count; a whole Node is fifty times as large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// metadata.uid.
    pub uid: String,
    /// metadata.resourceVersion.
    pub resource_version: String,
    /// metadata.labels.
    pub labels: BTreeMap<String, String>,
    /// Condition Ready is True.
    pub ready: bool,
    /// spec.unschedulable.
    pub unschedulable: bool,
    /// metadata.deletionTimestamp is set.
    pub terminating: bool,
    /// status.nodeInfo.osImage.
    pub os_image: String,
    /// status.nodeInfo.bootID.
    pub boot_id: String,
    /// Our annotations, without the others.
    pub annotations: BTreeMap<String, String>,
}

impl NodeFacts {
    /// Picks the facts out of a Node.
    pub fn of(node: &k8s_openapi::api::core::v1::Node) -> NodeFacts {
        let (meta, spec, status) = (&node.metadata, node.spec.as_ref(), node.status.as_ref());
        let ready = status
            .and_then(|s| s.conditions.as_ref())
            .is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.status == "True")
            });
        let info = status.and_then(|s| s.node_info.as_ref());
        let ours = |key: &str| key.starts_with("upgrade.openeuler.org/");
        let annotations = meta.annotations.clone().unwrap_or_default();
        NodeFacts {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            ready,
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            terminating: meta.deletion_timestamp.is_some(),
            os_image: info.map(|i| i.os_image.clone()).unwrap_or_default(),
            boot_id: info.map(|i| i.boot_id.clone()).unwrap_or_default(),
            annotations: annotations.into_iter().filter(|(k, _)| ours(k)).collect(),
        }
    }

    /// Control-plane nodes are never selected.
    pub fn is_control_plane(&self) -> bool {
        self.labels.contains_key(LABEL_CONTROL_PLANE)
    }

    /// A user said that this node's being down is expected. Any value but `false` counts.
    pub fn ignored(&self) -> bool {
        self.annotations
            .get(ANN_IGNORE_UNAVAILABLE)
            .is_some_and(|v| v != "false")
    }

    /// Not available, for whatever reason, and nobody said that this does not count.
    pub fn unavailable(&self) -> bool {
        (!self.ready || self.unschedulable || self.terminating) && !self.ignored()
    }

    /// Why a user or another controller does not want this node to be taken down now.
    pub fn held(&self) -> Option<String> {
        if self.annotations.get(ANN_HOLD).is_some_and(|v| v != "false") {
            return Some("held by annotation hold".into());
        }
        let gate = self
            .annotations
            .iter()
            .find(|(k, v)| k.starts_with(ANN_GATE_PREFIX) && v.as_str() != "ok");
        gate.map(|(k, v)| format!("gate {} says {v:?}", &k[ANN_GATE_PREFIX.len()..]))
    }

    /// Owner mark of a cordon of ours: OS uid and attempt.
    pub fn cordoned_by(&self) -> Option<(&str, u32)> {
        let (uid, attempt) = self.annotations.get(ANN_CORDONED_BY)?.rsplit_once('/')?;
        Some((uid, attempt.parse().ok()?))
    }
}
