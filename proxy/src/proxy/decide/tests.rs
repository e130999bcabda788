#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod named;
mod world;

use super::*;
use world::{End, Fate, World};

/// Property: whatever dies whenever, the world converges; I1–I9 as far as they concern one node are checked at each act.
#[test]
fn any_order_of_crashes_and_failures_converges() {
    let runs = if std::env::var_os("SLIPWAY_LONG").is_some() {
        200_000
    } else {
        4_000
    };
    let mut ends = std::collections::BTreeMap::new();
    for seed in 0..runs {
        let mut w = World::random(seed);
        let end = w.run_to_the_end();
        *ends.entry(format!("{end:?}")).or_insert(0) += 1;
    }
    println!("{runs} random schedules: {ends:?}");
    for end in [End::Updated, End::FellBack, End::GivenBack, End::NotStaged] {
        assert!(
            ends.contains_key(&format!("{end:?}")),
            "{end:?} never came up: {ends:?}"
        );
    }
}

#[test]
fn the_plain_story_takes_the_steps_of_the_table_and_six_status_writes() {
    let mut w = World::plain();
    assert_eq!(w.run_to_the_end(), End::Updated);
    assert_eq!(
        w.phases,
        [
            "Idle",
            "Staging",
            "Staged",
            "Draining",
            "Rebooting",
            "Verifying",
            "Idle"
        ]
    );
    assert_eq!(w.boots_asked, 1);
    assert!(w.node_writes <= 2, "{} writes of the Node", w.node_writes);
}

#[test]
fn a_bad_image_falls_back_once_and_is_said_so() {
    for fate in [Fate::NeverHealthy, Fate::FallsBackByItself] {
        let mut w = World::plain();
        w.fate = fate;
        assert_eq!(w.run_to_the_end(), End::FellBack);
        assert_eq!(w.boots_asked, 1);
        assert!(!w.node.unschedulable);
        let r = w.report.last_result.clone().unwrap();
        assert_eq!(r.outcome, Outcome::RolledBack);
        assert_eq!(
            r.reason,
            if fate == Fate::NeverHealthy {
                "HealthFailed"
            } else {
                "RolledBack"
            }
        );
        assert_eq!(w.report.phase, Phase::Failed);
    }
}
