//! Faults of the original (steps.md, section 11), by number.

use super::*;

#[test]
fn fault_01_a_step_that_never_returns_is_killed_with_its_tree() {
    let w = World::new();
    let e = w.run(&[(
        "000_tail.sh",
        "# agent: timeoutSec=1 retries=1\necho $$ >$T/pids; tail -f /dev/null\n",
    )]);
    let f = failure(&e);
    assert_eq!((f.kind.as_str(), f.step.as_str()), ("timeout", "000_tail.sh"));
    // The lock is free.
    RunLock::take(&w.place.dirs.steps).unwrap();
}

#[test]
fn fault_02_a_lock_that_somebody_holds_is_waited_for_within_bounds() {
    let w = World::new();
    let hold = std::fs::File::create(w.place.root.join("lock")).unwrap();
    rustix::fs::flock(&hold, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let steps = [(
        "000_apt.sh",
        "# agent: retries=3\necho try >>$T/tries; flock -w 0.1 $T/lock true\n",
    )];
    let e = w.run(&steps);
    assert_eq!(failure(&e).kind, "exit");
    assert_eq!(w.lines("tries"), 3);
    drop(hold);
    converged(&w.run(&steps));
}

#[test]
fn fault_03_exactly_as_many_attempts_as_the_step_allows() {
    let w = World::new();
    let steps = [("000_a.sh", "# agent: retries=4\necho x >>$T/tries; false\n")];
    assert_eq!(failure(&w.run(&steps)).attempt, 4);
    assert_eq!(w.lines("tries"), 4);
    let o = Options {
        max_attempts: Some(1),
        ..Options::default()
    };
    w.runner.run(&text_bundle(&steps), &o).unwrap();
    assert_eq!(w.lines("tries"), 5);
}

#[test]
fn fault_04_the_error_shown_is_that_of_the_last_attempt_and_no_trace() {
    let w = World::new();
    let e = w.run(&[(
        "000_a.sh",
        "# agent: retries=4\necho x >>$T/n; echo \"error number $(wc -l <$T/n)\" >&2; false\n",
    )]);
    let f = failure(&e);
    assert_eq!(f.output, "error number 4\n");
    assert!(
        f.message.ends_with("(attempt 4): error number 4"),
        "{}",
        f.message
    );
    // From the third attempt on there is a trace, in a file of its own.
    let dir = w.place.dirs.runs().join(&e.run_id);
    assert!(!dir.join("000_a.sh.2.trace").exists());
    let trace = std::fs::read_to_string(dir.join("000_a.sh.3.trace")).unwrap();
    assert!(trace.contains("error number"), "{trace}");
}

#[test]
fn fault_05_failures_in_a_row_are_one_record_with_a_count() {
    let w = World::new();
    for n in 1..=5 {
        w.run(&[("000_a.sh", "# agent: retries=1\nfalse\n")]);
        assert_eq!(w.state().failures, n);
    }
    converged(&w.run(&[("000_a.sh", "true\n")]));
    assert_eq!(w.state().failures, 0);
}

#[test]
fn fault_10_one_restart_per_change_of_content() {
    let w = World::new();
    let steps = |text: &str| {
        format!(
            "restart() {{ echo $1 >>$T/restarts; [ ! -e $T/fail ]; }}\nbb-event-on conf-changed restart\n\
             echo {text} | bb-sync-file $T/conf - conf-changed\n"
        )
    };
    let bundle = |text: &str| {
        [(
            "000_conf.sh".to_owned(),
            format!("# agent: retries=3\n{}", steps(text)),
        )]
    };
    let run = |text: &str| {
        let b = bundle(text);
        let b: Vec<(&str, &str)> = b.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        w.run(&b)
    };
    converged(&run("one"));
    assert_eq!(w.lines("restarts"), 1);
    w.reboot("boot-2");
    converged(&run("one"));
    assert_eq!(w.lines("restarts"), 1, "the same content restarted again");
    converged(&run("two"));
    assert_eq!(w.lines("restarts"), 2);
    // A handler that fails fails the step, and its event is not lost: the next attempt fires it again.
    std::fs::write(w.place.root.join("fail"), "").unwrap();
    assert_eq!(failure(&run("three")).kind, "exit");
    assert_eq!(w.lines("restarts"), 5);
    std::fs::remove_file(w.place.root.join("fail")).unwrap();
    converged(&run("three"));
    assert_eq!(w.lines("restarts"), 6);
    assert_eq!(std::fs::read_dir(w.place.dirs.unhandled()).unwrap().count(), 0);
}

#[test]
fn fault_12_an_unimportant_step_degrades_and_blocks_nobody() {
    let w = World::new();
    let e = w.run(&[
        ("000_motd.sh", "# agent: onFailure=continue retries=2\nfalse\n"),
        ("010_kubelet.sh", "echo k >>$T/log\n"),
    ]);
    assert_eq!(
        e.outcome,
        Outcome::Converged {
            changed: 0,
            degraded: vec!["000_motd.sh".into()]
        }
    );
    assert_eq!(w.read("log"), "k\n");
    assert!(w.state().applied.unwrap().degraded);
}

#[test]
fn fault_20_a_hostile_shell_set_up_and_a_german_locale_change_nothing() {
    let w = World::new();
    let base = &w.place.dirs.base;
    for rc in [".bashrc", ".bash_profile", ".profile"] {
        std::fs::write(base.join(rc), "exit 7\n").unwrap();
    }
    let e = w.run(&[(
        "000_a.sh",
        "# agent: retries=1\n[ \"$(printf %.1f 1.5)\" = 1.5 ]; [ -z \"${BASH_ENV-}\" ]; [ -z \"${LC_ALL-}\" ]\n",
    )]);
    converged(&e);
}

#[test]
fn fault_21_secrets_are_masked_and_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let mut s = Settings::default();
    s.env.insert("PACKAGES_PROXY_TOKEN".into(), "tok-123456".into());
    let w = World::with(s);
    std::fs::write(w.place.dirs.base.join("bootstrap-token"), "abcdef.0123456789\n").unwrap();
    let e = w.run(&[(
        "000_a.sh",
        "# agent: retries=3\necho token $PACKAGES_PROXY_TOKEN; cat $HOME/bootstrap-token >&2; false\n",
    )]);
    let f = failure(&e);
    assert_eq!(f.output, "***\n");
    let mut files = 0;
    let dir = w.place.dirs.runs().join(&e.run_id);
    for f in std::fs::read_dir(&dir).unwrap().flatten() {
        let text = std::fs::read_to_string(f.path()).unwrap();
        assert!(
            !text.contains("tok-123456") && !text.contains("0123456789"),
            "{text}"
        );
        assert_eq!(f.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        files += 1;
    }
    assert!(files >= 5, "{files}");
    assert_eq!(
        std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn fault_23_every_loop_of_events_ends() {
    let w = World::new();
    let e = w.run(&[(
        "000_a.sh",
        "# agent: retries=1\nagain() { n=$((n + 1)); bb-event-delay e $n; }\nbb-event-on e again\nbb-event-delay e\n",
    )]);
    let f = failure(&e);
    assert!(f.message.contains("exited with 12"), "{}", f.message);
}

#[test]
fn fault_24_content_that_changed_while_waiting_runs_fresh_and_its_hash_is_stored() {
    let w = World::with(Settings {
        approval: Approval::Ask,
        ..Settings::default()
    });
    let old = text_bundle(&[("000_a.sh", "echo old >>$T/log\n")]);
    let new = text_bundle(&[("000_a.sh", "echo new >>$T/log\n")]);
    let e = w.runner.run(&old, &Options::default()).unwrap();
    assert_eq!(e.outcome, Outcome::WaitingApproval);
    std::fs::write(w.place.dirs.approvals().join("update"), "").unwrap();
    converged(&w.runner.run(&new, &Options::default()).unwrap());
    assert_eq!(w.read("log"), "new\n");
    assert_eq!(w.state().applied.unwrap().content_hash, new.manifest.content_hash);
}

/// 20 members of a group, over and over: each its own workspace, shared flags, one journal.
#[test]
fn fault_25_parallel_steps_do_not_mix() {
    let rounds = if std::env::var_os("SLIPWAY_E2E").is_some() {
        100
    } else {
        3
    };
    for round in 0..rounds {
        let w = World::new();
        let texts: Vec<(String, String)> = (0..20)
            .map(|i| {
                (
                    format!("{i:03}_p.sh"),
                    format!(
                        "# agent: parallelGroup=g retries=1\nf=$(bb-tmp-file); echo {i} >$f; bb-flag-set shared\n\
                         echo {i} | bb-sync-file $T/out-{i} -; [ \"$(cat $f)\" = {i} ]; echo out {i}; exit $(({i} == 13))\n"
                    ),
                )
            })
            .collect();
        let steps: Vec<(&str, &str)> = texts.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        let e = w.run(&steps);
        let f = failure(&e);
        assert_eq!(f.step, "013_p.sh", "round {round}");
        let p = w.runner.progress(&w.state());
        assert_eq!(p.len(), 20);
        for (name, s) in &p {
            assert_eq!(s.done, name != "013_p.sh", "round {round}: {name}");
            assert!(s.changed);
        }
        for i in 0..20 {
            assert_eq!(w.read(&format!("out-{i}")), format!("{i}\n"));
        }
        // Only the failed member runs again.
        let e = w.run(&steps);
        assert_eq!(e.executed, 1);
        assert_eq!(failure(&e).step, "013_p.sh");
    }
}

#[test]
fn fault_26_a_reboot_that_is_refused_stays_requested() {
    let w = World::with(Settings {
        disruption: Disruption::Auto,
        ..Settings::default()
    });
    let steps = [(
        "000_a.sh",
        "[ -e $T/once ] || { : >$T/once; bb-flag-set reboot; }\n",
    )];
    *w.host.refuse.lock().unwrap() = Some("a job is pending".into());
    let e = w.run(&steps);
    assert!(
        matches!(e.outcome, Outcome::RebootPending { .. }),
        "{:?}",
        e.outcome
    );
    let r = w.state().reboot.unwrap();
    assert_eq!(
        (r.asked, r.error.as_str(), r.step.as_str()),
        (1, "a job is pending", "000_a.sh")
    );
    // A person sees it, with what to do, and the exit code is that of waiting.
    let said = crate::tick::verdict(&e.outcome).unwrap();
    assert_eq!(said.code, os_proto::codes::Code::Waiting);
    for part in [
        "it was refused: a job is pending",
        "asked for again",
        "systemctl list-jobs",
    ] {
        assert!(said.message.contains(part), "{said}");
    }
    assert_eq!(w.state().outcome, Some(e.outcome));
    assert!(w.place.dirs.flags().join("reboot").exists());
    // The next look asks again.
    *w.host.refuse.lock().unwrap() = None;
    let e = w.tick(&steps);
    assert!(crate::tick::verdict(&e.outcome).is_none(), "{:?}", e.outcome);
    assert_eq!(w.state().outcome, Some(e.outcome));
    let r = w.state().reboot.unwrap();
    assert_eq!((r.asked, r.error.as_str()), (2, ""));
    assert_eq!(*w.host.reboots.lock().unwrap(), 1);
    w.reboot("boot-2");
    converged(&w.tick(&steps));
    assert!(w.state().reboot.is_none());
    assert!(!w.place.dirs.flags().join("reboot").exists());
}
