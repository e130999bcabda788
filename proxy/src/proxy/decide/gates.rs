//! When an updated node counts as good (PURE).

use super::{LOOK_SECS, after};
use crate::api::NodePolicy;
use crate::proxy::facts::Facts;
use jiff::Timestamp;

/// What the gates say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gates {
    /// All passed.
    Pass,
    /// All but the DaemonSets' pods, which have not been looked at.
    Look,
    /// Not yet.
    Wait {
        /// The first gate that is shut.
        why: String,
        /// Look again then.
        until: Timestamp,
    },
}

/// Asks every gate.
pub(super) fn gates(f: &Facts, policy: &NodePolicy) -> Gates {
    let wait = |why: String| Gates::Wait {
        why,
        until: after(f.now, LOOK_SECS),
    };
    let Some(agent) = &f.agent else {
        return wait("the agent does not answer".into());
    };
    let Some(node) = &f.node else {
        return wait("the Node object is not known".into());
    };
    let a = &agent.report;
    if node.boot_id != a.boot_id {
        return wait(format!(
            "kubelet still reports boot {:?}, the agent {:?}",
            node.boot_id, a.boot_id
        ));
    }
    if node.machine_id != a.machine_id {
        return wait(format!(
            "kubelet reports machine {:?}, the agent {:?}: is this the right socket?",
            node.machine_id, a.machine_id
        ));
    }
    if !node.ready {
        return wait("the Node is not Ready".into());
    }
    if !a.healthy {
        return wait("the agent's own checks have not passed".into());
    }
    if let Some(t) = node.troubles.first() {
        return wait(format!("the Node has condition {t}"));
    }
    for gate in &policy.annotationgates {
        match node.gates.get(gate).map(String::as_str) {
            Some("ok") => {}
            Some(other) => return wait(format!("gate {gate} says {other:?}")),
            None => return wait(format!("gate {gate} says nothing")),
        }
    }
    // A Node that was Ready all along is counted from the moment it was seen on the new system.
    let since = node.ready_since.unwrap_or(f.now);
    let long_enough = after(since, policy.readyseconds.max(0));
    if f.now < long_enough {
        return Gates::Wait {
            why: format!("the Node must be Ready for {} s", policy.readyseconds),
            until: long_enough,
        };
    }
    match &f.unready {
        None => Gates::Look,
        Some(pods) => match pods.first() {
            None => Gates::Pass,
            Some(p) => wait(format!("{} pods are not Ready, {p} for one", pods.len())),
        },
    }
}
