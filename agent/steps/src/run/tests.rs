//! Real bash, temporary roots. What needs root is with the end-to-end tests.

mod approvals;
mod bad_steps;
mod faults;
mod ladder;

use super::*;
use crate::testing::{Place, text_bundle};
use std::sync::Mutex;

/// A machine whose boot id the test sets.
#[derive(Default)]
struct TestHost {
    boot: Mutex<String>,
    reboots: Mutex<u32>,
    refuse: Mutex<Option<String>>,
}

impl Host for TestHost {
    fn boot_id(&self) -> String {
        self.boot.lock().unwrap().clone()
    }

    fn hostname(&self) -> String {
        "node-1".to_owned()
    }

    fn reboot(&self) -> std::result::Result<(), String> {
        if let Some(e) = self.refuse.lock().unwrap().clone() {
            return Err(e);
        }
        *self.reboots.lock().unwrap() += 1;
        Ok(())
    }
}

struct World {
    place: Place,
    host: Arc<TestHost>,
    runner: Runner,
    events: Arc<Mutex<Vec<Event>>>,
}

impl World {
    fn new() -> World {
        World::with(Settings::default())
    }

    fn with(mut settings: Settings) -> World {
        let place = Place::new();
        let host = Arc::new(TestHost::default());
        "boot-1".clone_into(&mut host.boot.lock().unwrap());
        settings.env.insert("T".into(), place.root.to_string());
        settings.env.insert(
            "BB_OS_RELEASE".into(),
            place.root.join("etc/os-release").into_string(),
        );
        let events = Arc::<Mutex<Vec<Event>>>::default();
        let seen = events.clone();
        let runner = Runner {
            dirs: place.dirs.clone(),
            settings,
            host: host.clone(),
            cluster: None,
            sink: Arc::new(move |e: &Event| seen.lock().unwrap().push(e.clone())),
            stop: Stop::default(),
            limits: Limits {
                backoff_first_ms: 10,
                grace: Duration::from_millis(300),
                ..Limits::default()
            },
        };
        World {
            place,
            host,
            runner,
            events,
        }
    }

    fn run(&self, steps: &[(&str, &str)]) -> Ended {
        self.runner.run(&text_bundle(steps), &Options::default()).unwrap()
    }

    fn tick(&self, steps: &[(&str, &str)]) -> Ended {
        let o = Options {
            tick: true,
            ..Options::default()
        };
        self.runner.run(&text_bundle(steps), &o).unwrap()
    }

    fn reboot(&self, id: &str) {
        id.clone_into(&mut self.host.boot.lock().unwrap());
    }

    fn state(&self) -> State {
        State::load(&self.place.dirs.steps).unwrap()
    }

    fn read(&self, path: &str) -> String {
        self.place.read(path)
    }

    fn lines(&self, path: &str) -> usize {
        self.read(path).lines().count()
    }
}

