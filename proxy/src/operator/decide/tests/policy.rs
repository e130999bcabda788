//! What users asked for is what happens.

use jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::json;

use super::world::*;
use crate::api::condition_type::*;
use crate::api::*;
use crate::operator::decide::{InstanceWrite, decide};

fn fleet(nodes: usize, max: serde_json::Value) -> World {
    let mut w = World::new(nodes);
    w.add_os("blue", upgrade(max));
    w
}

fn set<T: serde::de::DeserializeOwned>(v: serde_json::Value) -> T {
    serde_json::from_value(v).unwrap()
}

#[test]
fn a_fleet_is_updated_within_its_limit_and_then_rests() {
    let mut w = fleet(10, json!(3));
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.assert_at_rest();
    assert_eq!(w.versions(), [(V2.to_owned(), 10)].into());
    assert_eq!(w.most_down, 3);
    assert!(w.fleet.nodes.keys().all(|n| w.boots_of(n) == 1));
    assert_eq!(w.status("blue").progress.as_deref(), Some("10/10"));
    assert_eq!(w.status("blue").state.as_deref(), Some("Complete"));
    assert_eq!(w.status("blue").observed_generation, Some(1));
    // stage, grant and release per node: three orders
    assert_eq!(w.writes["instance"], 30);
}

#[test]
fn percent_is_rounded_down_but_at_least_one_and_zero_stops() {
    for (max, nodes, limit) in [
        (json!("25%"), 10, 2),
        (json!("5%"), 10, 1),
        (json!("100%"), 4, 4),
        (json!("0%"), 4, 0),
        (json!(0), 4, 0),
    ] {
        let mut w = fleet(nodes, max.clone());
        w.run_for(600);
        assert_eq!(w.most_down, limit, "{max} of {nodes}");
        if limit == 0 {
            assert_eq!(w.cond("blue", PROGRESSING).1, "BudgetExhausted");
            assert!(
                w.fleet
                    .instances
                    .values()
                    .all(|i| i.spec.desired == Desired::Idle),
                "nothing is staged either"
            );
        }
    }
}

#[test]
fn serial_is_one_at_a_time() {
    let mut w = World::new(5);
    let mut spec = upgrade(json!(4));
    spec.executionmode = Some("serial".into());
    w.add_os("blue", spec);
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert_eq!(w.most_down, 1);
}

#[test]
fn staging_is_ordered_at_most_twice_the_limit_ahead() {
    let mut w = fleet(40, json!(3));
    w.plan("n0000", Plan::Good);
    w.settle();
    let staged = w
        .fleet
        .instances
        .values()
        .filter(|i| i.spec.desired == Desired::Stage)
        .count();
    assert_eq!(staged, 6);
}

#[test]
fn a_zone_cap_holds_and_zones_take_turns() {
    let mut w = World::new(9);
    let names: Vec<String> = w.fleet.nodes.keys().cloned().collect();
    for (i, n) in names.iter().enumerate() {
        w.node(n)
            .labels
            .insert("zone".into(), ["a", "b", "c"][i / 3].into());
    }
    let mut spec = upgrade(json!(3));
    spec.topologykey = Some("zone".into());
    spec.maxunavailablepergroup = Some(IntOrString::Int(1));
    w.add_os("blue", spec);
    w.check = |w, _, status| {
        let mut zones: Vec<&str> = status
            .grants
            .iter()
            .map(|g| w.fleet.nodes[&g.node].labels["zone"].as_str())
            .collect();
        zones.sort_unstable();
        let all = zones.len();
        zones.dedup();
        assert_eq!(zones.len(), all, "two nodes of one zone");
    };
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert_eq!(w.most_down, 3, "all zones at once");
}

