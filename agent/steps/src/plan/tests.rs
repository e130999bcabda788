use super::*;
use crate::state::{Applied, Reboot, Run};
use crate::testing::text_bundle;

struct World {
    state: State,
    manifest: Manifest,
    progress: BTreeMap<String, Progress>,
}

impl World {
    fn new() -> World {
        World {
            state: State::default(),
            manifest: text_bundle(&[
                ("000_a.sh", ":\n"),
                ("010_b.sh", "# agent: mayDisrupt=true\n"),
                ("020_c.sh", ":\n"),
            ])
            .manifest,
            progress: BTreeMap::new(),
        }
    }

    fn applied(mut self, boot: &str, epoch: &str) -> World {
        self.state.applied = Some(Applied {
            content_hash: self.manifest.content_hash.clone(),
            external_checksum: String::new(),
            boot_id: boot.into(),
            epoch: epoch.into(),
            at_unix: 0,
            degraded: false,
        });
        self
    }

    fn running(mut self, kind: Kind, boot: &str, done: &[usize]) -> World {
        self.state.run = Some(Run {
            run_id: "r".into(),
            content_hash: self.manifest.content_hash.clone(),
            external_checksum: String::new(),
            kind,
            boot_id: boot.into(),
            epoch: String::new(),
            started_unix: 0,
            over: false,
            failed: false,
            open: false,
        });
        for i in done {
            let s = &self.manifest.steps[*i];
            let p = Progress {
                sha256: s.sha256.clone(),
                begun: 1,
                done: true,
                ..Progress::default()
            };
            self.progress.insert(s.name.clone(), p);
        }
        self
    }

    fn look(&self, boot: &str, epoch: &str) -> Decision {
        self.at(boot, epoch, 1000, Trigger::Tick)
    }

    fn at(&self, boot_id: &str, epoch: &str, now: i64, trigger: Trigger) -> Decision {
        decide(&Facts {
            state: &self.state,
            manifest: &self.manifest,
            progress: &self.progress,
            boot_id,
            now,
            epoch,
            from_start: false,
            trigger,
        })
    }
}

fn plan(d: Decision) -> Plan {
    match d {
        Decision::Run(p) => p,
        other => panic!("{other:?}"),
    }
}

fn runs(p: &Plan) -> Vec<bool> {
    p.steps.iter().map(|s| s.run).collect()
}

/// Fault 22: a reboot is told by the boot id, never by an uptime.
#[test]
fn fault_22_boot_id_table() {
    let w = World::new().applied("boot-1", "5");
    assert!(matches!(w.look("boot-1", "5"), Decision::InSync(_)));
    assert_eq!(plan(w.look("boot-2", "5")).kind, Kind::Boot);
    assert_eq!(plan(w.look("boot-1", "6")).kind, Kind::Verify);
    // No uptime is asked for: there is nothing at powers of ten to get wrong.
    for now in [9, 10, 99, 100, 999_999, 1_000_000] {
        assert!(matches!(
            w.at("boot-1", "5", now, Trigger::Tick),
            Decision::InSync(_)
        ));
    }
}

/// Fault 7: the same bytes again.
#[test]
fn fault_07_the_same_content_is_in_sync_whatever_the_external_checksum() {
    let mut w = World::new().applied("b", "1");
    w.manifest.external_checksum = "another".into();
    w.manifest.created_at = "later".into();
    assert!(matches!(w.look("b", "1"), Decision::InSync(_)));
}

#[test]
fn resume_skips_only_what_was_done_in_this_boot_with_this_content() {
    let w = World::new().running(Kind::Apply, "b", &[0]);
    let p = plan(w.look("b", "1"));
    assert!(p.resume);
    assert_eq!(runs(&p), [false, true, true]);
    let p = plan(w.look("other", "1"));
    assert!(!p.resume);
    assert_eq!(runs(&p), [true, true, true]);
    let mut w = World::new().running(Kind::Apply, "b", &[0]);
    w.progress.get_mut("000_a.sh").unwrap().sha256 = "other".into();
    assert_eq!(runs(&plan(w.look("b", "1"))), [true, true, true]);
    let mut w = World::new().running(Kind::Apply, "b", &[0]);
    w.state.run.as_mut().unwrap().over = true;
    assert!(!plan(w.look("b", "1")).resume);
}

#[test]
fn a_run_from_the_start_counts_until_it_is_done() {
    let w = World::new().applied("b", "1").running(Kind::Verify, "b", &[0]);
    for failed in [false, true] {
        let mut w = World {
            state: w.state.clone(),
            ..World::new()
        };
        w.progress
            .clone_from(&World::new().running(Kind::Verify, "b", &[0]).progress);
        w.state.run.as_mut().unwrap().failed = failed;
        let p = plan(w.look("b", "1"));
        assert!(p.resume && p.kind == Kind::Verify);
        assert_eq!(runs(&p), [false, false, true]);
        // The boot has the last word, and a finished one is over.
        assert_eq!(plan(w.look("c", "1")).kind, Kind::Boot);
        w.state.run.as_mut().unwrap().over = true;
        assert!(matches!(w.look("b", "1"), Decision::InSync(_)));
    }
}

