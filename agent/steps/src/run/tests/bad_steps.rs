//! Steps that misbehave: each bounded and named, and those around it unharmed.

use super::*;

/// Runs the bad step between two good ones of which the second may not be blocked.
fn among(w: &World, bad: &str) -> Ended {
    let bad = format!("# agent: onFailure=continue\n{bad}");
    let e = w.run(&[
        ("000_before.sh", "echo before >>$T/log\n"),
        ("010_bad.sh", &bad),
        ("020_after.sh", "echo after >>$T/log\n"),
    ]);
    assert_eq!(w.read("log"), "before\nafter\n");
    e
}

fn degraded(e: &Ended) {
    match &e.outcome {
        Outcome::Converged { degraded, .. } => assert_eq!(degraded, &["010_bad.sh"]),
        other => panic!("{other:?}"),
    }
}

fn gone(w: &World, file: &str) {
    let text = w.read(file);
    assert!(!text.is_empty());
    for pid in text.split_whitespace() {
        let there = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ") && !stat.contains(") X ")
        };
        for _ in 0..500 {
            if !there() {
                break;
            }
            clock::sleep(Duration::from_millis(10), &Stop::default());
        }
        assert!(!there(), "process {pid} is still there");
    }
}

#[test]
fn a_step_that_hangs() {
    let w = World::new();
    let e = among(
        &w,
        "# agent: timeoutSec=1 retries=1\nsleep 1000 & echo $! $$ >$T/pids; trap '' TERM; wait; sleep 1000\n",
    );
    degraded(&e);
    gone(&w, "pids");
}

#[test]
fn a_step_that_forks_a_daemon() {
    let w = World::new();
    let e = among(
        &w,
        "setsid bash -c 'echo $BASHPID >$T/pids; exec sleep 1000' &\nuntil [ -s $T/pids ]; do sleep 0.02; done\n",
    );
    converged(&e);
    gone(&w, "pids");
}

#[test]
fn a_step_that_closes_its_descriptors() {
    let w = World::new();
    converged(&among(&w, "exec 0<&- 1>&- 2>&-\ntrue\n"));
}

#[test]
fn a_step_that_prints_a_gigabyte() {
    let w = World::new();
    let size = if std::env::var_os("SLIPWAY_E2E").is_some() {
        1024
    } else {
        64
    };
    let e = among(
        &w,
        &format!("echo first; head -c {size}M /dev/zero; echo; echo last\n"),
    );
    converged(&e);
    let dir = w.place.dirs.runs().join(&e.run_id);
    let out = std::fs::read(dir.join("010_bad.sh.1.out")).unwrap();
    assert!(out.len() < 2 << 20, "{} bytes kept", out.len());
    assert!(out.ends_with(b"last\n"));
}

#[test]
fn a_step_that_exits_in_the_middle() {
    let w = World::new();
    converged(&among(&w, "exit 0\nfalse\n"));
    let w = World::new();
    converged(&among(&w, "return 0\nfalse\n"));
}

#[test]
fn a_step_that_leaves_a_lock() {
    let w = World::new();
    let e = w.run(&[
        (
            "000_bad.sh",
            "(flock 9; : >$T/held; sleep 1000) 9>$T/lock &\nuntil [ -e $T/held ]; do sleep 0.02; done\n",
        ),
        ("010_next.sh", "# agent: retries=1\nflock -n $T/lock true\n"),
    ]);
    converged(&e);
}

#[test]
fn a_step_that_is_killed_names_the_signal() {
    let w = World::new();
    let e = w.run(&[("000_a.sh", "# agent: retries=1\nkill -9 $$\n")]);
    let f = failure(&e);
    assert_eq!(f.kind, "signal");
    assert!(
        f.message.contains("000_a.sh was ended by signal 9"),
        "{}",
        f.message
    );
}

#[test]
fn a_step_that_writes_no_text() {
    let w = World::new();
    let e = w.run(&[(
        "000_a.sh",
        "# agent: retries=1\nprintf '\\377\\376 bad' >&2; false\n",
    )]);
    assert_eq!(failure(&e).output, "\u{fffd}\u{fffd} bad\n");
}

/// A step that kills its parent: the runner of a real node is started again by systemd; here its journal says that it was
/// killed each time.
#[test]
fn a_step_during_which_the_runner_always_dies_fails_in_the_end() {
    let w = World::new();
    let steps = [("000_a.sh", ":\n"), ("010_b.sh", ":\n")];
    let b = text_bundle(&steps);
    let mut state = State::default();
    let p = match w.runner.plan(&b, &Options::default()).unwrap() {
        Decision::Run(p) => p,
        other => panic!("{other:?}"),
    };
    let run = w.runner.begin(&mut state, &b, &p).unwrap();
    let (j, _) = Journal::open(&w.place.dirs.runs().join(&run.run_id)).unwrap();
    for n in 1..=w.runner.limits.interruptions {
        j.write(&Line {
            step: "000_a.sh".into(),
            sha256: b.manifest.steps[0].sha256.clone(),
            attempt: n,
            what: What::Begin,
            changed: false,
            took_ms: 0,
            how: String::new(),
            at_unix: 0,
        })
        .unwrap();
    }
    drop(j);
    let reason = |w: &World| match w.runner.plan(&b, &Options::default()).unwrap() {
        Decision::Run(p) => p.steps[0].reason.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&w), "resumes here; the runner died 20 times in it");
    assert!(w.state().run.unwrap().open);
    let e = w.run(&steps);
    let f = failure(&e);
    assert_eq!((f.step.as_str(), f.kind.as_str()), ("000_a.sh", "killed"));
    assert!(
        f.message.starts_with("step 000_a.sh ended the runner 20 times"),
        "{}",
        f.message
    );
    assert_eq!(reason(&w), "resumes here; the runner died 20 times in it");
    assert!(!w.state().run.unwrap().open);
    // The next run has its attempts anew.
    converged(&w.run(&steps));
}

#[test]
fn syntax_errors_unknown_helpers_and_bytes_that_are_no_text_run_nothing() {
    let w = World::new();
    let good = [("000_a.sh", "echo good >>$T/log\n")];
    converged(&w.run(&good));
    let bad = text_bundle(&[("000_a.sh", "echo bad >>$T/log\n"), ("010_b.sh", "if\n")]);
    let e = w.runner.run(&bad, &Options::default()).unwrap_err();
    assert!(e.message.contains("010_b.sh: not bash"), "{e}");
    assert_eq!(w.read("log"), "good\n");
    assert!(matches!(w.state().outcome, Some(Outcome::Failed(f)) if f.kind == "bundle"));
    // The last good bundle is still the one that counts.
    assert_eq!(w.tick(&good).outcome, Outcome::InSync);
}

#[test]
fn a_journal_that_cannot_be_written_ends_the_run_before_a_step() {
    let w = World::new();
    let b = text_bundle(&[("000_a.sh", "echo ran >>$T/log\n")]);
    let mut state = State::default();
    let Decision::Run(p) = w.runner.plan(&b, &Options::default()).unwrap() else {
        panic!()
    };
    let run = w.runner.begin(&mut state, &b, &p).unwrap();
    let dir = w.place.dirs.runs().join(&run.run_id);
    std::fs::create_dir_all(dir.join("run.jsonl")).unwrap();
    let e = w.runner.run(&b, &Options::default()).unwrap_err();
    assert_eq!(e.code, os_proto::codes::Code::StateWriteFailed);
    // It ended and says so; nobody killed it.
    assert!(!w.state().run.unwrap().open);
    assert_eq!(w.read("log"), "");
}
