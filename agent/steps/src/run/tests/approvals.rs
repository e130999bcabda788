//! Requests: persisted, answered later, and nobody waits.

use super::*;
use crate::state::Wanted;

const STEPS: [(&str, &str); 3] = [
    (
        "000_users.sh",
        "# agent: phase=pre-approval\necho users >>$T/log\n",
    ),
    ("010_main.sh", "echo main >>$T/log\n"),
    (
        "020_disrupt.sh",
        "# agent: mayDisrupt=true\necho disrupt >>$T/log\n",
    ),
];

fn asking() -> World {
    World::with(Settings {
        approval: Approval::Ask,
        disruption: Disruption::Ask,
        ..Settings::default()
    })
}

/// Fault 14: an approval wait must not hold the lock.
#[test]
fn fault_14_the_lock_is_free_while_the_node_waits() {
    let w = asking();
    let e = w.run(&STEPS);
    assert_eq!(e.outcome, Outcome::WaitingApproval);
    assert_eq!(w.read("log"), "users\n");
    RunLock::take(&w.place.dirs.steps).unwrap();
    assert_eq!(w.state().ask.unwrap().wanted, Wanted::Update);
    assert!(w.place.dirs.requests().join("update").exists());
    // Looking again neither runs nor asks again.
    let since = w.state().ask.unwrap();
    assert_eq!(w.tick(&STEPS).executed, 0);
    assert_eq!(w.state().ask.unwrap(), since);
}

#[test]
fn an_update_goes_on_where_it_waited_and_asks_again_before_it_disrupts() {
    let w = asking();
    w.run(&STEPS);
    std::fs::write(w.place.dirs.approvals().join("update"), "").unwrap();
    let e = w.tick(&STEPS);
    assert_eq!(
        e.outcome,
        Outcome::WaitingDisruption {
            step: "020_disrupt.sh".into()
        }
    );
    assert_eq!(w.read("log"), "users\nmain\n");
    std::fs::write(w.place.dirs.approvals().join("disruption"), "").unwrap();
    converged(&w.tick(&STEPS));
    assert_eq!(w.read("log"), "users\nmain\ndisrupt\n");
    // Answers are used up.
    assert!(!w.place.dirs.approvals().join("update").exists());
    assert!(w.state().ask.is_none());
}

/// What is approved with a run is approved for its content alone.
#[test]
fn an_approval_with_a_run_is_for_its_content() {
    let w = asking();
    let all = Options {
        approve: true,
        approve_disruption: true,
        ..Options::default()
    };
    let held = RunLock::take(&w.place.dirs.steps).unwrap();
    assert!(w.runner.run(&text_bundle(&STEPS), &all).is_err());
    assert!(
        !w.place.dirs.approvals().join("update").exists(),
        "a refused run approves nothing"
    );
    drop(held);
    let fails = [("000_a.sh", "# agent: retries=1\nfalse\n")];
    w.runner.run(&text_bundle(&fails), &all).unwrap();
    assert_eq!(w.run(&STEPS).outcome, Outcome::WaitingApproval);
    converged(&w.runner.run(&text_bundle(&STEPS), &all).unwrap());
}

#[test]
fn an_answer_for_other_content_is_none() {
    let w = asking();
    std::fs::write(w.place.dirs.approvals().join("update"), "0".repeat(64)).unwrap();
    assert_eq!(w.run(&STEPS).outcome, Outcome::WaitingApproval);
}

#[test]
fn the_first_run_of_a_node_asks_nobody() {
    let w = asking();
    std::fs::write(w.place.dirs.base.join("first_run"), "").unwrap();
    converged(&w.run(&STEPS));
    assert_eq!(w.lines("log"), 3);
}

