//! Everything a decision of the proxy depends on.

use crate::api::{
    self, AgentReport, LABEL_CONFIGURING, LABEL_SERIAL, LABEL_UPGRADING, OsInstanceSpec, OsInstanceStatus,
};
use crate::drain;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;

/// What of the own Node matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFact {
    /// Name.
    pub name: String,
    /// UID: another one is another node.
    pub uid: String,
    /// Version that was read; writes carry it.
    pub resource_version: String,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Our owner mark, whatever attempt it names.
    pub cordoned_by: Option<String>,
    /// KubeOS's label.
    pub upgrading: bool,
    /// KubeOS's label.
    pub configuring: bool,
    /// KubeOS's label.
    pub serial: bool,
    /// A user wants this node left alone.
    pub hold: bool,
    /// Condition Ready is true.
    pub ready: bool,
    /// Since when.
    pub ready_since: Option<Timestamp>,
    /// As kubelet reports it.
    pub boot_id: String,
    /// As kubelet reports it.
    pub machine_id: String,
    /// Conditions that must not be true but are: pressure, NetworkUnavailable.
    pub troubles: Vec<String>,
    /// Volumes are attached, or kubelet has some in use.
    pub volumes: bool,
    /// Annotation gates by name.
    pub gates: BTreeMap<String, String>,
}

impl From<&Node> for NodeFact {
    fn from(n: &Node) -> NodeFact {
        let m = &n.metadata;
        let note = |key: &str| m.annotations.as_ref().and_then(|a| a.get(key)).cloned();
        let label = |key: &str| m.labels.as_ref().is_some_and(|l| l.contains_key(key));
        let status = n.status.as_ref();
        let conditions = || status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
        let ready = conditions().find(|c| c.type_ == "Ready" && c.status == "True");
        let info = status.and_then(|s| s.node_info.as_ref());
        NodeFact {
            name: m.name.clone().unwrap_or_default(),
            uid: m.uid.clone().unwrap_or_default(),
            resource_version: m.resource_version.clone().unwrap_or_default(),
            unschedulable: n.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false),
            cordoned_by: note(api::ANN_CORDONED_BY),
            upgrading: label(LABEL_UPGRADING),
            configuring: label(LABEL_CONFIGURING),
            serial: label(LABEL_SERIAL),
            hold: note(api::ANN_HOLD).is_some_and(|v| v != "false"),
            ready: ready.is_some(),
            ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0),
            boot_id: info.map(|i| i.boot_id.clone()).unwrap_or_default(),
            machine_id: info.map(|i| i.machine_id.clone()).unwrap_or_default(),
            troubles: conditions()
                .filter(|c| c.status == "True")
                .map(|c| c.type_.clone())
                .filter(|t| t.ends_with("Pressure") || t == "NetworkUnavailable")
                .collect(),
            volumes: status.is_some_and(|s| {
                s.volumes_attached.as_ref().is_some_and(|v| !v.is_empty())
                    || s.volumes_in_use.as_ref().is_some_and(|v| !v.is_empty())
            }),
            gates: m
                .annotations
                .iter()
                .flatten()
                .filter_map(|(k, v)| Some((k.strip_prefix(api::ANN_GATE_PREFIX)?.to_owned(), v.clone())))
                .collect(),
        }
    }
}

/// What the agent says beyond its report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentFact {
    /// What goes into the status.
    pub report: AgentReport,
    /// The running slot is on trial: not committed yet.
    pub trial: bool,
    /// The next boot tries the staged slot.
    pub armed: bool,
    /// Operation that armed, or that the trial belongs to.
    pub boot_op: String,
    /// The last operation of any kind.
    pub last_op: String,
    /// Digests that the agent will not try again.
    pub denied: Vec<String>,
    /// Digest of the last fallback, if any.
    pub fell_back_from: String,
    /// What the agent says about it: cause and message.
    pub fall_back_cause: String,
    /// The step runner wants a reboot, for this reason.
    pub reboot_required: Option<String>,
}

impl AgentFact {
    /// Whether the agent has ever been told to boot under this operation.
    pub fn knows_boot(&self, op_id: &str) -> bool {
        !op_id.is_empty() && (self.boot_op == op_id || self.last_op == op_id)
    }
}

/// Why something did not succeed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fail {
    /// One word; see [`api::counts_as_failure`].
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// It may succeed next time by itself.
    pub passing: bool,
}

/// Work that runs beside the loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Work<T> {
    /// Not begun.
    #[default]
    Idle,
    /// Under way.
    Running,
    /// Over.
    Ended(T),
}

/// What was tried before anything was touched, for one target and policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preflight {
    /// What would be in the way of a drain.
    pub blocked: Vec<drain::Blocked>,
    /// A setting that the agent rejects.
    pub rejected: Option<Fail>,
}

/// Steps of an attempt that are calls; their results are kept for its operation id. All can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The ledger holds our grant (live read), and the node is cordoned.
    Cordon,
    /// upgradeconfigs before the boot.
    Upgradeconfigs,
    /// Boot checks and Activate.
    Boot,
    /// sysconfigs inside the trial, or in place.
    Sysconfigs,
    /// Commit.
    Commit,
    /// Rollback.
    Rollback,
    /// Disarm.
    Cancel,
}

/// The facts.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Now.
    pub now: Timestamp,
    /// The own Node; absent = not read, or deleted.
    pub node: Option<NodeFact>,
    /// Orders; absent = no OSInstance.
    pub order: Option<OsInstanceSpec>,
    /// What was reported last.
    pub report: OsInstanceStatus,
    /// The agent; absent = does not answer.
    pub agent: Option<AgentFact>,
    /// It has not answered since.
    pub silent_since: Option<Timestamp>,
    /// The drain for the current operation.
    pub drain: Work<drain::run::Outcome>,
    /// How it goes.
    pub progress: drain::run::Progress,
    /// Staging of the current target: the operation id of the try, and how it went.
    pub stage: Work<Result<(), Fail>>,
    /// Preflight for the current target.
    pub preflight: Work<Preflight>,
    /// Pods of DaemonSets on this node that are not Ready, if they were looked at.
    pub unready: Option<Vec<String>>,
    /// Results of calls for the current operation.
    pub done: BTreeMap<Step, Result<(), Fail>>,
    /// The server's words about a right that this proxy lacks.
    pub forbidden: Option<String>,
}

impl Facts {
    /// The operation id in force, empty if none.
    pub fn op_id(&self) -> &str {
        self.order
            .as_ref()
            .and_then(|o| o.opid.as_deref())
            .unwrap_or_default()
    }

    /// The owner mark of the current attempt.
    pub fn owner(&self) -> String {
        self.order
            .as_ref()
            .map(|o| api::cordon_owner(o.osuid.as_deref().unwrap_or_default(), o.attempt))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_says_whether_volumes_are_on_it() {
        let volumes = |status: serde_json::Value| {
            let n: Node =
                serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            NodeFact::from(&n).volumes
        };
        assert!(!volumes(json!({})));
        assert!(!volumes(json!({"volumesAttached": [], "volumesInUse": []})));
        assert!(volumes(
            json!({"volumesAttached": [{"name": "v", "devicePath": ""}]})
        ));
        assert!(volumes(json!({"volumesInUse": ["v"]})), "mounted still");
    }
}