#[test]
fn a_step_in_which_the_runner_died_is_named_with_the_count() {
    let mut w = World::new().running(Kind::Apply, "b", &[0]);
    let s = &w.manifest.steps[2];
    let died = Progress {
        sha256: s.sha256.clone(),
        begun: 3,
        interrupted: 3,
        ..Progress::default()
    };
    w.progress.insert(s.name.clone(), died.clone());
    let reason = |w: &World| plan(w.look("b", "1")).steps[2].reason.clone();
    assert_eq!(reason(&w), "resumes here; the runner died 3 times in it");
    let given_up = Progress {
        interrupted: 0,
        gave_up: 20,
        ..died
    };
    w.progress.insert("020_c.sh".into(), given_up);
    assert_eq!(reason(&w), "resumes here; the runner died 20 times in it");
}

#[test]
fn a_verify_run_leaves_disruptive_steps_alone() {
    let p = plan(World::new().applied("b", "1").look("b", "2"));
    assert_eq!(runs(&p), [true, false, true]);
    let p = plan(World::new().applied("a", "1").look("b", "1"));
    assert_eq!(runs(&p), [true, true, true]);
}

#[test]
fn failed_runs_wait_longer_each_time_but_never_for_people_or_a_jumped_clock() {
    let mut w = World::new().running(Kind::Apply, "b", &[]);
    w.state.failures = 3;
    w.state.retry_unix = 1240;
    assert!(matches!(w.look("b", "1"), Decision::Later(1240, _)));
    plan(w.at("b", "1", 1240, Trigger::Tick));
    plan(w.at("b", "1", 1000, Trigger::Asked));
    plan(w.at("b", "1", -100_000, Trigger::Tick));
    let waits: Vec<i64> = (1..=8).map(retry_after).collect();
    assert_eq!(waits, [60, 120, 240, 480, 960, 1800, 1800, 1800]);
}

#[test]
fn a_pending_reboot_comes_first_unless_the_content_is_new() {
    let mut w = World::new().running(Kind::Apply, "b", &[0, 1, 2]);
    w.state.reboot = Some(Reboot {
        reason: "kernel".into(),
        step: String::new(),
        boot_id: "b".into(),
        since_unix: 0,
        asked: 0,
        error: String::new(),
    });
    assert_eq!(w.look("b", "1"), Decision::Reboot("kernel".into()));
    assert!(matches!(w.look("c", "1"), Decision::Run(_)));
    w.state.run.as_mut().unwrap().content_hash = "older".into();
    assert!(matches!(w.look("b", "1"), Decision::Run(_)));
}

#[test]
fn neighbours_of_a_group_run_together() {
    let b = text_bundle(&[
        ("000_a.sh", "# bashible: parallel-group=x\n"),
        ("001_b.sh", "# bashible: parallel-group=x\n"),
        ("002_c.sh", ":\n"),
        ("003_d.sh", "# agent: parallelGroup=x\n"),
        ("004_e.sh", "# agent: parallelGroup=y\n"),
    ]);
    let f = World {
        manifest: b.manifest.clone(),
        ..World::new()
    };
    let p = plan(f.look("b", "1"));
    assert_eq!(
        units(&b.manifest, &p.steps),
        [vec![0, 1], vec![2], vec![3], vec![4]]
    );
}

#[test]
fn epochs_are_four_hours_and_shifted_by_group() {
    let first = epoch(1_700_000_000, "worker");
    let same = (0..EPOCH_SECS)
        .filter(|d| epoch(1_700_000_000 + d, "worker") == first)
        .count();
    let next = epoch(1_700_000_000 + EPOCH_SECS, "worker");
    assert_eq!(next.parse::<i64>().unwrap(), first.parse::<i64>().unwrap() + 1);
    assert!(same > 0 && same <= usize::try_from(EPOCH_SECS).unwrap());
    let starts: std::collections::BTreeSet<i64> = (0..20)
        .map(|g| {
            let e = epoch(0, &format!("group-{g}"));
            (0..EPOCH_SECS)
                .find(|t| epoch(*t, &format!("group-{g}")) != e)
                .unwrap_or(0)
        })
        .collect();
    assert!(starts.len() > 10, "groups verify at the same time: {starts:?}");
}

#[test]
fn the_backoff_is_bounded_and_jittered() {
    let least: Vec<u64> = (1..=8).map(|n| backoff_ms(2000, n, 0)).collect();
    assert_eq!(least, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
    assert!(backoff_ms(2000, 8, 999) <= 60_000);
    assert!(backoff_ms(2000, 1, 999) > 1900);
}
