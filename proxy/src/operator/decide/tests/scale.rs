//! A thousand nodes in virtual time.

use serde_json::json;

use super::world::*;
use crate::api::condition_type::COMPLETE;
use crate::api::*;

/// Makespan against the ideal: staging of the first nodes, then every place always taken.
fn makespan(spread: i64) {
    let limit = 50;
    let mut w = World::new(1000);
    w.spread = spread;
    w.add_os("blue", upgrade(json!(limit)));
    w.check = |_, _, s| assert!(s.grants.len() <= 50);
    let begin = w.fleet.now.as_second();
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    let took = w.fleet.now.as_second() - begin;
    let work: i64 = w.fleet.nodes.keys().map(|n| 5 * w.secs(n, w.step_secs)).sum();
    let ideal = w.stage_secs + work / limit;
    let writes: usize = w.writes.values().sum();
    println!(
        "1000 nodes, {limit} at a time, speeds ±{spread} %: {took} s, ideal {ideal} s ({:.1} % more), {:.2} writes per node, {:?}",
        (took - ideal) as f64 * 100.0 / ideal as f64,
        writes as f64 / 1000.0,
        w.writes
    );
    assert!(took * 10 <= ideal * 11, "{took} s, ideal {ideal} s");
    assert!(w.most_down <= 50);
    assert!(w.writes["instance"] <= 3000, "stage, grant, release");
    w.assert_at_rest();
}

#[test]
fn a_thousand_equal_nodes_take_at_most_a_tenth_longer_than_ideal() {
    makespan(0);
}

#[test]
#[ignore = "minutes of processor time in a debug build: tests/long"]
fn a_thousand_unequal_nodes_take_at_most_a_tenth_longer_than_ideal() {
    makespan(40);
}

/// KubeOS picks a handful in map order, finished nodes included, and takes more than four times as long as it must.
#[test]
fn kf_r13_candidates_are_a_queue_not_a_lottery() {
    let mut w = World::new(200);
    w.step_secs = 10;
    let mut spec = upgrade(json!(1));
    spec.opstype = "config".into();
    spec.osversion = V1.into();
    spec.imagetype = String::new();
    spec.sysconfigs = Some(Configs {
        version: Some("s1".into()),
        configs: Vec::new(),
    });
    w.add_os("blue", spec);
    let begin = w.fleet.now.as_second();
    w.run_until(|w| is_true(&w.status("blue").conditions, COMPLETE));
    let took = w.fleet.now.as_second() - begin;
    println!(
        "1000 nodes, one at a time, 10 s each: {:.1} h",
        took as f64 / 3600.0
    );
    assert!(took <= 2200, "{took} s; 2,000 s is the least");
}

/// R7: a bad image reaches few nodes.
#[test]
fn r7_a_bad_image_touches_at_most_budget_plus_limit_nodes() {
    let mut w = World::new(1000);
    for i in 0..1000 {
        w.plan(&format!("n{i:04}"), Plan::FallsBack);
    }
    let mut spec = upgrade(json!(20));
    spec.failurebudget = Some(IntOrString::Int(10));
    w.add_os("blue", spec);
    w.run_for(24 * 3600);
    assert!(w.boots.len() <= 30, "{} nodes rebooted", w.boots.len());
    assert_eq!(w.status("blue").state.as_deref(), Some("Halted"));
    w.assert_at_rest();
}