fn failure(e: &Ended) -> &Failure {
    match &e.outcome {
        Outcome::Failed(f) => f,
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn converged(e: &Ended) -> u32 {
    match &e.outcome {
        Outcome::Converged { changed, degraded } if degraded.is_empty() => *changed,
        other => panic!("expected convergence, got {other:?}"),
    }
}

#[test]
fn steps_run_in_order_once_and_then_the_node_is_in_sync() {
    let w = World::new();
    let steps = [
        ("010_b.sh", "echo b >>$T/log\n"),
        ("000_a.sh", "echo a >>$T/log\n"),
        ("020_c.sh", "# agent: phase=pre-approval\necho c >>$T/log\n"),
    ];
    let e = w.run(&steps);
    converged(&e);
    assert_eq!((e.executed, w.read("log").as_str()), (3, "c\na\nb\n"));
    let before = std::fs::metadata(w.place.dirs.steps.join("state.json"))
        .unwrap()
        .modified()
        .unwrap();
    let e = w.tick(&steps);
    assert_eq!((e.outcome, e.executed), (Outcome::InSync, 0));
    // A look that finds nothing writes nothing.
    let after = std::fs::metadata(w.place.dirs.steps.join("state.json"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(before, after);
}

#[test]
fn a_failed_run_resumes_at_the_failed_step() {
    let w = World::new();
    let steps = [
        ("000_a.sh", "echo a >>$T/log\n"),
        (
            "010_b.sh",
            "# agent: retries=2\necho b >>$T/log; [ -e $T/ready ]\n",
        ),
        ("020_c.sh", "echo c >>$T/log\n"),
    ];
    let e = w.run(&steps);
    let f = failure(&e);
    assert_eq!(
        (f.step.as_str(), f.kind.as_str(), f.attempt),
        ("010_b.sh", "exit", 2)
    );
    assert_eq!(w.read("log"), "a\nb\nb\n");
    // The clock waits, a person need not.
    assert_eq!(w.tick(&steps).executed, 0);
    std::fs::write(w.place.root.join("ready"), "").unwrap();
    converged(&w.run(&steps));
    assert_eq!(w.read("log"), "a\nb\nb\nb\nc\n");
}

/// A run from the start is wanted until it is done: the next one, a person's or the clock's, goes on with it.
#[test]
fn a_failed_run_from_the_start_is_not_forgotten() {
    let w = World::new();
    let steps = [
        ("000_a.sh", "echo a >>$T/log\n"),
        (
            "010_b.sh",
            "# agent: retries=1\n[ ! -e $T/broken ]; echo b >>$T/log\n",
        ),
    ];
    converged(&w.run(&steps));
    std::fs::write(w.place.root.join("broken"), "").unwrap();
    let from_start = Options {
        from_start: true,
        ..Options::default()
    };
    failure(&w.runner.run(&text_bundle(&steps), &from_start).unwrap());
    assert_eq!(w.read("log"), "a\nb\na\n");
    // The clock waits as after every failure; then it fails again where it failed, with attempts anew.
    assert!(matches!(w.tick(&steps).outcome, Outcome::Failed(_)));
    assert_eq!(failure(&w.run(&steps)).step, "010_b.sh");
    std::fs::remove_file(w.place.root.join("broken")).unwrap();
    converged(&w.run(&steps));
    assert_eq!(w.read("log"), "a\nb\na\nb\n");
    assert_eq!(w.run(&steps).outcome, Outcome::InSync);
}

/// A damaged stored bundle does not stop a run whose source is whole.
#[test]
fn a_run_mends_the_store_from_its_source() {
    let w = World::new();
    let steps = [("000_a.sh", "echo a >>$T/log\n")];
    let b = text_bundle(&steps);
    converged(&w.run(&steps));
    let stored = store::dir(&w.place.dirs, &b.manifest.content_hash).join("steps/000_a.sh");
    std::fs::write(&stored, "echo harm >>$T/log\n").unwrap();
    w.reboot("boot-2");
    converged(&w.run(&steps));
    assert_eq!(w.read("log"), "a\na\n");
    assert_eq!(std::fs::read_to_string(&stored).unwrap(), "echo a >>$T/log\n");
}

#[test]
fn changed_content_runs_everything_and_a_new_boot_too() {
    let w = World::new();
    w.run(&[("000_a.sh", "echo a >>$T/log\n")]);
    converged(&w.run(&[("000_a.sh", "echo A >>$T/log\n")]));
    assert_eq!(w.read("log"), "a\nA\n");
    w.reboot("boot-2");
    let e = w.tick(&[("000_a.sh", "echo A >>$T/log\n")]);
    converged(&e);
    assert_eq!(w.read("log"), "a\nA\nA\n");
    assert_eq!(w.state().run.unwrap().kind, crate::state::Kind::Boot);
}

#[test]
fn a_new_epoch_verifies_and_what_changes_is_drift() {
    let w = World::new();
    let mut b = text_bundle(&[
        ("000_a.sh", "echo wanted | bb-sync-file $T/conf -\n"),
        (
            "010_b.sh",
            "# agent: mayDisrupt=true phase=main\necho x >>$T/disrupted\n",
        ),
    ]);
    b.manifest.epoch = "1".into();
    let w2 = World::with(Settings {
        disruption: Disruption::Auto,
        ..Settings::default()
    });
    drop(w);
    let w = w2;
    let e = w.runner.run(&b, &Options::default()).unwrap();
    assert_eq!(converged(&e), 1);
    b.manifest.epoch = "2".into();
    let e = w.runner.run(&b, &Options::default()).unwrap();
    assert_eq!(converged(&e), 0);
    std::fs::write(w.place.root.join("conf"), "by hand").unwrap();
    b.manifest.epoch = "3".into();
    let e = w.runner.run(&b, &Options::default()).unwrap();
    assert_eq!(e.outcome, Outcome::Drifted { changed: 1 });
    assert_eq!(w.state().drift_total, 1);
    assert_eq!(w.read("conf"), "wanted\n");
    assert_eq!(w.lines("disrupted"), 1);
}

#[test]
fn parallel_steps_overlap_and_the_next_waits_for_all() {
    let w = World::new();
    // Each waits for the other: only together do they end.
    let meet = |me: &str, other: &str| {
        format!(
            "# agent: parallelGroup=g retries=1 timeoutSec=60\n: >$T/{me}; until [ -e $T/{other} ]; do sleep 0.02; done\n"
        )
    };
    let e = w.run(&[
        ("000_a.sh", &meet("a", "b")),
        ("001_b.sh", &meet("b", "a")),
        ("002_c.sh", "[ -e $T/a ] && [ -e $T/b ]\n"),
    ]);
    converged(&e);
}

#[test]
fn the_environment_is_built_anew() {
    let w = World::with(Settings {
        node_group: "worker".into(),
        ..Settings::default()
    });
    let e = w.run(&[(
        "000_a.sh",
        "env >$T/env; pwd >$T/pwd; shopt -o >$T/opts; ls -l /proc/self/fd >$T/fds; cat >$T/stdin\n",
    )]);
    converged(&e);
    let env = w.read("env");
    for want in [
        "LANG=C\n",
        "LC_NUMERIC=C\n",
        "FIRST_BASHIBLE_RUN=no\n",
        "NODE_GROUP=worker\n",
        "D8_NODE_HOSTNAME=node-1\n",
        "MAX_RETRIES=10\n",
        "TERM=",
    ] {
        assert!(env.contains(want), "{want} in {env}");
    }
    assert!(env.contains(&format!("HOME={}\n", w.place.dirs.base)));
    for not in ["CARGO", "BASH_ENV", "http_proxy", "HTTPS_PROXY", "CDPATH"] {
        assert!(!env.contains(&format!("{not}=")), "{not} in {env}");
    }
    assert_eq!(w.read("pwd").trim(), w.place.dirs.base);
    let opts = w.read("opts");
    for on in ["errexit", "errtrace", "pipefail"] {
        assert!(
            opts.lines().any(|l| l.starts_with(on) && l.ends_with("on")),
            "{on}: {opts}"
        );
    }
    assert!(
        opts.lines()
            .any(|l| l.starts_with("nounset") && l.ends_with("off"))
    );
    assert_eq!(w.read("stdin"), "");
}

#[test]
fn watchers_see_attempts_and_lines() {
    let w = World::new();
    w.run(&[("000_a.sh", "echo hello\n")]);
    let events = w.events.lock().unwrap();
    let seen: Vec<(&str, &str)> = events.iter().map(|e| (e.state, e.line.as_str())).collect();
    assert_eq!(
        seen,
        [("began", ""), ("output", "hello"), ("done", ""), ("outcome", "")]
    );
}

#[test]
fn a_second_runner_is_refused_while_one_runs() {
    let w = World::new();
    let _lock = RunLock::take(&w.place.dirs.steps).unwrap();
    let e = w
        .runner
        .run(&text_bundle(&[("000_a.sh", ":\n")]), &Options::default())
        .unwrap_err();
    assert_eq!(e.code, os_proto::codes::Code::Busy);
}
