//! Public bug reports of other updaters, as far as the operator decides them, and roll-out faults of KubeOS.
//! Reports 1, 2, 4, 7, 8, 10 (node's part), 17, 20, 25–28 and 30 belong to the proxy and its drain; 11 to `window`.

use jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::json;

use super::world::*;
use crate::api::condition_type::*;
use crate::api::*;
use crate::operator::decide::{confirm, decide};

fn fleet(nodes: usize, max: serde_json::Value) -> World {
    let mut w = World::new(nodes);
    w.add_os("blue", upgrade(max));
    w
}

const PHASES: [Phase; 10] = [
    Phase::Idle,
    Phase::Staging,
    Phase::Staged,
    Phase::Granted,
    Phase::Draining,
    Phase::Rebooting,
    Phase::Verifying,
    Phase::Committing,
    Phase::Configuring,
    Phase::Failed,
];

/// A world in which n0000 has reached that phase, or `None` where it does not pass through it.
fn at_phase(phase: Phase) -> Option<World> {
    let mut w = fleet(3, json!(1));
    if phase == Phase::Failed {
        w.plan("n0000", Plan::StageFails);
    }
    let until = w.fleet.now + SignedDuration::from_hours(2);
    loop {
        if w.instance("n0000").status.as_ref().unwrap().phase == phase {
            return Some(w);
        }
        if !w.advance(until) {
            return None;
        }
    }
}

/// https://github.com/bottlerocket-os/bottlerocket-update-operator/issues/650
#[test]
fn report_03_a_blocked_drain_names_pod_and_budget_and_frees_the_grant() {
    let mut w = fleet(3, json!(1));
    w.plan("n0000", Plan::DrainBlocked);
    w.run_until(|w| w.cond("blue", DEGRADED).1 == "DrainBlocked");
    let (_, _, message) = w.cond("blue", DEGRADED);
    assert!(
        message.contains("shop/db-0 on n0000 (PDBAtLimit by shop/db)"),
        "{message}"
    );
    w.run_until(|w| w.versions().get(V2) == Some(&2));
    assert_eq!(w.boots_of("n0000"), 0);
    assert_eq!(w.status("blue").failures, [], "a blocked drain is no failure");
    assert!(!is_true(&w.status("blue").conditions, HALTED));
}

/// https://github.com/bottlerocket-os/bottlerocket-update-operator/issues/123
#[test]
fn report_05_update_fallback_update_for_ever() {
    let mut w = fleet(1, json!(1));
    w.plan("n0000", Plan::FallsBack);
    w.run_for(7 * 24 * 3600);
    assert_eq!(w.boots_of("n0000"), 1);
    assert_eq!(w.instance("n0000").spec.denied, [digest('b')]);
    w.assert_at_rest();
}

/// https://github.com/bottlerocket-os/bottlerocket-update-operator/issues/588
#[test]
fn report_06_paused_means_no_new_grant_in_the_very_next_decision() {
    let mut w = fleet(10, json!(2));
    w.run_until(|w| w.boots.len() == 4);
    w.edit("blue", |s| s.paused = true);
    let before = w.status("blue").grants;
    w.check = |_, old, new| {
        let had = &old.status.as_ref().unwrap().grants;
        assert!(
            new.grants.iter().all(|g| had.contains(g)),
            "a new grant while paused"
        );
    };
    w.run_for(24 * 3600);
    assert!(w.boots.len() <= 4 + before.len());
    w.assert_at_rest();
}

/// https://github.com/kubereboot/kured/issues/137
#[test]
fn report_09_the_grant_of_a_deleted_node_is_free_at_once() {
    for phase in PHASES {
        let Some(mut w) = at_phase(phase) else { continue };
        w.fleet.nodes.remove("n0000");
        w.settle();
        assert!(
            !w.fleet.instances.contains_key("n0000"),
            "{phase:?}: its OSInstance is collected"
        );
        assert!(
            w.status("blue").grants.iter().all(|g| g.node != "n0000"),
            "{phase:?}"
        );
        w.run_for(24 * 3600);
        if phase != Phase::Failed {
            assert_eq!(w.versions(), [(V2.to_owned(), 2)].into(), "{phase:?}");
        }
        w.assert_at_rest();
    }
}

