#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;

#[test]
fn stdout_is_returned_and_stdin_is_passed() {
    let out = Cmd::new("cat").stdin_bytes("hello\n").run().unwrap();
    assert_eq!(out.stdout_text(), "hello\n");
}

#[test]
fn the_environment_is_ours() {
    let out = Cmd::new("env").env("X", "1").run().unwrap().stdout_text();
    assert!(out.contains("LC_ALL=C.UTF-8\n") && out.contains("TZ=UTC\n") && out.contains("X=1\n"));
    assert!(!out.contains("CARGO"), "{out}");
}

#[test]
fn a_failure_quotes_the_tail_of_stderr() {
    let e = Cmd::new("sh")
        .args(["-c", "echo one >&2; echo two >&2; exit 3"])
        .run()
        .unwrap_err();
    assert_eq!(e.message, "sh: exit 3\n  one\n  two");
    assert_eq!(e.kind, Kind::Build);
}

#[test]
fn a_signal_is_told_apart() {
    let e = Cmd::new("sh").args(["-c", "kill -9 $$"]).run().unwrap_err();
    assert_eq!(e.message, "sh: killed by signal 9");
}

#[test]
fn a_missing_program_names_its_package() {
    let e = Cmd::new("mke2fs").env("PATH", "/nonexistent").run().unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Tools, "DEP001"));
    assert!(e.message.contains("mke2fs (e2fsprogs)"), "{e}");
    let e = need_tools(&["sh", "no-such-tool"]).unwrap_err();
    assert!(
        e.message.starts_with("missing: no-such-tool (no-such-tool)"),
        "{e}"
    );
}

#[test]
fn a_limit_ends_the_program() {
    let e = Cmd::new("sleep")
        .arg("60")
        .timeout(Duration::from_millis(50))
        .run()
        .unwrap_err();
    assert!(e.message.starts_with("sleep: did not end within"), "{e}");
}

#[test]
fn a_background_child_that_keeps_the_pipe_does_not_hang_us() {
    let out = Cmd::new("sh")
        .args(["-c", "echo done; sleep 20 & exit 0"])
        .run()
        .unwrap();
    assert_eq!(out.stdout_text(), "done\n");
}

#[test]
fn lines_come_as_they_are_written() {
    let mut seen = Vec::new();
    Cmd::new("sh")
        .args(["-c", "printf 'a\\rb\\n'; printf c >&2"])
        .on_line(|stream, line| seen.push((stream, line.to_owned())))
        .run()
        .unwrap();
    seen.sort_by_key(|(_, l)| l.clone());
    assert_eq!(
        seen,
        [
            (Stream::Out, "a".to_owned()),
            (Stream::Out, "b".to_owned()),
            (Stream::Err, "c".to_owned())
        ]
    );
}

#[test]
fn a_huge_stderr_keeps_its_end() {
    let (status, out) = Cmd::new("sh")
        .args(["-c", "yes x | head -c 300000 >&2; echo end >&2"])
        .status()
        .unwrap();
    assert!(status.success());
    assert!(out.stderr_tail.len() <= STDERR_TAIL && out.stderr_tail.ends_with("end\n"));
}

#[test]
fn a_tree_is_entered_in_the_sandbox_only() {
    let e = Cmd::new("true").chroot(Utf8Path::new("/")).run().unwrap_err();
    assert_eq!(e.kind, Kind::Bug);
}
