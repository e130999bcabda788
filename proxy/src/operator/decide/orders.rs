//! Orders to nodes: what their OSInstances must say.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use uuid::Uuid;

use crate::api::{
    ANN_RETRY, Desired, FINALIZER_INSTANCE, FailedTarget, Grant, GrantKind, GrantOrder, INSTANCE_NAMESPACE,
    LABEL_INSTANCE_NODE, NamespacedName, OSInstance, OsInstanceSpec, Phase, Source, Target, is_label_value,
};
use crate::operator::facts::NodeFacts;

use super::budget::{Verdict, flying, lifting, obstacle, queue};
use super::ledger::{Ledger, counted, failure_key, op_id, result_of};
use super::standing::{Member, Standing, failed_on};
use super::waves::Position;
use super::{Case, Decision, InstanceWrite, OsRef};

/// At most one write per instance and decision; the first one wins, the next decision sees to the rest.
pub(crate) fn push(out: &mut Decision, instance: OSInstance, exists: bool) {
    if out.taken.insert(instance.name_any()) {
        let boxed = Box::new(instance);
        out.instances.push(if exists {
            InstanceWrite::Update(boxed)
        } else {
            InstanceWrite::Create(boxed)
        });
    }
}

fn owner(name: &str, node: &NodeFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.to_owned(),
        uid: node.uid.clone(),
        ..OwnerReference::default()
    }
}

/// The instance as it is, or a new idle one; owner and label put right.
fn base(m: &Member<'_>) -> OSInstance {
    let mut instance = match m.instance {
        Some(i) => OSInstance {
            status: None,
            ..i.clone()
        },
        None => {
            let mut fresh = OSInstance::new(
                m.name,
                OsInstanceSpec {
                    nodestatus: "idle".into(),
                    ..Default::default()
                },
            );
            fresh.metadata.namespace = Some(INSTANCE_NAMESPACE.into());
            if is_label_value(m.name) {
                fresh
                    .labels_mut()
                    .insert(LABEL_INSTANCE_NODE.into(), m.name.to_owned());
            }
            fresh
        }
    };
    let owners = instance.metadata.owner_references.get_or_insert_default();
    if !owners.iter().any(|o| o.uid == m.node.uid) {
        owners.push(owner(m.name, m.node));
    }
    instance
}

fn claim(spec: &mut OsInstanceSpec, id: &OsRef) {
    spec.osuid = Some(id.uid.clone());
    spec.namespacedname = Some(NamespacedName {
        name: id.name.clone(),
        namespace: id.namespace.clone(),
    });
}

fn set_finalizer(instance: &mut OSInstance, on: bool) {
    let list = instance.finalizers_mut();
    list.retain(|f| f != FINALIZER_INSTANCE);
    if on {
        list.push(FINALIZER_INSTANCE.to_owned());
    }
}

/// Orders for grants in force; an abort once given stands.
pub(crate) fn in_flight(case: &Case<'_>, v: &Verdict, out: &mut Decision) {
    for m in &case.members {
        let Standing::InFlight(grant) = &m.standing else {
            continue;
        };
        let opid = op_id(&case.id.uid, grant);
        let spec = m.spec();
        let ordered = spec.opid.as_deref() == Some(opid.as_str());
        let observed = m.report().observed_op_id.as_deref() == Some(opid.as_str());
        let past_boot = ordered && observed && m.report().phase.past_boot();
        let cause = abort_cause(case, v, m, grant, ordered);
        if cause.is_some() && !past_boot {
            if !(ordered && spec.desired == Desired::Abort) {
                // Only the word changes: a node that has booted meanwhile finishes the order as it was given.
                let mut next = if ordered {
                    base(m)
                } else {
                    granted(case, m, grant, &opid)
                };
                next.spec.desired = Desired::Abort;
                push(out, next, m.instance.is_some());
            }
        } else if !ordered {
            push(out, granted(case, m, grant, &opid), m.instance.is_some());
        }
    }
}

fn abort_cause(case: &Case<'_>, v: &Verdict, m: &Member<'_>, grant: &Grant, ordered: bool) -> Option<String> {
    if let Some(why) = v.abort {
        return Some(why.to_owned());
    }
    if !m.selected {
        return Some("the node is no longer selected".into());
    }
    if let Some(why) = m.node.held() {
        return Some(why);
    }
    let Ok(wish) = &case.wish else { return None };
    let target = m.spec().target.as_ref();
    let changed = grant.kind != GrantKind::Reboot
        && (grant.kind != wish.kind || (ordered && !same(target, m.target.as_ref())));
    changed.then(|| "the target changed".into())
}

fn same(a: Option<&Target>, b: Option<&Target>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.digest == b.digest && a.version == b.version,
        _ => false,
    }
}

