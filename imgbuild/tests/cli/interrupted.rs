//! Signals, SIGKILL, a full disk, two builds at once: earlier results stay, no partial ones appear, nothing is left behind.

use super::{Bench, Run, names};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A recipe whose build takes a while: more to hash.
fn slow(b: &Bench) {
    b.write(
        "r.toml",
        &super::RECIPE.replace("slot_mib = 32", "slot_mib = 600"),
    );
}

fn start(b: &Bench) -> Child {
    // The tests themselves may run below nohup.
    start_by(b, &["env", "--default-signal=HUP"])
}

/// Starts a build by a program that replaces itself with it.
fn start_by(b: &Bench, by: &[&str]) -> Child {
    let plain = b.command(&["build", "r.toml", "--out", "out"]);
    let mut c = Command::new(by[0]);
    c.args(&by[1..]).arg(plain.get_program()).args(plain.get_args());
    c.current_dir(plain.get_current_dir().unwrap());
    for (name, value) in plain.get_envs() {
        match value {
            Some(v) => c.env(name, v),
            None => c.env_remove(name),
        };
    }
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    c.process_group(0).spawn().unwrap()
}

/// Waits until the working directory holds this file.
#[track_caller]
fn wait_for(b: &Bench, file: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !b.path(".out.imgbuild").join(file).exists() {
        assert!(Instant::now() < end, "{file} did not appear");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), "--", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

fn earlier_result(b: &Bench) {
    std::fs::create_dir(b.path("out")).unwrap();
    b.write("out/SHA256SUMS", "earlier");
    b.write("out/system.img", "earlier");
}

fn only_the_earlier_result(b: &Bench) {
    assert_eq!(b.names(), ["out", "r.toml", "tree"]);
    assert_eq!(names(&b.path("out")), ["SHA256SUMS", "system.img"]);
    assert_eq!(
        std::fs::read_to_string(b.path("out/system.img")).unwrap(),
        "earlier"
    );
}

#[test]
fn ctrl_c_termination_and_a_closed_terminal_end_it_soon_and_change_nothing() {
    for (name, code, at) in [
        ("HUP", 129, "root.img"),
        ("INT", 130, "root.img"),
        ("TERM", 143, "out/system.img"),
    ] {
        let b = Bench::new();
        slow(&b);
        earlier_result(&b);
        let child = start(&b);
        wait_for(&b, at);
        let begin = Instant::now();
        signal(&child, name);
        let run = Run::of(child.wait_with_output().unwrap());
        assert!(begin.elapsed() < Duration::from_secs(5));
        run.fails(code, "interrupted; nothing was changed");
        only_the_earlier_result(&b);
    }
}

#[test]
fn a_build_below_nohup_outlives_its_terminal() {
    let b = Bench::new();
    slow(&b);
    let child = start_by(&b, &["nohup"]);
    wait_for(&b, "root.img");
    signal(&child, "HUP");
    let run = Run::of(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(b.path("out/system.img").exists());
}

#[test]
fn a_killed_build_leaves_no_result_and_the_next_one_cleans_up() {
    let b = Bench::new();
    slow(&b);
    earlier_result(&b);
    let mut child = start(&b);
    wait_for(&b, "root.img");
    signal(&child, "KILL");
    child.wait().unwrap();
    assert_eq!(names(&b.path("out")), ["SHA256SUMS", "system.img"]);
    assert_eq!(
        b.names(),
        [".out.imgbuild", "out", "r.toml", "tree"],
        "one working directory remains"
    );
    b.write("r.toml", super::RECIPE);
    b.run(&["build", "r.toml", "--out", "out", "-q"]).succeeds();
    assert_eq!(b.names(), ["out", "r.toml", "tree"]);
    b.run(&["verify", "out"]).succeeds();
}

#[test]
fn a_killed_worker_is_reported_and_cleaned_up() {
    let b = Bench::new();
    slow(&b);
    let child = start(&b);
    wait_for(&b, "root.img");
    let worker = Command::new("pgrep")
        .args(["-P", &child.id().to_string()])
        .output()
        .unwrap();
    let worker = String::from_utf8(worker.stdout).unwrap();
    let killed = Command::new("kill")
        .args(["-KILL", worker.trim()])
        .status()
        .unwrap();
    assert!(killed.success());
    Run::of(child.wait_with_output().unwrap())
        .fails(1, "error[BUG002] the build process was killed by signal 9");
    assert_eq!(b.names(), ["r.toml", "tree"]);
}

#[test]
fn the_second_build_into_the_same_directory_is_refused_at_once() {
    let b = Bench::new();
    slow(&b);
    let mut child = start(&b);
    wait_for(&b, "root.img");
    let run = b.run(&["build", "r.toml", "--out", "./out/"]);
    run.fails(203, "error[LOCK001]");
    assert!(
        run.err.contains(&format!("pid {}, since 20", child.id())),
        "{run:?}"
    );
    signal(&child, "INT");
    child.wait().unwrap();
}

#[test]
fn builds_into_different_directories_run_at_the_same_time() {
    let b = Bench::new();
    let children: Vec<Child> = ["a", "b", "c"]
        .iter()
        .map(|out| {
            b.command(&["build", "r.toml", "--out", out, "-q"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        Run::of(child.wait_with_output().unwrap()).succeeds();
    }
    let sums = |out: &str| std::fs::read(b.path(out).join("SHA256SUMS")).unwrap();
    assert!(sums("a") == sums("b") && sums("b") == sums("c"));
}

/// A file size limit stands in for a full disk that an ordinary user cannot make: the write fails in the middle.
#[test]
fn a_disk_that_fills_up_gives_one_clear_error() {
    let b = Bench::new();
    earlier_result(&b);
    std::fs::write(b.path("tree/usr/big"), vec![5; 16 << 20]).unwrap();
    let mut sh = Command::new("sh");
    sh.args([
        "-c",
        "trap '' XFSZ; ulimit -f 200000; exec \"$0\" build r.toml --out out",
    ])
    .arg(env!("CARGO_BIN_EXE_imgbuild"))
    .current_dir(b.path(""));
    // 100 MB: the root image of 32 MiB can be made, the disk image cannot.
    Run::of(sh.output().unwrap()).fails(6, "error[IO028] ");
    only_the_earlier_result(&b);
}

/// The real thing, where user namespaces allow an ordinary user to mount a small tmpfs.
#[test]
fn a_small_tmpfs_as_the_output_disk() {
    let b = Bench::new();
    let script = "mkdir small && mount -t tmpfs -o size=20m none small && cd small && \
                  \"$0\" build ../r.toml --out out; echo code=$?; ls -A";
    let out = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_imgbuild"))
        .current_dir(b.path(""))
        .output();
    let Ok(out) = out else {
        eprintln!("skipped: no unshare here");
        return;
    };
    let run = Run::of(out);
    if !run.out.contains("code=") {
        eprintln!("skipped: user namespaces are not allowed here: {}", run.err);
        return;
    }
    assert_eq!(run.out, "code=6\n", "{run:?}");
    run.fails(0, "error[IO028] ");
}