#[test]
fn r12_a_recreated_node_is_another_node() {
    for phase in PHASES {
        let Some(mut w) = at_phase(phase) else { continue };
        let old = w.fleet.instances["n0000"].clone();
        w.add_node("n0000");
        let mut stale = old;
        stale.metadata.owner_references = Some(vec![
            serde_json::from_value(
                json!({"apiVersion": "v1", "kind": "Node", "name": "n0000", "uid": "gone"}),
            )
            .unwrap(),
        ]);
        w.fleet.instances.insert("n0000".into(), stale);
        w.settle();
        assert!(
            w.fleet
                .instances
                .get("n0000")
                .is_none_or(|i| i.spec.grant.is_none()),
            "{phase:?}: the old order is gone"
        );
        w.fleet.instances.remove("n0000");
        w.add_node("n0000");
        w.run_for(24 * 3600);
        assert_eq!(w.versions(), [(V2.to_owned(), 3)].into(), "{phase:?}");
        w.assert_at_rest();
    }
}

/// https://github.com/kubereboot/kured/issues/792
#[test]
fn report_10_a_gate_that_turns_bad_after_the_grant_gives_it_back() {
    let mut w = fleet(2, json!(1));
    w.run_until(|w| !w.status("blue").grants.is_empty());
    let name = w.status("blue").grants[0].node.clone();
    w.node(&name)
        .annotations
        .insert(format!("{ANN_GATE_PREFIX}storage"), "blocked".into());
    w.run_for(3600);
    assert_eq!(w.boots_of(&name), 0);
    assert!(w.status("blue").grants.iter().all(|g| g.node != name));
    w.node(&name)
        .annotations
        .insert(format!("{ANN_GATE_PREFIX}storage"), "ok".into());
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
}

/// https://github.com/kubereboot/kured/issues/478
#[test]
fn report_12_a_slow_reboot_stays_counted() {
    let mut w = fleet(5, json!(1));
    w.edit("blue", |s| s.failurebudget = Some(IntOrString::Int(5)));
    w.plan("n0000", Plan::NeverReturns);
    w.check = |_, _, s| {
        assert_eq!(
            s.grants.iter().filter(|g| g.node != "n0000").count(),
            0,
            "two nodes down"
        )
    };
    w.run_for(12 * 3600);
    assert_eq!(w.boots.len(), 1);
    assert_eq!(
        w.status("blue").grants.len(),
        1,
        "it holds its grant until it is back or deleted"
    );
    assert_eq!(w.events.iter().filter(|e| e.contains("RebootTimeout")).count(), 1);
    // It comes back after all.
    w.check = |_, _, _| {};
    let opid = w.instance("n0000").spec.opid.clone().unwrap();
    let n = w.node("n0000");
    (n.ready, n.unschedulable, n.os_image) = (true, false, V2.into());
    n.annotations.clear();
    let r = w.report("n0000");
    r.phase = Phase::Idle;
    let a = r.agent.as_mut().unwrap();
    (a.os_version, a.digest) = (V2.into(), digest('b'));
    r.last_result = Some(OpResult {
        op_id: opid,
        ..OpResult::default()
    });
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.assert_at_rest();
}