#[test]
fn canary_and_waves_soak_and_go_on() {
    let mut w = World::new(20);
    let mut spec = upgrade(json!(5));
    spec.canary = Some(set(json!({"nodes": 2, "soak": "30m"})));
    spec.waves = set(json!([{"max": "50%", "soak": "1h"}]));
    w.add_os("blue", spec);
    w.run_until(|w| w.status("blue").wave.is_some_and(|x| x.soak_until.is_some()));
    assert_eq!(w.versions()[V2], 2);
    assert_eq!(
        w.fleet
            .instances
            .values()
            .filter(|i| i.spec.desired != Desired::Idle)
            .count(),
        0,
        "nobody stages in a soak"
    );
    assert_eq!(w.cond("blue", PROGRESSING).1, "Soaking");
    w.run_for(29 * 60);
    assert_eq!(w.versions()[V2], 2);
    w.run_until(|w| {
        w.status("blue")
            .wave
            .is_some_and(|x| x.index == 1 && x.soak_until.is_some())
    });
    assert_eq!(w.versions()[V2], 10);
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn a_canary_by_selector_goes_first() {
    let mut w = World::new(6);
    w.node("n0004").labels.insert("canary".into(), "yes".into());
    let mut spec = upgrade(json!(3));
    spec.canary = Some(set(
        json!({"selector": {"matchLabels": {"canary": "yes"}}, "soak": "10m"}),
    ));
    w.add_os("blue", spec);
    w.run_until(|w| w.status("blue").wave.is_some_and(|x| x.soak_until.is_some()));
    assert_eq!((w.versions()[V2], w.boots_of("n0004")), (1, 1));
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn windows_hold_grants_but_not_staging() {
    let mut w = World::new(4);
    let mut spec = upgrade(json!(1));
    spec.windows = set(json!([{"start": "22:00", "end": "02:00"}]));
    w.add_os("blue", spec);
    w.run_for(3600);
    assert_eq!(w.cond("blue", PROGRESSING).1, "WaitingForWindow");
    assert!(
        w.fleet
            .instances
            .values()
            .any(|i| i.status.as_ref().unwrap().phase == Phase::Staged)
    );
    assert!(w.boots.is_empty());
    w.check = |w, old, status| {
        for g in status
            .grants
            .iter()
            .filter(|g| !old.status.as_ref().is_some_and(|s| s.grants.contains(g)))
        {
            let time = g
                .granted_at
                .0
                .to_zoned(jiff::tz::TimeZone::UTC)
                .time()
                .to_string();
            assert!(time.as_str() >= "22:00" || time.as_str() < "01:58", "{time}");
            let close: jiff::Timestamp = "2026-08-04T02:00:00Z".parse().unwrap();
            assert!(g.not_after.0 <= close && w.fleet.now < close);
        }
    };
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn nothing_starts_two_minutes_before_the_window_closes() {
    let mut w = World::new(2);
    w.stage_secs = 119 * 60;
    let mut spec = upgrade(json!(1));
    spec.windows = set(json!([{"start": "09:00", "end": "12:00"}]));
    w.add_os("blue", spec);
    w.run_for(120 * 60);
    assert!(w.boots.is_empty());
    assert!(w.status("blue").grants.is_empty());
}

#[test]
fn the_failure_budget_halts_and_the_halt_is_latched() {
    let mut w = fleet(10, json!(1));
    for n in ["n0000", "n0001", "n0002"] {
        w.plan(n, Plan::FallsBack);
    }
    w.run_until(|w| is_true(&w.status("blue").conditions, HALTED));
    w.run_for(3600);
    w.assert_at_rest();
    assert_eq!(w.boots.len(), 1, "the default budget is one up to ten nodes");
    assert_eq!(w.instance("n0000").spec.denied, [digest('b')]);
    assert_eq!(w.status("blue").denylist[0].digest, digest('b'));
    assert_eq!(w.status("blue").state.as_deref(), Some("Halted"));
    // Losing the failed node does not lift it.
    w.fleet.instances.remove("n0000");
    w.fleet.nodes.remove("n0000");
    w.run_for(3600);
    assert_eq!(w.boots.len(), 1);
    assert_eq!(
        w.events
            .iter()
            .filter(|e| e.contains("FailureBudgetExceeded"))
            .count(),
        1,
        "{:?}",
        w.events
    );
}

#[test]
fn resume_lifts_the_halt_and_counts_from_there() {
    let mut w = fleet(10, json!(1));
    w.plan("n0000", Plan::FallsBack);
    w.plan("n0003", Plan::FallsBack);
    w.run_until(|w| is_true(&w.status("blue").conditions, HALTED));
    w.run_for(60);
    w.annotate("blue", ANN_RESUME, "1");
    w.run_until(|w| !is_true(&w.status("blue").conditions, HALTED));
    w.run_until(|w| is_true(&w.status("blue").conditions, HALTED));
    w.run_for(600);
    assert_eq!((w.boots_of("n0000"), w.boots_of("n0003")), (1, 1));
    assert_eq!(w.versions()[V2], 2);
}

#[test]
fn another_digest_lifts_the_halt_and_the_old_one_stays_denied() {
    let mut w = fleet(4, json!(1));
    w.plan("n0000", Plan::FallsBack);
    w.run_until(|w| is_true(&w.status("blue").conditions, HALTED));
    w.run_for(60);
    w.plan("n0000", Plan::Good);
    w.edit("blue", |s| {
        s.checksum = digest('c');
        s.osversion = "KubeOS 3".into();
    });
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert_eq!(w.versions()["KubeOS 3"], 4);
    w.edit("blue", |s| {
        s.checksum = digest('b');
        s.osversion = V2.into();
    });
    w.run_for(3600);
    assert!(is_true(&w.status("blue").conditions, HALTED));
    assert_eq!(w.versions()["KubeOS 3"], 4, "a denied digest is not rolled out");
}

#[test]
fn forgive_clears_a_digest_everywhere_in_one_act_and_only_once() {
    let mut w = fleet(10, json!(2));
    w.edit("blue", |s| s.failurebudget = Some(IntOrString::Int(2)));
    w.plan("n0000", Plan::FallsBack);
    w.plan("n0001", Plan::FallsBack);
    w.run_until(|w| is_true(&w.status("blue").conditions, HALTED));
    w.run_for(600);
    w.plan("n0000", Plan::Good);
    w.edit("blue", |s| s.forgive = vec![format!("sha256:{}", digest('B'))]);
    // n0001 fails once more and is not forgiven again by the same entry.
    w.run_for(6 * 3600);
    assert_eq!(w.boots_of("n0001"), 2);
    assert_eq!(w.versions()[V2], 9);
    assert_eq!(w.instance("n0001").spec.denied, [digest('b')]);
    assert!(
        !is_true(&w.status("blue").conditions, HALTED),
        "one failure of two"
    );
    w.assert_at_rest();
}

#[test]
fn retry_on_one_node_is_honoured_and_removed() {
    let mut w = fleet(4, json!(1));
    w.edit("blue", |s| s.failurebudget = Some(IntOrString::Int(2)));
    w.plan("n0002", Plan::FallsBack);
    w.run_until(|w| w.versions().get(V2) == Some(&3) && w.status("blue").grants.is_empty());
    w.run_for(3600);
    assert_eq!(w.boots_of("n0002"), 1);
    w.plan("n0002", Plan::Good);
    w.fleet
        .instances
        .get_mut("n0002")
        .unwrap()
        .annotations_mut()
        .insert(ANN_RETRY.into(), "any".into());
    w.run_until(|w| w.instance("n0002").spec.desired == Desired::Stage);
    assert_eq!(
        w.instance("n0002").spec.forgive,
        [digest('b')],
        "the proxy lifts it in the agent"
    );
    assert!(w.instance("n0002").annotations().get(ANN_RETRY).is_none());
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.run_for(60);
    assert!(w.instance("n0002").spec.forgive.is_empty());
    w.assert_at_rest();
}

#[test]
fn maxattempts_is_the_number_of_boot_operations() {
    for attempts in [1, 3] {
        let mut w = fleet(12, json!(1));
        w.edit("blue", |s| {
            s.maxattempts = Some(attempts);
            s.failurebudget = Some(IntOrString::Int(2));
        });
        w.plan("n0005", Plan::FallsBack);
        w.run_until(|w| w.versions().get(V2) == Some(&11));
        w.run_for(6 * 3600);
        assert_eq!(i64::from(w.boots_of("n0005")), attempts);
        w.assert_at_rest();
    }
}

#[test]
fn too_many_sick_nodes_stop_everything() {
    let mut w = fleet(20, json!(10));
    for i in 0..5 {
        w.node(&format!("n{i:04}")).ready = false;
    }
    w.run_for(3600);
    assert!(w.boots.is_empty());
    assert!(
        w.fleet
            .instances
            .values()
            .all(|i| i.spec.desired == Desired::Idle),
        "no staging either"
    );
    assert_eq!(w.cond("blue", PROGRESSING).1, "ExternalUnavailable");
    for i in 0..5 {
        w.node(&format!("n{i:04}")).ready = true;
    }
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn a_lost_node_frees_its_place_only_when_a_user_says_so() {
    let mut w = fleet(12, json!(1));
    w.edit("blue", |s| s.failurebudget = Some(IntOrString::Int(3)));
    w.plan("n0000", Plan::NeverReturns);
    w.run_for(3 * 3600);
    assert_eq!(w.versions()[V1], 12, "its place stays taken");
    assert_eq!(w.status("blue").failures[0].reason, "RebootTimeout");
    assert_eq!(w.cond("blue", DEGRADED).1, "NodeFailed");
    w.node("n0000")
        .annotations
        .insert(ANN_IGNORE_UNAVAILABLE.into(), "true".into());
    w.run_until(|w| w.versions().get(V2) == Some(&11));
    assert_eq!(w.status("blue").lost[0].node, "n0000");
    assert!(!is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn the_operators_own_node_goes_last() {
    let mut w = fleet(5, json!(1));
    w.fleet.settings.own_node = Some("n0000".into());
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert_eq!(w.boots.last().unwrap().0, "n0000");
}

#[test]
fn hold_keeps_a_node_back_and_aborts_it_before_its_reboot() {
    let mut w = fleet(3, json!(1));
    w.node("n0000").annotations.insert(ANN_HOLD.into(), "true".into());
    w.run_until(|w| w.status("blue").grants.iter().any(|g| g.node == "n0001"));
    w.node("n0001").annotations.insert(ANN_HOLD.into(), "".into());
    w.run_for(6 * 3600);
    assert_eq!(
        (w.boots_of("n0000"), w.boots_of("n0001"), w.boots_of("n0002")),
        (0, 0, 1)
    );
    assert_eq!(w.cond("blue", PROGRESSING).1, "Gated");
    w.assert_at_rest();
}

#[test]
fn pausing_lets_nodes_finish_or_aborts_them() {
    for (policy, booted) in [("finish", 1), ("abort", 0)] {
        let mut w = fleet(3, json!(1));
        w.edit("blue", |s| s.pausepolicy = Some(policy.into()));
        w.run_until(|w| !w.status("blue").grants.is_empty());
        w.edit("blue", |s| s.paused = true);
        w.run_for(3600);
        assert_eq!(w.boots.len(), booted, "{policy}");
        assert!(is_true(&w.status("blue").conditions, PAUSED));
        w.assert_at_rest();
        w.edit("blue", |s| s.paused = false);
        w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    }
}

#[test]
fn rollback_boots_the_previous_system_where_that_is_the_wanted_one() {
    let mut w = fleet(3, json!(1));
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.report("n0002").agent.as_mut().unwrap().previous_version = "KubeOS 0".into();
    w.edit("blue", |s| {
        s.opstype = "rollback".into();
        s.osversion = V1.into();
    });
    w.run_until(|w| w.versions().get(V1) == Some(&2));
    w.run_for(3600);
    assert_eq!(w.cond("blue", DEGRADED).1, "NoPreviousVersion");
    assert!(!is_true(&w.status("blue").conditions, COMPLETE));
    w.assert_at_rest();
}

#[test]
fn config_changes_settings_without_reboot_or_cordon() {
    let mut w = World::new(4);
    let mut spec = upgrade(json!(2));
    spec.opstype = "config".into();
    spec.osversion = V1.into();
    spec.imagetype = String::new();
    spec.sysconfigs = set(
        json!({"version": "s1", "configs": [{"model": "kernel.sysctl", "contents": [{"key": "vm.swappiness", "value": 10}]}]}),
    );
    w.add_os("blue", spec);
    w.check = |_, _, s| assert!(s.grants.len() <= 2);
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert!(w.boots.is_empty());
    assert_eq!(w.most_down, 0);
    assert_eq!(w.status("blue").target_digest.as_deref(), Some("config:s1"));
}

#[test]
fn a_wanted_reboot_gets_a_grant_of_its_own() {
    let mut w = fleet(3, json!(1));
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    w.report("n0001").reboot_required = Some(RebootRequired {
        reason: "kernel settings".into(),
        step: "010".into(),
    });
    w.settle();
    assert_eq!(w.status("blue").grants[0].kind, GrantKind::Reboot);
    w.run_until(|w| w.status("blue").grants.is_empty());
    w.run_for(60);
    assert_eq!(w.boots_of("n0001"), 2);
    w.assert_at_rest();
    assert!(is_true(&w.status("blue").conditions, COMPLETE));
}

#[test]
fn two_os_objects_one_node_the_older_one_wins_and_the_other_carries_on() {
    let mut w = World::new(4);
    for n in ["n0002", "n0003"] {
        w.node(n).labels.insert(LABEL_NODE_SELECTOR.into(), "pool".into());
    }
    let mut pool = upgrade(json!(1));
    pool.nodeselector = Some("pool".into());
    w.add_os("pool", pool);
    let mut all = upgrade(json!(1));
    all.nodeselector = Some("all-label".into());
    all.osversion = "KubeOS 3".into();
    all.checksum = digest('c');
    w.add_os("all", all);
    w.run_for(6 * 3600);
    assert_eq!(
        w.versions(),
        [(V2.to_owned(), 2), ("KubeOS 3".to_owned(), 2)].into(),
        "no bouncing"
    );
    assert_eq!(w.cond("all", ACCEPTED).1, "NodeConflict");
    assert!(
        !w.cond("all", COMPLETE).0,
        "some selected nodes run another system"
    );
    assert!(w.cond("pool", COMPLETE).0);
    w.assert_at_rest();
}

#[test]
fn a_typo_hands_no_node_over_to_another_os_object() {
    let mut w = World::new(2);
    w.add_os("old", upgrade(json!(1)));
    let mut young = upgrade(json!(1));
    young.osversion = "KubeOS 9".into();
    w.add_os("young", young);
    w.edit("old", |s| s.checksum = "typo".into());
    w.run_for(6 * 3600);
    assert_eq!(w.versions()[V1], 2);
    assert_eq!(w.cond("old", ACCEPTED).1, "InvalidSpec");
}

#[test]
fn bad_specs_touch_nothing_say_why_and_raise_one_event() {
    type Change = fn(&mut OsSpec);
    let cases: [(&str, Change, &str); 12] = [
        (
            "wrong version string",
            |s| s.osversion = "KubeOS\n2".into(),
            "osversion",
        ),
        ("no version", |s| s.osversion = String::new(), "osversion"),
        ("malformed checksum", |s| s.checksum = "1234".into(), "checksum"),
        (
            "http without flagSafe",
            |s| s.imageurl = "http://images.example/x".into(),
            "flagSafe",
        ),
        ("unknown opstype", |s| s.opstype = "explode".into(), "opstype"),
        (
            "unknown executionmode",
            |s| s.executionmode = Some("random".into()),
            "executionmode",
        ),
        (
            "percent over 100",
            |s| s.maxunavailable = Some(IntOrString::String("101%".into())),
            "maxunavailable",
        ),
        (
            "negative number",
            |s| s.maxunavailable = Some(IntOrString::Int(-1)),
            "maxunavailable",
        ),
        (
            "window with equal bounds",
            |s| s.windows = set(json!([{"start": "10:00", "end": "10:00"}])),
            "windows[0]",
        ),
        (
            "unknown zone",
            |s| s.windows = set(json!([{"start": "10:00", "end": "11:00", "timezone": "Mars/Base"}])),
            "timezone",
        ),
        (
            "unknown model",
            |s| s.sysconfigs = set(json!({"version": "1", "configs": [{"model": "kernel.magic"}]})),
            "model",
        ),
        (
            "path as certificate",
            |s| s.cacert = "../../shadow".into(),
            "cacert",
        ),
    ];
    for (name, change, field) in cases {
        let mut w = fleet(3, json!(1));
        w.edit("blue", change);
        w.run_for(3600);
        let (ok, reason, message) = w.cond("blue", ACCEPTED);
        assert_eq!((ok, reason.as_str()), (false, "InvalidSpec"), "{name}");
        assert!(message.contains(field), "{name}: {message}");
        assert!(
            w.boots.is_empty()
                && w.fleet
                    .instances
                    .values()
                    .all(|i| i.spec.desired == Desired::Idle),
            "{name}"
        );
        assert_eq!(w.events.len(), 1, "{name}: {:?}", w.events);
        assert_eq!(w.status("blue").state.as_deref(), Some("InvalidSpec"));
    }
}

#[test]
fn same_version_with_another_checksum_is_no_work_unless_asked_for() {
    let mut w = fleet(3, json!(1));
    w.edit("blue", |s| s.osversion = V1.into());
    w.run_for(3600);
    assert!(w.boots.is_empty());
    assert_eq!(w.cond("blue", DEGRADED).1, "SameVersionOtherDigest");
    assert!(!w.cond("blue", COMPLETE).0);
    w.annotate("blue", ANN_REINSTALL, "2");
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    assert_eq!(w.boots.len(), 3);
}

#[test]
fn taking_over_from_kubeos_reboots_nothing() {
    let mut w = fleet(3, json!(1));
    for n in ["n0000", "n0001", "n0002"] {
        let a = w.report(n).agent.as_mut().unwrap();
        a.digest = String::new();
        a.version_id = "1".into();
    }
    w.edit("blue", |s| s.osversion = V1.into());
    w.run_for(3600);
    assert!(w.boots.is_empty());
    assert!(w.cond("blue", COMPLETE).0);
    w.edit("blue", |s| s.osversion = "1".into());
    w.run_for(60);
    assert!(w.cond("blue", COMPLETE).0, "VERSION_ID counts as its PRETTY_NAME");
}

#[test]
fn trouble_with_the_server_stops_grants_and_is_shown() {
    let mut w = fleet(3, json!(1));
    w.fleet.trouble = Some(crate::operator::Trouble {
        reason: "Forbidden".into(),
        message: "may not update osinstances".into(),
    });
    w.run_for(600);
    assert!(w.boots.is_empty());
    assert_eq!(w.cond("blue", DEGRADED).1, "Forbidden");
    assert_eq!(w.events.len(), 1);
}

#[test]
fn a_stale_view_grants_stages_and_deletes_nothing() {
    let mut w = fleet(3, json!(1));
    w.fleet.fresh = false;
    w.fleet.nodes.clear();
    let d = decide(&w.fleet);
    assert!(d.instances.is_empty() && d.orphans.is_empty());
}

#[test]
fn an_order_carries_everything_the_node_needs() {
    let mut w = fleet(2, json!(1));
    w.edit("blue", |s| {
        s.sysconfigs = set(json!({"version": "s", "configs": [{"model": "grub.cmdline.next"}, {"model": "kuberntes.kubelet"}]}));
        s.upgradeconfigs = set(json!({"version": "u", "configs": [{"model": "grub.cmdline.next"}]}));
    });
    w.run_until(|w| !w.status("blue").grants.is_empty());
    w.settle();
    let grant = w.status("blue").grants[0].clone();
    let i = w.instance(&grant.node).clone();
    let s = &i.spec;
    assert_eq!(
        (s.desired, s.nodestatus.as_str(), s.attempt),
        (Desired::Boot, "upgrade", 1)
    );
    assert_eq!(
        s.expectbootid.as_deref(),
        Some(w.fleet.nodes[&grant.node].boot_id.as_str())
    );
    assert_eq!(s.namespacedname.as_ref().unwrap().name, "blue");
    assert_eq!(s.grant.as_ref().unwrap().notafter, grant.not_after);
    assert_eq!(
        grant.not_after.0,
        grant.granted_at.0 + SignedDuration::from_mins(40)
    );
    let models = |c: &Option<Configs>| {
        c.as_ref()
            .unwrap()
            .configs
            .iter()
            .map(|c| c.model.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        models(&s.sysconfigs),
        ["grub.cmdline.current", "kubernetes.kubelet"],
        "the slots will have changed places"
    );
    assert_eq!(models(&s.upgradeconfigs), ["grub.cmdline.next"]);
    assert!(s.policy.as_ref().unwrap().deleteemptydirdata, "evictpodforce");
    assert!(i.finalizers().contains(&FINALIZER_INSTANCE.to_owned()));
    assert_eq!(
        i.metadata.owner_references.as_ref().unwrap()[0].uid,
        w.fleet.nodes[&grant.node].uid
    );
    assert!(
        w.cond("blue", ACCEPTED).2.contains("kuberntes"),
        "the warning is shown"
    );
}

/// A proxy that gives its grant back for a reason of its own gets no other one for a minute, even if it names no time.
#[test]
fn a_grant_that_was_given_back_does_not_come_again_at_once() {
    for (reason, waits) in [
        ("NotStaged", true),
        ("ConfigRejected", true),
        ("", false),
        ("GrantGone", false),
    ] {
        let mut w = fleet(1, json!(1));
        w.stage_secs = 5;
        w.run_until(|w| w.instance("n0000").spec.grant.is_some());
        let opid = w.instance("n0000").spec.opid.clone().unwrap();
        let begun = w.fleet.now;
        w.finish("n0000", &opid, Outcome::Aborted, reason, Phase::Staged);
        w.run_until(|w| !w.status("blue").grants.iter().any(|g| g.attempt == 1));
        w.run_until(|w| {
            w.status("blue").grants.iter().any(|g| g.attempt == 2)
                || !w.boots.is_empty()
                || is_true(&w.status("blue").conditions, HALTED)
        });
        let after = w.fleet.now.as_second() - begun.as_second();
        match (reason, waits) {
            // Counts against the budget: one such node halts a fleet of one.
            ("ConfigRejected", _) => assert!(is_true(&w.status("blue").conditions, HALTED)),
            (_, true) => assert!(after >= 60, "{reason}: {after} s"),
            (_, false) => assert!(after < 60, "{reason}: {after} s"),
        }
    }
}

/// An order that is withdrawn changes in one word only: a node that booted meanwhile finishes it with the settings it was
/// given, not with those of the edit that withdrew it.
#[test]
fn an_abort_leaves_the_settings_of_the_order_alone() {
    let mut w = World::new(1);
    let configs = |v: &str| {
        set(
            json!({"version": v, "configs": [{"model": "kernel.sysctl", "contents": [{"key": v, "value": 1}]}]}),
        )
    };
    let mut spec = upgrade(json!(1));
    spec.sysconfigs = configs("one");
    w.add_os("blue", spec);
    w.plan("n0000", Plan::DrainBlocked);
    w.run_until(|w| w.instance_phase("n0000") == Some(Phase::Draining));
    w.edit("blue", |s| {
        s.checksum = digest('c');
        s.sysconfigs = configs("two");
    });
    let d = decide(&w.fleet);
    let InstanceWrite::Update(i) = &d.instances[0] else {
        panic!("{d:?}")
    };
    assert_eq!(i.spec.desired, Desired::Abort);
    assert_eq!(
        i.spec.sysconfigs.as_ref().unwrap().version.as_deref(),
        Some("one")
    );
    assert_eq!(i.spec.target.as_ref().unwrap().digest, digest('b'));
}
