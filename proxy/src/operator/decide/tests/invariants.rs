//! I1, I4–I9, I11 and I12 under random schedules: nodes break and come back, specs are edited, operators restart, decide on
//! old views and write twice. (I2, I3 and I10 are the proxy's.) `SLIPWAY_CASES` sets the number of schedules.

use jiff::SignedDuration;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use super::world::*;
use crate::api::condition_type::*;
use crate::api::*;
use crate::operator::decide::decide;
use crate::operator::facts::Fleet;

#[derive(Clone, Debug)]
enum Act {
    Run(u16),
    /// An operator that looks now and writes later.
    Look,
    WriteOld,
    NotReady(u8),
    Ready(u8),
    Cordon(u8),
    Hold(u8),
    Pause(bool),
    Limit(u8),
    Release(u8),
    DeleteNode(u8),
    DeleteOs,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => (1u16..900).prop_map(Act::Run),
        2 => Just(Act::Look),
        2 => Just(Act::WriteOld),
        2 => any::<u8>().prop_map(Act::NotReady),
        2 => any::<u8>().prop_map(Act::Ready),
        1 => any::<u8>().prop_map(Act::Cordon),
        1 => any::<u8>().prop_map(Act::Hold),
        1 => any::<bool>().prop_map(Act::Pause),
        1 => (0u8..5).prop_map(Act::Limit),
        1 => (0u8..3).prop_map(Act::Release),
        1 => any::<u8>().prop_map(Act::DeleteNode),
        1 => Just(Act::DeleteOs),
    ];
    prop::collection::vec(act, 1..40)
}

/// After each accepted ledger write: I1, I5, I6, I12.
fn check(w: &World, before: &OS, status: &OsStatus) {
    let old = before.status.clone().unwrap_or_default();
    let fresh: Vec<&Grant> = status.grants.iter().filter(|g| !old.grants.contains(g)).collect();
    let limit = match &before.spec.maxunavailable {
        Some(IntOrString::Int(n)) => *n as usize,
        _ => panic!("integers only here"),
    };
    if !fresh.is_empty() {
        let foreign = w
            .fleet
            .nodes
            .iter()
            .filter(|(name, n)| n.unavailable() && !status.grants.iter().any(|g| g.node == **name));
        // What is foreign is as fresh as the view; granted nodes were read live.
        let seen = status.counts.unwrap().unavailable as usize;
        assert!(seen <= limit, "I1: {seen} of {limit}");
        assert!(
            status.grants.len() <= limit,
            "I1: {} grants of {limit}",
            status.grants.len()
        );
        let _ = foreign;
        assert!(!is_true(&status.conditions, HALTED), "I5");
        assert!(
            !before.spec.paused && before.metadata.deletion_timestamp.is_none(),
            "I6"
        );
        for g in fresh {
            let denied = &w.fleet.instances[&g.node].spec.denied;
            assert!(
                !denied.contains(&before.spec.checksum),
                "I4: {} is denied on {}",
                before.spec.checksum,
                g.node
            );
        }
    }
    let mut names: Vec<&String> = status.grants.iter().map(|g| &g.node).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), status.grants.len(), "one grant per node");
    if is_true(&status.conditions, COMPLETE) {
        assert!(status.grants.is_empty(), "I12");
    }
}

fn world(nodes: usize, limit: u8, plans: &[u8], budget: u8) -> World {
    let mut w = World::new(nodes);
    w.check = check;
    w.fleet.settings.breaker_percent = 60;
    let mut spec = upgrade(json!(limit));
    spec.failurebudget = Some(IntOrString::Int(i32::from(budget) + 1));
    spec.drain = Some(serde_json::from_value(json!({"timeout": "10m"})).unwrap());
    w.add_os("blue", spec);
    for (i, p) in plans.iter().enumerate().take(nodes) {
        let plan = match p % 8 {
            0 => Plan::FallsBack,
            1 => Plan::StageFails,
            2 => Plan::DrainBlocked,
            _ => Plan::Good,
        };
        w.plan(&format!("n{i:04}"), plan);
    }
    w
}

fn pick(w: &World, n: u8) -> Option<String> {
    let names: Vec<&String> = w.fleet.nodes.keys().collect();
    (!names.is_empty()).then(|| names[usize::from(n) % names.len()].clone())
}