/// https://github.com/kubereboot/kured/issues/1129 — every decision is made by an operator that has just started.
#[test]
fn report_13_a_restart_in_soak_or_back_off_changes_nothing() {
    let mut w = fleet(4, json!(1));
    w.edit("blue", |s| {
        s.canary = Some(serde_json::from_value(json!({"nodes": 1, "soak": "2h"})).unwrap())
    });
    w.run_until(|w| w.status("blue").wave.is_some_and(|x| x.soak_until.is_some()));
    let until = w.status("blue").wave.unwrap().soak_until.unwrap().0;
    for _ in 0..10 {
        w.fleet.now += SignedDuration::from_mins(11);
        // All a successor has is what the server stores.
        let text = serde_json::to_string(&w.fleet.oses[0]).unwrap();
        w.fleet.oses[0] = serde_json::from_str(&text).unwrap();
        w.settle();
        assert_eq!(w.status("blue").wave.unwrap().soak_until.unwrap().0, until);
        assert!(w.status("blue").grants.is_empty());
    }
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert!(w.fleet.now > until);
}

/// https://github.com/rancher/system-upgrade-controller/issues/38
#[test]
fn report_14_a_stale_view_cannot_exceed_the_limit() {
    let mut w = fleet(200, json!(5));
    w.run_until(|w| {
        w.fleet
            .instances
            .values()
            .filter(|i| i.status.as_ref().unwrap().phase == Phase::Staged)
            .count()
            >= 5
    });
    let stale = w.fleet.clone();
    let first = decide(&stale);
    w.apply(first);
    let second = decide(&stale);
    w.apply(second);
    assert_eq!(w.status("blue").grants.len(), 5);
    assert_eq!(
        w.writes["conflict"], 1,
        "the second write carries an old resourceVersion"
    );
}

/// https://github.com/rancher/system-upgrade-controller/issues/119
#[test]
fn report_15_node_names_of_every_kind() {
    let mut w = World::new(0);
    let long = format!("{}.example", "a".repeat(245));
    assert_eq!(long.len(), 253);
    for name in [
        long.as_str(),
        "node-1.rack-2.example",
        "ip-10-0-0-1.eu-west-1.compute.internal",
    ] {
        w.add_node(name);
        w.fleet.instances.remove(name);
    }
    w.add_os("blue", upgrade(json!(1)));
    w.settle();
    let i = &w.fleet.instances[&long];
    assert_eq!(
        i.labels().get(LABEL_INSTANCE_NODE),
        None,
        "253 characters are no label value"
    );
    assert!(
        w.fleet.instances["node-1.rack-2.example"]
            .labels()
            .contains_key(LABEL_INSTANCE_NODE)
    );
    assert_eq!(w.cond("blue", COMPLETE).1, "NoNodes", "no agent has reported yet");
}

/// https://github.com/rancher/system-upgrade-controller/issues/71, KF-R14
#[test]
fn report_16_deleting_the_os_in_every_phase_leaves_no_stuck_node() {
    for phase in PHASES {
        let Some(mut w) = at_phase(phase) else { continue };
        let booted = matches!(phase, Phase::Rebooting | Phase::Verifying | Phase::Committing);
        w.delete_os("blue");
        w.run_for(24 * 3600);
        assert!(w.fleet.oses.is_empty(), "{phase:?}: deletion ends");
        w.assert_at_rest();
        for i in w.fleet.instances.values() {
            assert!(
                i.spec.osuid.is_none() && i.spec.namespacedname.is_none() && i.spec.grant.is_none(),
                "{phase:?}"
            );
            assert!(i.finalizers().is_empty(), "{phase:?}");
            assert_eq!(i.spec.nodestatus, "idle");
        }
        assert_eq!(w.boots_of("n0000"), u32::from(booted), "{phase:?}");
    }
}

/// R11: paused and edited in every phase.
#[test]
fn r11_editing_the_os_in_every_phase_converges() {
    for phase in PHASES {
        let Some(mut w) = at_phase(phase) else { continue };
        let before = w.boots.len();
        w.plan("n0000", Plan::Good);
        w.edit("blue", |s| {
            s.osversion = "KubeOS 3".into();
            s.checksum = digest('c');
        });
        w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
        assert_eq!(w.versions(), [("KubeOS 3".to_owned(), 3)].into(), "{phase:?}");
        assert!(
            w.boots.len() <= before + 3 + 1,
            "{phase:?}: {} boots",
            w.boots.len()
        );
        w.assert_at_rest();
        let Some(mut w) = at_phase(phase) else { continue };
        w.edit("blue", |s| s.paused = true);
        w.run_for(24 * 3600);
        w.assert_at_rest();
    }
}