/// The order that goes with a grant.
fn granted(case: &Case<'_>, m: &Member<'_>, grant: &Grant, opid: &str) -> OSInstance {
    let mut next = base(m);
    claim(&mut next.spec, &case.id);
    let report = m.report();
    let agent = report.agent.clone().unwrap_or_default();
    let spec = &mut next.spec;
    spec.desired = match grant.kind {
        GrantKind::Upgrade | GrantKind::Reboot => Desired::Boot,
        GrantKind::Rollback => Desired::Rollback,
        GrantKind::Config => Desired::Config,
    };
    spec.nodestatus = if grant.kind == GrantKind::Config {
        "config"
    } else {
        "upgrade"
    }
    .into();
    if grant.kind == GrantKind::Reboot {
        let version = agent.os_version.clone();
        spec.target = Some(Target {
            version,
            digest: agent.digest.clone(),
            source: None,
            kind: GrantKind::Reboot,
        });
    } else if let Some(target) = &m.target {
        spec.target = Some(target.clone());
    }
    spec.attempt = grant.attempt;
    spec.opid = Some(opid.to_owned());
    spec.expectbootid = Some(agent.boot_id).filter(|b| !b.is_empty());
    spec.grant = Some(GrantOrder {
        epoch: grant.epoch,
        grantedat: grant.granted_at.clone(),
        notafter: grant.not_after.clone(),
    });
    if let Ok(wish) = &case.wish {
        spec.policy = Some(wish.policy.clone());
        if grant.kind != GrantKind::Reboot {
            spec.sysconfigs = wish.sysconfigs.clone();
            spec.upgradeconfigs = wish.upgradeconfigs.clone();
        }
    }
    set_finalizer(&mut next, true);
    next
}

/// Withdraws the orders of grants that ended.
pub(crate) fn releases(case: &Case<'_>, ledger: &Ledger, out: &mut Decision) {
    let max = case.wish.as_ref().map_or(1, |w| w.max_attempts);
    for m in &case.members {
        let lost = m.standing == Standing::Lost;
        if let Some(instance) = m.instance.filter(|i| i.spec.grant.is_some())
            && ledger.of(m.name).is_none()
            && !lost
        {
            push(out, released(instance, max), true);
        }
    }
}

/// The instance after its grant ended: idle, the failure counted if it was one.
pub(crate) fn released(instance: &OSInstance, max_attempts: u32) -> OSInstance {
    let mut next = OSInstance {
        status: None,
        ..instance.clone()
    };
    let result = result_of(instance);
    let key = failure_key(instance.spec.target.as_ref());
    let spec = &mut next.spec;
    if let (Some(result), false) = (result, key.is_empty()) {
        match counted(result) {
            Some(word) => count_failure(spec, &key, word, &result.op_id, max_attempts),
            None if result.outcome == crate::api::Outcome::Done => spec.failed = None,
            None => {}
        }
    }
    spec.grant = None;
    spec.desired = Desired::Idle;
    spec.nodestatus = "idle".into();
    spec.expectbootid = None;
    set_finalizer(&mut next, false);
    next
}

fn count_failure(spec: &mut OsInstanceSpec, key: &str, reason: &str, opid: &str, max_attempts: u32) {
    let old = spec.failed.take().filter(|f| f.digest == key);
    if let Some(old) = old.as_ref().filter(|f| f.opid == opid) {
        spec.failed = Some(old.clone());
        return;
    }
    let count = old.map_or(0, |f| f.count) + 1;
    spec.failed = Some(FailedTarget {
        digest: key.to_owned(),
        count,
        opid: opid.to_owned(),
        reason: reason.to_owned(),
    });
    if count >= max_attempts && !spec.denied.iter().any(|d| d == key) {
        spec.denied.push(key.to_owned());
    }
}

/// Tells nodes to stage: only for the current wave, and not far ahead of what may be taken down.
pub(crate) fn stage(case: &Case<'_>, v: &Verdict, granted: &[Grant], wave: &Position, out: &mut Decision) {
    let Ok(wish) = &case.wish else { return };
    create_missing(case, out);
    if v.no_staging || wish.kind == GrantKind::Config || wave.soaking.is_some() {
        return;
    }
    // Nodes that wait for something of their own take no place: one bad node must not hold up the others.
    let moving = |m: &&Member<'_>| {
        matches!(m.standing, Standing::Staging | Standing::Ready)
            && obstacle(case, m).is_none()
            && !granted.iter().any(|g| g.node == m.name)
    };
    let ahead = case.members.iter().filter(moving).count();
    let mut room = (2 * v.limit).saturating_sub(ahead);
    if let Some(in_wave) = wave.room {
        room = room.min(in_wave.saturating_sub(flying(case) + granted.len() + ahead));
    }
    let room = room.min(case.fleet.settings.stage_burst);
    let todo = queue(case, |m| {
        m.standing == Standing::Todo && m.instance.is_some() && m.target.is_some()
    });
    let next = todo
        .into_iter()
        .filter(|m| wave.holds(m) && obstacle(case, m).is_none())
        .take(room);
    for m in next {
        let mut order = base(m);
        claim(&mut order.spec, &case.id);
        order.spec.desired = Desired::Stage;
        order.spec.nodestatus = "idle".into();
        order.spec.target = m.target.clone();
        let seed = format!("{}/{}/stage/{}", case.id.uid, m.node.uid, case.fleet.now);
        order.spec.opid = Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, seed.as_bytes()).to_string());
        order.spec.policy = Some(wish.policy.clone());
        order.spec.upgradeconfigs = wish.upgradeconfigs.clone();
        order.spec.sysconfigs = wish.sysconfigs.clone();
        push(out, order, true);
    }
}

