//! What people did to an offline disk by mistake, and what they are told.

use super::*;
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

impl Bench {
    #[track_caller]
    fn refused_as(&self, running: &str, args: &[&str], code: &str, exit: i32) -> String {
        let r = self.run_as(running, args);
        assert_eq!(r.exit, exit, "{args:?}: {}{}", r.stdout, r.stderr);
        assert_eq!(r.json()["code"], code, "{args:?}: {}", r.stderr);
        r.stderr
    }

    /// Spoils the image on slot B.
    fn rot(&self) {
        let mut d = self.bytes();
        let at = d.windows(14).rposition(|w| w == b"VERSION_ID=\"2\"").unwrap();
        d[at] ^= 1;
        std::fs::write(&self.disk, d).unwrap();
    }

    /// Where the first environment copy lies.
    fn env_at(&self) -> usize {
        let env = self.env().encode();
        self.bytes().windows(512).position(|w| w == env).unwrap()
    }

    /// A stage that waits for a server which never answers.
    fn hanging_stage(&self, server: &TcpListener) -> Child {
        // The tests themselves may run below nohup.
        let mut plain = Command::new("env");
        plain.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_os-agent")]);
        self.hanging_stage_by(plain, server)
    }

    /// The same, started by another command line.
    fn hanging_stage_by(&self, mut command: Command, server: &TcpListener) -> Child {
        let url = format!("http://{}/update.img", server.local_addr().unwrap());
        let sum = "ab".repeat(32);
        let child = command
            .args(["stage", "--allow-http", "--image", &url, "--sha256", &sum])
            .args(["--disk", self.disk.as_str(), "--running", "A"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let state = self.disk.with_extension("img.state").join("state.json");
        let until = Instant::now() + Duration::from_secs(120);
        while !std::fs::read_to_string(&state).is_ok_and(|t| t.contains(&sum)) {
            assert!(Instant::now() < until, "the stage did not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }
}

#[test]
fn an_offline_commit_wants_a_slot_that_reads_as_recorded() {
    let b = Bench::new();
    let blank = b.bytes();
    let told = b.refused_as("B", &["commit"], "NotStaged", 3);
    assert!(told.contains("--force") && told.contains("--state"), "{told}");
    assert_eq!(b.bytes(), blank, "a blank slot does not become the default");
    // Half-written.
    let (file, sum) = b.file("v2.img", &image("2"));
    let other = sha256(b"other").to_string();
    b.refused(
        &["stage", "--image", &file, "--sha256", &other],
        "ChecksumMismatch",
        4,
    );
    b.refused_as("B", &["commit"], "NotStaged", 3);
    // Rotten.
    b.good(&["stage", "--image", &file, "--sha256", &sum]);
    b.rot();
    b.refused_as("B", &["commit"], "ChecksumMismatch", 4);
    assert_eq!(b.env().cur, Slot::A);
    // What never ran is no way back, and the way forward looks at the slot as well.
    b.refused(&["rollback"], "NothingToDo", 3);
    b.refused(&["activate"], "ChecksumMismatch", 4);
    // Somebody insists.
    let r = b.run_as("B", &["commit", "--force"]);
    assert_eq!(
        (r.exit, &r.json()["forced"]),
        (0, &Value::Bool(true)),
        "{}",
        r.stderr
    );
    assert_eq!(b.env().cur, Slot::B);
}

#[test]
fn an_operation_id_belongs_to_one_order_and_work_that_was_undone_is_done_again() {
    let b = Bench::new();
    let two = b.file("two", &image("2"));
    let three = b.file("three", &image("3"));
    let job = ["stage", "--image", &two.0, "--sha256", &two.1, "--op-id", "job-1"];
    assert_eq!(b.good(&job)["version"], "2");
    let r = b.run(&[
        "stage", "--image", &three.0, "--sha256", &three.1, "--op-id", "job-1",
    ]);
    assert_eq!((r.exit, r.json()["code"].as_str()), (2, Some("InvalidArgument")));
    assert!(
        r.stderr.contains(&two.1) && r.stderr.contains(&three.1),
        "{}",
        r.stderr
    );
    assert_eq!(b.good(&["status"])["slots"][1]["version"], "2");
    // Another version of the same image is another order as well.
    let mut other = job.to_vec();
    other.extend(["--version", "3"]);
    let told = b.refused_as("A", &other, "InvalidArgument", 2);
    assert!(
        told.contains("any version") && told.contains("version \"3\""),
        "{told}"
    );
    // The result as long as it is true.
    assert_eq!(b.good(&job)["written_bytes"], b.good(&job)["written_bytes"]);
    assert_eq!(b.good(&["history"])["operations"].as_array().unwrap().len(), 1);
    // Something else was staged since.
    b.good(&["stage", "--image", &three.0, "--sha256", &three.1]);
    let again = b.good(&job);
    assert_eq!(
        (again["version"].as_str(), again["digest"].as_str()),
        (Some("2"), Some(two.1.as_str()))
    );
    assert_eq!(b.good(&["status"])["slots"][1]["version"], "2");
    assert_eq!(b.good(&["verify-slot"])["ok"], true);
    let h = b.good(&["history"]);
    assert_eq!(
        (&h["operations"][0]["op_id"], &h["operations"][0]["result"]),
        (&Value::from("job-1"), &Value::from("done"))
    );
    // Arming too.
    b.good(&["activate", "--op-id", "arm-1"]);
    b.refused(
        &["activate", "--op-id", "arm-1", "--digest", &two.1],
        "InvalidArgument",
        2,
    );
    b.good(&["activate", "--op-id", "arm-1"]);
}

#[test]
fn a_failure_is_over_once_the_slot_is_right_again() {
    let b = Bench::new();
    let (file, sum) = b.file("v2.img", &image("2"));
    let other = sha256(b"other").to_string();
    b.refused(
        &["stage", "--image", &file, "--sha256", &other],
        "ChecksumMismatch",
        4,
    );
    let s = b.good(&["status"]);
    assert_eq!(s["last_failure"]["code"], "ChecksumMismatch");
    assert!(s["last_failure"]["at_unix"].as_i64().unwrap() > 0);
    b.good(&["stage", "--image", &file, "--sha256", &sum]);
    assert_eq!(b.good(&["status"])["last_failure"], Value::Null);
}

#[test]
fn a_stage_that_was_killed_is_shown_and_one_that_was_asked_to_stop_says_so() {
    let b = Bench::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(b.good(&["status"])["interrupted"], false);
    let mut child = b.hanging_stage(&server);
    child.kill().unwrap();
    child.wait().unwrap();
    let s = b.good(&["status"]);
    assert_eq!(
        (&s["interrupted"], s["operation"]["result"].as_str()),
        (&Value::Bool(true), Some("not finished"))
    );
    let text = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["status", "--disk", b.disk.as_str(), "--running", "A"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains(&format!("interrupted: stage of {}", "ab".repeat(32))),
        "{text}"
    );

    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let b = Bench::new();
        let child = b.hanging_stage(&server);
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let out = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(3), "{signal:?}: {told}");
        assert!(told.contains("os-agent: Cancelled: "), "{signal:?}: {told}");
        let s = b.good(&["status"]);
        assert_eq!(
            (&s["interrupted"], s["last_failure"]["code"].as_str()),
            (&Value::Bool(false), Some("Cancelled"))
        );
    }
}

#[test]
fn a_state_that_was_torn_leaves_the_version_before_it() {
    let b = Bench::new();
    let (file, sum) = b.file("v2.img", &image("2"));
    b.good(&["stage", "--image", &file, "--sha256", &sum]);
    let state = b.disk.with_extension("img.state").join("state.json");
    for torn in ["", "{\"schema\":1,\"oper"] {
        std::fs::write(&state, torn).unwrap();
        let told = b.good(&["status"]).to_string();
        assert!(told.contains("the version before it is used"), "{told}");
        let history = b.good(&["history"]).to_string();
        assert!(history.contains(&sum), "{history}");
    }
}

#[test]
fn a_server_that_fails_does_not_condemn_the_image() {
    let b = Bench::new();
    let (file, sum) = b.file("v2.img", &image("2"));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/update.img", server.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for conn in server.incoming() {
            let mut c = conn.unwrap();
            let _ = c.read(&mut [0; 4096]);
            let _ = c.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    for _ in 0..7 {
        b.refused(
            &["stage", "--allow-http", "--image", &url, "--sha256", &sum],
            "FetchFailed",
            5,
        );
    }
    b.good(&["stage", "--image", &file, "--sha256", &sum]);
}

#[test]
fn what_an_image_calls_itself_does_not_steer_the_terminal() {
    let b = Bench::new();
    let (file, sum) = b.file("v2.img", &image("\u{1b}[2J\u{9b}31m"));
    for args in [&["stage", "--image", &file, "--sha256", &sum][..], &["status"]] {
        let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(args)
            .args(["--disk", b.disk.as_str(), "--running", "A"])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        for told in [&out.stdout, &out.stderr] {
            let text = std::str::from_utf8(told).unwrap();
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        }
    }
    let text = serde_json::to_string(&b.good(&["status"])).unwrap();
    assert!(text.contains("[2J"), "JSON keeps it: {text}");
}

#[test]
fn a_stage_below_nohup_outlives_its_terminal() {
    use rustix::process::{Pid, Signal, kill_process};
    let b = Bench::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut nohup = Command::new("nohup");
    nohup.arg(env!("CARGO_BIN_EXE_os-agent"));
    let mut child = b.hanging_stage_by(nohup, &server);
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it goes on");
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn looking_at_a_damaged_environment_does_not_claim_to_have_mended_it() {
    let b = Bench::new();
    let (file, sum) = b.file("v2.img", &image("2"));
    let at = b.env_at();
    let problem = |s: &Value| {
        s["problems"][0]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let mut d = b.bytes();
    d[at..at + 512].fill(0xa5);
    std::fs::write(&b.disk, &d).unwrap();
    let told = problem(&b.good(&["status"]));
    assert!(told.contains("next command that changes something"), "{told}");
    assert_eq!(b.bytes(), d);
    // Both copies: who runs is only a claim, so nothing is made the default by the way.
    for w in [4096, 8192, 12288, 16384] {
        let copy = &mut d[at + w..at + w + 512];
        if copy.starts_with(b"# GRUB") {
            copy.fill(0xa5);
        }
    }
    std::fs::write(&b.disk, &d).unwrap();
    let s = b.good(&["status"]);
    assert_eq!(s["problems"][0]["code"], "EnvLost", "{s:#}");
    assert!(problem(&s).contains("doctor --repair-state"), "{s:#}");
    b.refused_as(
        "B",
        &["stage", "--image", &file, "--sha256", &sum],
        "StateBroken",
        4,
    );
    assert_eq!(b.bytes(), d);
    // Nobody's word makes a blank slot the default.
    for slot in ["A", "B"] {
        let told = b.refused_as(slot, &["doctor", "--repair-state"], "NotStaged", 3);
        assert!(told.contains("no system") && told.contains("--force"), "{told}");
        assert_eq!(b.bytes(), d);
    }
    b.plant(Slot::A, &image("1"));
    let r = b.run(&["doctor", "--repair-state"]);
    assert_eq!(r.exit, 0, "{}", r.stderr);
    b.good(&["stage", "--image", &file, "--sha256", &sum]);
}

#[test]
fn a_repair_of_os_state_believes_a_record_only_when_the_slot_reads_like_it() {
    let b = Bench::new();
    let at = b.env_at() & !0xffff;
    let spoil = || {
        let mut d = b.bytes();
        d[at..at + (64 << 10)].fill(0xa5);
        std::fs::write(&b.disk, &d).unwrap();
    };
    let repair = ["doctor", "--repair-state"];
    // Half-written.
    let (file, _) = b.file("v2.img", &image("2"));
    let other = sha256(b"other").to_string();
    b.refused(
        &["stage", "--image", &file, "--sha256", &other],
        "ChecksumMismatch",
        4,
    );
    spoil();
    b.refused_as("B", &repair, "NotStaged", 3);
    let r = b.run_as("B", &["doctor", "--repair-state", "--force"]);
    assert_eq!((r.exit, r.json()["cur"].as_str()), (0, Some("B")), "{}", r.stderr);
    // Whole, and then rotten.
    let b = Bench::new();
    b.stage("v2.img", &image("2"));
    let spoil = || {
        let mut d = b.bytes();
        d[at..at + (64 << 10)].fill(0xa5);
        std::fs::write(&b.disk, &d).unwrap();
    };
    spoil();
    assert_eq!(b.run_as("B", &repair).exit, 0);
    spoil();
    b.rot();
    b.refused_as("B", &repair, "ChecksumMismatch", 4);
    // On a node the slot that runs needs no proof, so there is nothing to force.
    let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["doctor", "--repair-state", "--force"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
}

/// Everything below a directory: name, size, time of the last change, content.
fn listing(dir: &Utf8Path) -> Vec<(String, i64, i64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;
    let mut out = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(d) = todo.pop() {
        for e in d.read_dir_utf8().unwrap() {
            let p = e.unwrap().path().to_owned();
            let m = p.symlink_metadata().unwrap();
            if m.is_dir() {
                todo.push(p.clone());
            }
            let content = if m.is_file() {
                std::fs::read(&p).unwrap()
            } else {
                Vec::new()
            };
            out.push((p.into_string(), m.mtime(), m.mtime_nsec(), content));
        }
    }
    out.sort();
    out
}

#[test]
fn looking_leaves_no_trace_on_disk_or_in_the_state() {
    let looks: &[&[&str]] = &[
        &["status"],
        &["history"],
        &["doctor"],
        &["report"],
        &["verify-slot", "A"],
        &["stage", "--dry-run", "--image", "https://x.invalid/y", "--sha256"],
        &["configure", "--dry-run"],
    ];
    let b = Bench::new();
    let args = b.file(
        "args.yaml",
        b"- model: grub.cmdline.next\n  contents: [{key: debug}]\n",
    );
    let zero = "00".repeat(32);
    let look_all = |what: &str| {
        let before = listing(&b.dir);
        for look in looks {
            let mut look = look.to_vec();
            match look[0] {
                "stage" => look.push(&zero),
                "configure" => look.push(&args.0),
                _ => {}
            }
            let r = b.run(&look);
            assert!(
                !r.stdout.is_empty() && r.exit != 2,
                "{look:?}: {}{}",
                r.stdout,
                r.stderr
            );
            assert!(listing(&b.dir) == before, "{look:?} wrote something: {what}");
        }
    };
    look_all("no state");
    b.stage("v2.img", &image("2"));
    look_all("staged");
    b.good(&["activate"]);
    b.count(3);
    look_all("fell back, not noted yet");
    let state = b.disk.with_extension("img.state");
    // As an agent of before left it: no room was kept, and the file is torn.
    for name in [".state.json.spare", "lock"] {
        std::fs::remove_file(state.join(name)).unwrap();
    }
    std::fs::write(state.join("state.json"), "{\"schema\":").unwrap();
    std::fs::remove_dir_all(state.join("slots")).unwrap();
    look_all("damaged");
}

/// On this machine itself, in a mount namespace in which its state directory is empty.
#[test]
fn doctor_on_a_node_leaves_no_state_directory_behind() {
    let script = "mount -t tmpfs none /var/lib && { \"$1\" doctor --json; \"$1\" report >/dev/null; ls -A /var/lib >&2; }";
    let out = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_os-agent"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() && out.stdout.is_empty() {
        assert!(!rustix::process::geteuid().is_root(), "{told}");
        eprintln!("not run: no user namespaces here: {told}");
        return;
    }
    assert!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["checks"].is_array());
    assert_eq!(told.trim(), "", "something was left in /var/lib");
}

#[test]
fn a_slot_found_rotten_is_not_staged_any_more_and_not_armed() {
    for armed in [false, true] {
        let b = Bench::new();
        b.stage("v2.img", &image("2"));
        if armed {
            b.good(&["activate"]);
        }
        assert_eq!(b.good(&["verify-slot"])["ok"], true);
        b.rot();
        let r = b.run(&["verify-slot"]);
        assert_eq!(r.exit, 4, "{}", r.stderr);
        assert!(r.stderr.contains("MediumCorrupt"), "{}", r.stderr);
        let s = b.good(&["status"]);
        assert_eq!(
            (
                s["slots"][1]["state"].as_str(),
                s["last_failure"]["code"].as_str(),
                s["phase"].as_str()
            ),
            (Some("dirty"), Some("MediumCorrupt"), Some("idle"))
        );
        assert_eq!(b.env().try_slot, None);
        b.refused(&["activate"], "NotStaged", 3);
        b.stage("v2.img", &image("2"));
        b.good(&["activate"]);
    }
}

#[test]
fn a_dry_run_looks_at_a_file_and_says_what_it_did_not_look_at() {
    let b = Bench::new();
    let good = b.file("good", &image("2"));
    let html = b.file("page", b"<!DOCTYPE html><html><body>404</body></html>");
    let mut huge = image("9");
    huge.resize(4 * MIB as usize + 4096, 1);
    let huge = b.file("huge", &huge);
    let zero = "00".repeat(32);
    let dry = |image: &str| ["stage", "--dry-run", "--image", image, "--sha256", &zero].join("\n");
    for (image, code, exit) in [
        ("/nonexistent/x.img", "InvalidArgument", 2),
        (html.0.as_str(), "NotAPayload", 4),
        (huge.0.as_str(), "SlotTooSmall", 3),
    ] {
        let args = dry(image);
        b.refused(&args.split('\n').collect::<Vec<_>>(), code, exit);
    }
    for (image, word) in [(good.0.as_str(), "checksum"), ("https://x.invalid/y", "address")] {
        let args = dry(image);
        let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(args.split('\n'))
            .args(["--disk", b.disk.as_str(), "--running", "A"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success() && text.contains(word) && text.contains("not"),
            "{text}"
        );
    }
    assert!(!b.disk.with_extension("img.state").exists());
}

#[test]
fn wrong_usage_is_told_in_json_and_in_the_words_that_help() {
    let b = Bench::new();
    let good = b.file("good", &image("2"));
    let stage = |image: &str, sum: &str| b.run(&["stage", "--image", image, "--sha256", sum]);
    let r = b.run(&["stage"]);
    assert_eq!((r.exit, r.json()["code"].as_str()), (2, Some("InvalidArgument")));
    assert!(r.json()["message"].as_str().unwrap().contains("--image"));
    assert!(b.run(&["stage", "--help"]).stdout.contains("Examples"));
    for args in [
        vec!["activate", "--deadline-secs", "59"],
        vec!["activate", "--deadline-secs", "86401"],
        vec!["stage", "--image", "", "--sha256", &good.1],
        vec![
            "stage",
            "--image",
            &good.0,
            "--sha256",
            &good.1,
            "--limit-rate",
            "1M",
        ],
    ] {
        b.refused(&args, "InvalidArgument", 2);
    }
    // A whole disk, plain, larger than any payload, and packed.
    let disk = b.bytes();
    let whole = b.file("system.img", &disk);
    let packed = b.file("system.img.zst", &zstd::encode_all(disk.as_slice(), 1).unwrap());
    let large = b.file("large.img", &disk);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&large.0)
        .unwrap()
        .set_len(200 << 20)
        .unwrap();
    for image in [whole, packed, large] {
        let r = stage(&image.0, &image.1);
        assert_eq!(
            (r.exit, r.json()["code"].as_str()),
            (4, Some("NotAPayload")),
            "{}",
            r.stderr
        );
        assert!(r.stderr.contains("use update.img"), "{}", r.stderr);
    }
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&image("2")).unwrap();
    let mut gz = gz.finish().unwrap();
    gz.extend_from_slice(&[0x1f]);
    let gz = b.file("v2.img.gz", &gz);
    let r = stage(&gz.0, &gz.1);
    assert!(r.exit == 4 && r.stderr.contains("follow its end"), "{}", r.stderr);
    // No place for the state, and a state that cannot be read.
    let below = format!("{}/state", good.0);
    let args = [
        "stage", "--image", &good.0, "--sha256", &good.1, "--state", &below,
    ];
    let r = b.run(&args);
    assert_eq!((r.exit, r.json()["code"].as_str()), (5, Some("StateWriteFailed")));
    assert!(
        r.stderr.contains("Not a directory") && r.stderr.contains("--state"),
        "{}",
        r.stderr
    );
    let state = b.dir.join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("state.json"), "{").unwrap();
    let s = b.good(&["status", "--state", state.as_str()]);
    assert_eq!(s["problems"][0]["code"], "StateBroken");
}

#[test]
fn persist_of_an_image_grows_its_partition_and_says_what_is_left() {
    let b = Bench::new();
    let file = std::fs::OpenOptions::new().write(true).open(&b.disk).unwrap();
    file.set_len(b.bytes().len() as u64 + 4 * MIB).unwrap();
    let copy = b.dir.join("copy.img");
    std::fs::copy(&b.disk, &copy).unwrap();
    let r = b.good(&["grow-persist"]);
    assert_eq!(
        (&r["changed"], &r["file_system_bytes"]),
        (&Value::Bool(true), &Value::Null)
    );
    assert!(r["partition_bytes"].as_u64() > r["partition_bytes_before"].as_u64());
    assert_eq!(b.good(&["grow-persist"])["changed"], false);
    let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["grow-persist", "--disk", copy.as_str(), "--running", "A"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("file system grows when the node boots"), "{text}");
}

#[test]
fn a_server_that_cannot_be_reached_is_not_waited_for_in_silence() {
    let b = Bench::new();
    // A port that nobody listens on.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = b.dir.join("c.toml");
    std::fs::write(
        &config,
        "[fetch]\nretry_limit = 3\nretry_first_ms = 300\nretry_max_ms = 500\n",
    )
    .unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args([
            "stage",
            "--allow-http",
            "--image",
            &format!("http://127.0.0.1:{port}/x"),
        ])
        .args(["--sha256", &"ab".repeat(32), "--config", config.as_str()])
        .args(["--disk", b.disk.as_str(), "--running", "A"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(5), "{told}");
    assert!(
        told.contains("try 2 of 3") && told.contains("try 3 of 3"),
        "{told}"
    );
}

#[test]
fn kf_a5_a_second_process_on_the_same_disk_is_told_to_wait() {
    let b = Bench::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = b.hanging_stage(&server);
    let (file, sum) = b.file("v2.img", &image("2"));
    let stage = ["stage", "--image", &file, "--sha256", &sum];
    let before = b.bytes();
    for _ in 0..3 {
        b.refused_as("A", &stage, "Busy", 3);
    }
    assert_eq!(b.bytes(), before);
    child.kill().unwrap();
    child.wait().unwrap();
    b.good(&stage);
    let slot = b.region(Slot::B);
    assert_eq!(b.bytes()[slot][..image("2").len()], image("2")[..]);
}

#[test]
fn kf_a11_staging_needs_no_room_beside_the_slot() {
    let b = Bench::new();
    let mut two = image("2");
    two.resize(3 << 20, 7);
    let state = b.disk.with_extension("img.state");
    let held = || -> u64 { listing(&state).iter().map(|f| f.3.len() as u64).sum() };
    let file = b.file("v2.img", &zstd::encode_all(two.as_slice(), 1).unwrap());
    let other = sha256(b"other").to_string();
    // Failed attempts leave nothing behind, however many.
    for _ in 0..3 {
        b.refused(
            &["stage", "--image", &file.0, "--sha256", &other],
            "ChecksumMismatch",
            4,
        );
        assert!(held() < 300 << 10, "{}", held());
    }
    let r = b.good(&["stage", "--image", &file.0, "--sha256", &file.1]);
    assert!(held() < 300 << 10, "{}", held());
    let written = r["written_bytes"].as_u64().unwrap();
    assert!(written <= two.len() as u64 / 100 * 105, "{written}");
}