/// https://github.com/rancher/system-upgrade-controller/issues/433
#[test]
fn report_18_a_node_powered_off_in_any_phase_blocks_only_its_own_place() {
    for phase in PHASES {
        let Some(mut w) = at_phase(phase) else { continue };
        w.plan("n0000", Plan::NeverReturns);
        w.node("n0000").ready = false;
        w.edit("blue", |s| {
            s.maxunavailable = Some(IntOrString::Int(2));
            s.failurebudget = Some(IntOrString::Int(3));
        });
        w.fleet.settings.breaker_percent = 50;
        w.run_for(24 * 3600);
        assert!(w.versions()[V2] >= 2, "{phase:?}: {:?}", w.versions());
    }
}

/// https://github.com/rancher/system-upgrade-controller/issues/164
#[test]
fn report_19_a_quiet_fleet_causes_no_writes() {
    let mut w = fleet(10, json!(2));
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.run_for(60);
    let before = w.writes.clone();
    for _ in 0..60 {
        w.fleet.now += SignedDuration::from_secs(10);
        let d = decide(&w.fleet);
        assert!(d.is_quiet() && d.events.is_empty(), "{d:?}");
    }
    assert_eq!(w.writes, before);
}

/// https://github.com/flatcar/flatcar-linux-update-operator/issues/201, KF-R16
#[test]
fn report_21_the_window_closes_during_the_drain() {
    let mut w = fleet(2, json!(1));
    w.plan("n0000", Plan::DrainBlocked);
    w.edit("blue", |s| {
        s.windows = serde_json::from_value(json!([{"start": "09:00", "end": "10:15"}])).unwrap();
        s.drain = Some(serde_json::from_value(json!({"timeout": "3h"})).unwrap());
    });
    w.run_until(|w| w.instance("n0000").status.as_ref().unwrap().phase == Phase::Draining);
    let close: jiff::Timestamp = "2026-08-03T10:15:00Z".parse().unwrap();
    assert_eq!(
        w.status("blue").grants[0].not_after.0,
        close,
        "the grant ends with the window"
    );
    w.fleet.now = close;
    w.plan("n0000", Plan::Good);
    w.run_for(2 * 3600);
    assert!(w.boots.is_empty());
    w.assert_at_rest();
}

/// https://github.com/flatcar/Flatcar/issues/2176
#[test]
fn report_22_versions_are_never_label_values() {
    for version in [
        "KubeOS \"7.3\" (build+1)".to_owned(),
        format!("KubeOS {}", "7".repeat(300)),
    ] {
        let mut w = fleet(2, json!(1));
        w.edit("blue", |s| s.osversion = version.clone());
        w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
        assert_eq!(w.versions()[&version], 2);
        assert!(
            w.fleet
                .instances
                .values()
                .all(|i| i.labels().values().all(|v| is_label_value(v)))
        );
    }
}

/// https://github.com/openshift/machine-config-operator/pull/4703
#[test]
fn report_23_two_operators_that_both_lead_cannot_both_grant() {
    let mut w = fleet(20, json!(3));
    w.check = |_, _, s| assert!(s.grants.len() <= 3);
    for _ in 0..2000 {
        // Both look at the same moment and both write; one of each pair must lose.
        let (one, other) = (decide(&w.fleet), decide(&w.fleet));
        w.apply(one);
        w.apply(other);
        let until = w.fleet.now + SignedDuration::from_hours(1);
        if !w.advance(until) {
            break;
        }
    }
    assert_eq!(w.versions()[V2], 20);
    assert!(w.fleet.nodes.keys().all(|n| w.boots_of(n) == 1));
}

