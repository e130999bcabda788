use super::*;

fn bash(script: &str, timeout: Duration, grace: Duration) -> (Ended, String) {
    become_subreaper();
    let mut out = Vec::new();
    let stop = Stop::default();
    let spec = Spec {
        program: "/bin/bash",
        args: &["--noprofile", "--norc", "-c", script],
        env: &[("PATH".into(), "/usr/bin:/bin".into())],
        cwd: Utf8Path::new("/"),
        timeout,
        grace,
        group: None,
        trace: false,
        stop: &stop,
    };
    let e = run(&spec, &mut |_, b| out.extend_from_slice(b)).unwrap();
    (e, String::from_utf8_lossy(&out).into_owned())
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn status_signal_and_output() {
    let (e, out) = bash("echo out; echo err >&2; exit 3", LONG, GRACE);
    assert_eq!((e.exit, e.signal, e.timed_out), (Some(3), None, false));
    assert!(out.contains("out") && out.contains("err"));
    let (e, _) = bash("kill -9 $$", LONG, GRACE);
    assert_eq!((e.exit, e.signal), (None, Some(9)));
}

/// Pids printed by the script must be gone soon: killed is a moment before gone.
fn all_gone(text: &str) {
    assert!(text.split_whitespace().count() > 0);
    for pid in text.split_whitespace() {
        let there = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ") && !stat.contains(") X ")
        };
        for _ in 0..500 {
            if !there() {
                break;
            }
            crate::sys::clock::sleep(Duration::from_millis(10), &Stop::default());
        }
        assert!(!there(), "process {pid} is still there");
    }
}

#[test]
fn a_hanging_tree_is_killed_whole_also_where_it_made_sessions() {
    let (e, out) = bash(
        "trap '' TERM; sleep 300 & echo $!; setsid sleep 300 & echo $!; (setsid bash -c 'trap \"\" TERM; echo $BASHPID; sleep 300' &) ; sleep 300",
        Duration::from_millis(700),
        Duration::from_millis(300),
    );
    assert!(e.timed_out, "{e:?}");
    all_gone(&out);
}

#[test]
fn a_daemon_is_ended_with_its_step_and_holds_nobody() {
    let (e, out) = bash(
        "setsid bash -c 'sleep 300 & echo $BASHPID $!; wait' & sleep 0.3; exit 0",
        LONG,
        GRACE,
    );
    assert_eq!(e.exit, Some(0));
    assert!(e.took < Duration::from_secs(50), "{e:?}");
    all_gone(&out);
}

#[test]
fn a_stop_ends_it() {
    let stop = Stop::default();
    stop.stop();
    let spec = Spec {
        program: "/bin/bash",
        args: &["-c", "sleep 300"],
        env: &[("PATH".into(), "/usr/bin:/bin".into())],
        cwd: Utf8Path::new("/"),
        timeout: LONG,
        grace: GRACE,
        group: None,
        trace: false,
        stop: &stop,
    };
    let e = run(&spec, &mut |_, _| {}).unwrap();
    assert!(e.stopped && !e.ok(), "{e:?}");
}

#[test]
fn helpers_answer_or_say_why_not() {
    let (ok, text) = helper("/bin/bash", &["-c", "echo why; exit 1"], LONG).unwrap();
    assert!(!ok && text == "why");
    assert!(
        helper("/nonexistent", &[], LONG)
            .unwrap_err()
            .contains("/nonexistent")
    );
}
