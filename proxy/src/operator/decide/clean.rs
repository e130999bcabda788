//! What nobody owns any more: orders of OS objects that are gone, OSInstances of Nodes that are gone, cordons of ours.

use kube::ResourceExt;

use crate::api::Desired;
use crate::operator::facts::Fleet;

use super::claims::Claims;
use super::orders::{freed, push};
use super::standing::belongs;
use super::{Decision, InstanceWrite, Orphan};

/// Finds it. Only on a fresh view: an empty list of nodes after a restart must delete nothing.
pub(crate) fn clean(fleet: &Fleet, claims: &Claims<'_>, out: &mut Decision) {
    if !fleet.fresh || fleet.trouble.is_some() {
        return;
    }
    let known = |uid: &str| fleet.oses.iter().any(|o| o.uid().as_deref() == Some(uid));
    let granted = |node: &str| {
        fleet
            .oses
            .iter()
            .filter_map(|o| o.status.as_ref())
            .any(|s| s.grants.iter().any(|g| g.node == node) || s.lost.iter().any(|l| l.node == node))
    };
    for (name, instance) in &fleet.instances {
        let node = fleet.nodes.get(name);
        if node.is_none_or(|n| !belongs(instance, n)) {
            if out.taken.insert(name.clone()) {
                out.instances
                    .push(InstanceWrite::Delete(Box::new(instance.clone())));
            }
            continue;
        }
        let Some(uid) = instance.spec.osuid.as_deref() else {
            if instance.spec.desired != Desired::Idle && !granted(name) {
                push(out, freed(instance), true);
            }
            continue;
        };
        let owner = claims.owner(name).and_then(|i| fleet.oses[i].uid());
        let moved = owner.as_deref() != Some(uid) && instance.spec.grant.is_none();
        if !granted(name) && (!known(uid) || moved) {
            push(out, freed(instance), true);
        }
    }
    for (name, node) in &fleet.nodes {
        let Some((uid, attempt)) = node.cordoned_by() else {
            continue;
        };
        let in_force = fleet
            .oses
            .iter()
            .filter(|o| o.uid().as_deref() == Some(uid))
            .filter_map(|o| o.status.as_ref())
            .any(|s| {
                s.grants.iter().any(|g| g.node == *name && g.attempt == attempt)
                    || s.lost.iter().any(|l| l.node == *name && l.attempt == attempt)
            });
        let busy = fleet.instances.get(name).is_some_and(|i| {
            i.spec.grant.is_some() || i.status.as_ref().is_some_and(|s| s.phase.past_boot())
        });
        if !in_force && !busy {
            out.orphans.push(Orphan {
                node: name.clone(),
                resource_version: node.resource_version.clone(),
            });
        }
    }
}