/// A human lifted denials on these nodes. Each entry of spec.forgive is honoured once per node while it stands there.
pub(crate) fn lift(case: &Case<'_>, out: &mut Decision) {
    for m in &case.members {
        let Some(instance) = m.instance.filter(|i| i.spec.grant.is_none()) else {
            continue;
        };
        let wanted = |f: &String| case.os.spec.forgive.contains(f);
        let settled = matches!(
            m.standing,
            Standing::UpToDate | Standing::Failed(_) | Standing::Denied
        );
        let Some((digests, retry)) = lifting(case, instance) else {
            if settled && !instance.spec.forgive.iter().all(wanted) {
                let mut next = base(m);
                next.spec.forgive.retain(wanted);
                push(out, next, true);
            }
            continue;
        };
        let mut next = base(m);
        next.spec.denied.retain(|d| !digests.contains(d));
        next.spec.failed = next.spec.failed.filter(|f| !digests.contains(&f.digest));
        next.spec.opid = None;
        next.spec.desired = Desired::Idle;
        for entry in case.os.spec.forgive.iter().cloned().chain(digests) {
            if !next.spec.forgive.contains(&entry) {
                next.spec.forgive.push(entry);
            }
        }
        if retry {
            next.annotations_mut().remove(ANN_RETRY);
        }
        push(out, next, true);
    }
}

fn create_missing(case: &Case<'_>, out: &mut Decision) {
    if !case.fleet.fresh {
        return;
    }
    let missing = |m: &&Member<'_>| !case.fleet.instances.contains_key(m.name);
    for m in case.members.iter().filter(missing) {
        let mut fresh = base(m);
        claim(&mut fresh.spec, &case.id);
        push(out, fresh, false);
    }
}

/// Nodes that have nothing to stage (any more) are told so; failures of staging are remembered.
pub(crate) fn idle(case: &Case<'_>, out: &mut Decision) {
    let Ok(wish) = &case.wish else { return };
    create_missing(case, out);
    for m in &case.members {
        let spec = m.spec();
        if spec.grant.is_some() || spec.desired != Desired::Stage || m.instance.is_none() {
            continue;
        }
        let over = !matches!(
            m.standing,
            Standing::Staging
                | Standing::Ready
                | Standing::Todo
                | Standing::InFlight(_)
                | Standing::Releasing
                | Standing::NoAgent
                | Standing::Lost
        );
        if !over {
            continue;
        }
        let mut next = base(m);
        let opid = spec.opid.clone().unwrap_or_default();
        if let (Standing::Failed(reason), Some(target)) = (&m.standing, &m.target)
            && m.report().phase == Phase::Failed
            && failed_on(
                wish,
                &OsInstanceSpec {
                    opid: spec.opid.clone(),
                    ..Default::default()
                },
                m.report(),
                Some(target),
            )
            .is_some()
        {
            // Trying to stage the same bytes again changes nothing: denied at once.
            count_failure(&mut next.spec, &target.digest, reason, &opid, 1);
        }
        next.spec.desired = Desired::Idle;
        push(out, next, true);
    }
}

/// The OS object is being deleted: whatever still follows it and holds no grant goes free.
pub(crate) fn all_idle(case: &Case<'_>, ledger: &Ledger, out: &mut Decision) {
    for (name, instance) in &case.fleet.instances {
        if instance.spec.osuid.as_deref() == Some(case.id.uid.as_str()) && ledger.of(name).is_none() {
            push(out, freed(instance), true);
        }
    }
}

/// The instance without claim or order.
pub(crate) fn freed(instance: &OSInstance) -> OSInstance {
    let mut next = released(instance, 1);
    next.spec.osuid = None;
    next.spec.namespacedname = None;
    next
}

/// For `plan`: the source in words.
pub(crate) fn source_words(source: Option<&Source>) -> String {
    let Some(s) = source else { return "in place".into() };
    s.url
        .clone()
        .or_else(|| s.image.clone())
        .or_else(|| s.slot.clone().map(|s| format!("slot {s}")))
        .unwrap_or_default()
}