/// https://github.com/openshift/machine-config-operator/pull/701
#[test]
fn report_24_broken_nodes_count() {
    let mut w = fleet(20, json!(2));
    w.node("n0000").ready = false;
    w.node("n0001").unschedulable = true;
    w.run_for(3600);
    assert!(w.status("blue").grants.is_empty() && w.boots.is_empty());
    assert_eq!(w.cond("blue", PROGRESSING).1, "ExternalUnavailable");
    w.node("n0001").unschedulable = false;
    w.run_for(3600);
    assert!(!w.boots.is_empty());
}

/// https://github.com/kubernetes-sigs/cluster-api/pull/10706
#[test]
fn report_29_a_node_that_is_not_ready_is_not_started() {
    let mut w = fleet(3, json!(3));
    w.fleet.settings.breaker_percent = 100;
    w.run_until(|w| {
        w.fleet
            .instances
            .values()
            .all(|i| i.status.as_ref().unwrap().phase == Phase::Staged)
    });
    // It breaks after the snapshot was taken: the live look before the write notices.
    let mut d = decide(&w.fleet);
    assert_eq!(d.statuses[0].granted.len(), 3);
    w.node("n0001").ready = false;
    confirm(&mut d.statuses[0], |n| w.fleet.nodes.get(n).cloned());
    assert_eq!(d.statuses[0].granted, ["n0000", "n0002"]);
    w.run_for(3600);
    assert_eq!(w.boots_of("n0001"), 0);
}

#[test]
fn kf_a4_an_image_with_another_version_is_not_reinstalled_without_end() {
    let mut w = fleet(2, json!(1));
    w.edit("blue", |s| s.osversion = "KubeOS v9".into());
    for n in ["n0000", "n0001"] {
        w.node(n).os_image = V2.into();
        let a = w.report(n).agent.as_mut().unwrap();
        (a.os_version, a.digest) = (V2.into(), digest('b'));
    }
    w.run_for(24 * 3600);
    assert!(w.boots.is_empty());
    assert_eq!(w.cond("blue", DEGRADED).1, "WrongVersion");
    assert!(!w.cond("blue", COMPLETE).0);
    w.assert_at_rest();
}

#[test]
fn kf_r8_an_os_in_any_namespace_works() {
    let mut w = fleet(2, json!(1));
    w.fleet.oses[0].metadata.namespace = Some("kubeos".into());
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert!(
        w.fleet
            .instances
            .values()
            .all(|i| i.namespace().as_deref() == Some("default"))
    );
    assert_eq!(
        w.instance("n0000")
            .spec
            .namespacedname
            .as_ref()
            .unwrap()
            .namespace,
        "kubeos"
    );
}

#[test]
fn kf_r9_r10_nodes_without_an_agent_hold_no_place_and_stop_nobody() {
    let mut w = fleet(4, json!(1));
    w.report("n0000").agent = None;
    w.fleet.instances.remove("n0001");
    w.node("n0000").os_image = "Ubuntu 24.04".into();
    w.run_until(|w| w.versions().get(V2) == Some(&2));
    w.run_for(600);
    let counts = w.status("blue").counts.unwrap();
    assert_eq!((counts.total, counts.updated, counts.excluded), (2, 2, 2));
    assert!(w.cond("blue", DEGRADED).2.contains("n0000, n0001"));
    w.assert_at_rest();
}

#[test]
fn kf_r11_failures_are_visible() {
    let mut w = fleet(3, json!(1));
    w.plan("n0000", Plan::StageFails);
    w.run_for(3600);
    assert_eq!(w.status("blue").state.as_deref(), Some("Halted"));
    assert_eq!(w.status("blue").failures[0].reason, "DigestMismatch");
    assert_eq!(w.status("blue").counts.unwrap().failed, 1);
    assert!(
        w.cond("blue", DEGRADED).2.contains("n0000"),
        "{:?}",
        w.cond("blue", DEGRADED)
    );
    assert_eq!(
        w.instance("n0000").spec.desired,
        Desired::Idle,
        "the same bytes are not fetched again"
    );
    assert!(w.boots.is_empty());
    w.assert_at_rest();
}