#[test]
fn the_disruption_helper_leaves_its_step_without_firing_events_and_returns() {
    let w = asking();
    std::fs::write(w.place.dirs.approvals().join("update"), "").unwrap();
    let steps = [(
        "000_a.sh",
        "bb-event-on changed 'echo fired >>$T/log'\necho x | bb-sync-file $T/conf - changed\n\
         bb-deckhouse-get-disruptive-update-approval\necho approved >>$T/log\n",
    )];
    let e = w.run(&steps);
    assert_eq!(
        e.outcome,
        Outcome::WaitingDisruption {
            step: "000_a.sh".into()
        }
    );
    assert_eq!(w.read("log"), "");
    std::fs::write(w.place.dirs.approvals().join("disruption"), "").unwrap();
    converged(&w.tick(&steps));
    // The file was the same by now, but its change had not been handled.
    assert_eq!(w.read("log"), "approved\nfired\n");
    assert!(w.place.dirs.flags().join("disruption").exists());
}

#[test]
fn a_reboot_in_the_middle_happens_once_and_the_bundle_goes_on() {
    let w = World::with(Settings {
        disruption: Disruption::Auto,
        ..Settings::default()
    });
    let steps = [
        ("000_a.sh", "echo a >>$T/log\n"),
        (
            "010_b.sh",
            "if ! bb-flag? restarted; then bb-flag-set restarted; bb-reboot-and-resume new kernel; fi\necho b >>$T/log\n",
        ),
        ("020_c.sh", "echo c >>$T/log\n"),
    ];
    let e = w.run(&steps);
    assert_eq!(
        e.outcome,
        Outcome::RebootPending {
            reason: "new kernel".into(),
            waits_for: None,
            refused: String::new(),
        }
    );
    assert_eq!(*w.host.reboots.lock().unwrap(), 1);
    // Until the boot id changes nothing runs: not step c either.
    let e = w.tick(&steps);
    assert_eq!(e.executed, 0);
    assert_eq!(w.read("log"), "a\n");
    w.reboot("boot-2");
    converged(&w.tick(&steps));
    assert_eq!(w.read("log"), "a\na\nb\nc\n");
    assert_eq!(w.tick(&steps).outcome, Outcome::InSync);
}

/// The runner may be killed between the moments in which a step asked for a reboot, in which the journal says so, and in
/// which the state does. A step that says it only once is believed all the same.
#[test]
fn a_reboot_that_a_step_asked_for_once_is_not_lost_with_the_runner() {
    let w = World::with(Settings {
        disruption: Disruption::Auto,
        ..Settings::default()
    });
    let once = "if ! bb-flag? asked; then bb-flag-set asked; echo x | bb-sync-file $T/conf -; bb-reboot-and-resume kernel; fi\n";
    let steps = [("000_a.sh", once), ("010_b.sh", "echo b >>$T/log\n")];
    let pending = Outcome::RebootPending {
        reason: "kernel".into(),
        waits_for: None,
        refused: String::new(),
    };
    assert_eq!(w.run(&steps).outcome, pending);
    // As a kill before the state was written leaves it, and then as one before the journal was.
    for lines in [2, 1] {
        let mut state = w.state();
        state.reboot = None;
        state.save(&w.place.dirs.steps).unwrap();
        let run = w.place.dirs.runs().join(state.run.unwrap().run_id);
        let journal = run.join("run.jsonl");
        let text = std::fs::read_to_string(&journal).unwrap();
        let cut: Vec<&str> = text.lines().take(lines).collect();
        std::fs::write(&journal, format!("{}\n", cut.join("\n"))).unwrap();
        assert_eq!(w.run(&steps).outcome, pending, "{text}");
        assert_eq!(w.read("log"), "");
    }
    w.reboot("boot-2");
    converged(&w.run(&steps));
    assert_eq!(w.read("log"), "b\n");
}

#[test]
fn where_nobody_may_reboot_it_is_only_reported() {
    let w = World::new();
    let steps = [("000_a.sh", "bb-flag-set reboot\n")];
    for _ in 0..2 {
        assert!(matches!(w.run(&steps).outcome, Outcome::RebootPending { .. }));
    }
    assert_eq!(*w.host.reboots.lock().unwrap(), 0);
    assert!(w.state().ask.is_none());
    assert_eq!(w.state().reboot.unwrap().step, "000_a.sh");
}

mod cluster {
    use super::*;
    use crate::approval::{CHECKSUM, PREFIX, Patch};
    use crate::kube::{Cluster, Node};