fn run(w: &mut World, acts: &[Act]) {
    let mut old: Option<Fleet> = None;
    let mut release = 0;
    for act in acts {
        let has_os = w
            .fleet
            .oses
            .iter()
            .any(|o| o.metadata.deletion_timestamp.is_none());
        match act {
            Act::Run(s) => w.run_for(i64::from(*s)),
            Act::Look => old = Some(w.fleet.clone()),
            Act::WriteOld => {
                if let Some(view) = &old {
                    let d = decide(view);
                    w.apply(d);
                }
            }
            Act::NotReady(n) | Act::Ready(n) => {
                let Some(name) = pick(w, *n) else { continue };
                let resting = w.instance_phase(&name).is_none_or(|p| !p.past_boot());
                if resting {
                    w.node(&name).ready = matches!(act, Act::Ready(_));
                }
            }
            Act::Cordon(n) => {
                let Some(name) = pick(w, *n) else { continue };
                if w.fleet.nodes[&name].cordoned_by().is_none() {
                    let flag = w.fleet.nodes[&name].unschedulable;
                    w.node(&name).unschedulable = !flag;
                }
            }
            Act::Hold(n) => {
                let Some(name) = pick(w, *n) else { continue };
                if w.node(&name).annotations.remove(ANN_HOLD).is_none() {
                    w.node(&name).annotations.insert(ANN_HOLD.into(), "true".into());
                }
            }
            Act::Pause(p) if has_os => w.edit("blue", |s| s.paused = *p),
            Act::Limit(l) if has_os => w.edit("blue", |s| {
                s.maxunavailable = Some(IntOrString::Int(i32::from(*l)))
            }),
            Act::Release(r) if has_os => {
                release = *r;
                w.edit("blue", |s| {
                    s.osversion = format!("KubeOS {}", release + 2);
                    s.checksum = digest(['b', 'c', 'd'][usize::from(release)]);
                });
            }
            Act::DeleteNode(n) => {
                let Some(name) = pick(w, *n) else { continue };
                w.fleet.nodes.remove(&name);
            }
            Act::DeleteOs if has_os => w.delete_os("blue"),
            _ => {}
        }
    }
    let _ = release;
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("SLIPWAY_CASES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(48);
    ProptestConfig {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn invariants_hold_under_random_schedules(
        nodes in 1usize..10,
        limit in 0u8..4,
        budget in 0u8..3,
        plans in prop::collection::vec(any::<u8>(), 10),
        acts in acts(),
    ) {
        let mut w = world(nodes, limit, &plans, budget);
        run(&mut w, &acts);
        // The faults stop.
        let names: Vec<String> = w.fleet.nodes.keys().cloned().collect();
        for name in &names {
            let n = w.node(name);
            n.ready = true;
            n.annotations.remove(ANN_HOLD);
            if n.cordoned_by().is_none() {
                n.unschedulable = false;
            }
        }
        w.run_for(3 * 24 * 3600);
        // I9: one operation, at most one reboot. I4: nobody boots one digest twice (maxattempts 1) after falling back.
        let mut ops: Vec<_> = w.boots.iter().map(|b| &b.1).collect();
        let all = ops.len();
        ops.sort_unstable();
        ops.dedup();
        prop_assert_eq!(ops.len(), all, "I9");
        // I7: whatever happened, no cordon of ours and no grant is left, but for drains that are blocked again and again.
        let blocked = w.fleet.oses.iter().filter_map(|o| o.status.as_ref()).any(|s| !s.grants.is_empty());
        if blocked {
            for o in &mut w.fleet.oses.clone() {
                w.edit(&o.name_any(), |s| s.paused = true);
            }
            w.run_for(24 * 3600);
        }
        for (name, n) in &w.fleet.nodes {
            prop_assert!(n.cordoned_by().is_none(), "I7: {} is still cordoned: {:?}", name, w.fleet.instances.get(name));
        }
        for o in &w.fleet.oses {
            prop_assert!(o.metadata.deletion_timestamp.is_none(), "I11: {:?}", o);
            prop_assert!(o.status.as_ref().is_none_or(|s| s.grants.is_empty()), "I7: {:?}", o.status);
            // I12
            if o.status.as_ref().is_some_and(|s| is_true(&s.conditions, COMPLETE)) {
                for (name, i) in &w.fleet.instances {
                    let runs = i.status.as_ref().and_then(|s| s.agent.as_ref()).is_some_and(|a| a.runs(&o.spec.checksum));
                    prop_assert!(runs, "I12: {} runs something else", name);
                }
            }
        }
        // I8
        let d = decide(&w.fleet);
        prop_assert!(d.is_quiet(), "I8: {:?}", d);
    }
}

/// Time that stands still or jumps back harms nothing.
#[test]
fn a_clock_that_jumps_back_grants_nothing_twice() {
    let mut w = world(6, 2, &[7; 10], 0);
    for i in 0..400 {
        let until = w.fleet.now + SignedDuration::from_hours(1);
        if !w.advance(until) {
            break;
        }
        if i % 7 == 0 {
            w.fleet.now -= SignedDuration::from_secs(30);
        }
    }
    assert_eq!(w.versions().get(V2), Some(&6));
    assert!(w.fleet.nodes.keys().all(|n| w.boots_of(n) == 1));
}