#[test]
fn kf_r15_equal_selectors_do_not_stop_both() {
    let mut w = fleet(2, json!(1));
    let mut other = upgrade(json!(1));
    other.osversion = "KubeOS 3".into();
    other.checksum = digest('c');
    w.add_os("green", other);
    w.run_until(|w| w.cond("blue", COMPLETE).0);
    w.run_for(3600);
    assert_eq!(w.versions()[V2], 2);
    assert_eq!(w.cond("green", ACCEPTED).1, "NodeConflict");
    // The older one goes; its nodes are handed over.
    w.delete_os("blue");
    w.run_until(|w| w.versions().get("KubeOS 3") == Some(&2));
}

#[test]
fn kf_r17_a_node_that_is_not_healthy_on_the_new_version_stops_the_roll_out() {
    let mut w = fleet(30, json!(1));
    for i in 0..30 {
        w.plan(&format!("n{i:04}"), Plan::FallsBack);
    }
    w.run_for(24 * 3600);
    assert_eq!(w.boots.len(), 1);
    assert!(w.cond("blue", HALTED).0);
}

#[test]
fn control_plane_nodes_are_never_selected() {
    let mut w = World::new(2);
    w.node("n0000")
        .labels
        .insert(LABEL_CONTROL_PLANE.into(), String::new());
    let mut spec = upgrade(json!(1));
    spec.nodeselector = Some("all-label".into());
    w.add_os("blue", spec);
    w.run_until(|w| w.cond("blue", COMPLETE).0);
    assert_eq!((w.boots_of("n0000"), w.boots_of("n0001")), (0, 1));
}

#[test]
fn an_orphaned_cordon_of_ours_is_taken_away_and_a_foreign_one_is_not() {
    let mut w = fleet(4, json!(1));
    w.run_until(|w| w.cond("blue", COMPLETE).0);
    for n in ["n0000", "n0001"] {
        w.node(n).unschedulable = true;
    }
    w.node("n0001")
        .annotations
        .insert(ANN_CORDONED_BY.into(), "os-gone/3".into());
    w.run_for(60);
    assert!(w.fleet.nodes["n0000"].unschedulable, "somebody else's");
    assert!(!w.fleet.nodes["n0001"].unschedulable);
    w.assert_at_rest();
}

#[test]
fn a_silent_proxy_loses_its_grant_before_boot_only() {
    let mut w = fleet(2, json!(1));
    w.run_until(|w| w.instance("n0000").status.as_ref().unwrap().phase == Phase::Draining);
    // Its proxy dies for good.
    let mut r = w.fleet.instances["n0000"].clone();
    r.status.as_mut().unwrap().agent = Some(AgentReport {
        os_version: V1.into(),
        digest: digest('a'),
        ..AgentReport::default()
    });
    w.fleet.instances.insert("n0000".into(), r);
    w.plan("n0000", Plan::DrainBlocked);
    let grant = w.status("blue").grants[0].clone();
    w.fleet.now = grant.not_after.0 + SignedDuration::from_secs(599);
    assert_eq!(
        decide(&w.fleet)
            .statuses
            .iter()
            .filter(|s| s.status.grants.is_empty())
            .count(),
        0
    );
    w.fleet.now += SignedDuration::from_secs(2);
    let d = decide(&w.fleet);
    assert!(
        d.statuses[0]
            .status
            .grants
            .iter()
            .all(|g| g.attempt != grant.attempt || g.node != grant.node)
    );
    for _ in 0..4 {
        let d = decide(&w.fleet);
        w.apply(d);
    }
    assert!(
        !w.fleet.nodes["n0000"].annotations.contains_key(ANN_CORDONED_BY),
        "and its cordon is cleaned up"
    );
}