    /// A Node object in memory; counts what is asked of it.
    #[derive(Default)]
    struct FakeNode {
        node: Mutex<Node>,
        reads: Mutex<u32>,
        writes: Mutex<Vec<Patch>>,
    }

    impl FakeNode {
        fn set(&self, key: &str, value: &str) {
            self.node
                .lock()
                .unwrap()
                .annotations
                .insert(format!("{PREFIX}{key}"), value.to_owned());
        }
    }

    impl Cluster for FakeNode {
        fn node(&self) -> Result<Node> {
            *self.reads.lock().unwrap() += 1;
            Ok(self.node.lock().unwrap().clone())
        }

        fn patch(&self, _: &str, patch: &Patch) -> Result<()> {
            self.writes.lock().unwrap().push(patch.clone());
            let mut n = self.node.lock().unwrap();
            for (k, v) in patch {
                match v {
                    Some(v) => n.annotations.insert(k.clone(), v.clone()),
                    None => n.annotations.remove(k),
                };
            }
            Ok(())
        }

        fn bundle(&self, _: &str) -> Result<Option<Vec<u8>>> {
            Ok(None)
        }
    }

    /// The whole protocol, and fault 27: a look that finds nothing asks the cluster nothing.
    #[test]
    fn fault_27_approval_disruption_drain_reboot_and_then_silence() {
        let mut w = World::with(Settings {
            approval: Approval::Deckhouse,
            disruption: Disruption::Deckhouse,
            node_group: "worker".into(),
            ..Settings::default()
        });
        let c = Arc::new(FakeNode::default());
        c.node
            .lock()
            .unwrap()
            .annotations
            .insert(CHECKSUM.into(), "old".into());
        w.runner.cluster = Some(c.clone());
        let mut b = text_bundle(&[(
            "000_a.sh",
            "bb-flag? restarted || { bb-flag-set restarted; bb-flag-set reboot; }\necho a >>$T/log\n",
        )]);
        b.manifest.external_checksum = "sum".into();
        let look = || {
            w.runner
                .run(
                    &b,
                    &Options {
                        tick: true,
                        ..Options::default()
                    },
                )
                .unwrap()
                .outcome
        };
        assert_eq!(look(), Outcome::WaitingApproval);
        assert_eq!(look(), Outcome::WaitingApproval);
        // One write for two looks: the request, and the old checksum taken away in the same patch.
        assert_eq!(c.writes.lock().unwrap().len(), 1);
        assert_eq!(c.writes.lock().unwrap()[0][CHECKSUM], None);
        c.set("approved", "");
        let asks = look();
        assert!(
            matches!(
                &asks,
                Outcome::RebootPending {
                    waits_for: Some(Wanted::Disruption),
                    ..
                }
            ),
            "{asks:?}"
        );
        assert!(
            crate::tick::verdict(&asks)
                .unwrap()
                .message
                .contains("the request for disruption")
        );
        assert_eq!(*w.host.reboots.lock().unwrap(), 0);
        c.set("disruption-approved", "");
        look();
        assert_eq!(
            c.node.lock().unwrap().annotations[&format!("{PREFIX}draining")],
            "bashible"
        );
        look();
        assert_eq!(*w.host.reboots.lock().unwrap(), 0);
        c.set("drained", "bashible");
        look();
        assert_eq!(*w.host.reboots.lock().unwrap(), 1);
        w.reboot("boot-2");
        converged(
            &w.runner
                .run(
                    &b,
                    &Options {
                        tick: true,
                        ..Options::default()
                    },
                )
                .unwrap(),
        );
        assert_eq!(c.node.lock().unwrap().annotations[CHECKSUM], "sum");
        let (reads, writes) = (*c.reads.lock().unwrap(), c.writes.lock().unwrap().len());
        for _ in 0..5 {
            assert_eq!(look(), Outcome::InSync);
        }
        assert_eq!(*c.reads.lock().unwrap(), reads);
        assert_eq!(c.writes.lock().unwrap().len(), writes);
    }
}
