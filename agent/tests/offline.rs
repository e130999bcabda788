//! The real program on a disk image: no daemon, no root. Every refusal with its code and exit code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use camino::{Utf8Path, Utf8PathBuf};
use os_agent::testdisk::{TestDisk, foreign_lock};
use os_agent::testing::{image, image_without, sha256};
use os_proto::env_block::Env;
use os_proto::layout::{MIB, Slot};
use serde_json::Value;
use std::io::Write;
use std::process::Command;

#[path = "offline/cases.rs"]
mod cases;
mod common;
#[path = "offline/full.rs"]
mod full;

use common::Ran;

struct Bench {
    _dir: Option<tempfile::TempDir>,
    dir: Utf8PathBuf,
    disk: Utf8PathBuf,
}

impl Bench {
    fn new() -> Bench {
        Bench::on(512)
    }

    fn on(sector: u32) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
        Bench {
            _dir: Some(dir),
            ..Bench::at(path, sector)
        }
    }

    /// With its disk in a directory that is there.
    fn at(dir: Utf8PathBuf, sector: u32) -> Bench {
        let disk = dir.join("disk.img");
        TestDisk {
            sector,
            ..TestDisk::default()
        }
        .create(&disk);
        Bench {
            _dir: None,
            dir,
            disk,
        }
    }

    fn file(&self, name: &str, data: &[u8]) -> (String, String) {
        let p = self.dir.join(name);
        std::fs::write(&p, data).unwrap();
        (p.into_string(), sha256(data).to_string())
    }

    fn run_as(&self, running: &str, args: &[&str]) -> Ran {
        let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(args)
            .args(["--disk", self.disk.as_str(), "--running", running, "--json"])
            .output()
            .unwrap();
        Ran::from(out)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_as("A", args)
    }

    #[track_caller]
    fn good(&self, args: &[&str]) -> Value {
        let r = self.run(args);
        assert_eq!(r.exit, 0, "{args:?}: {}{}", r.stdout, r.stderr);
        r.json()
    }

    #[track_caller]
    fn refused(&self, args: &[&str], code: &str, exit: i32) {
        let r = self.run(args);
        assert_eq!(r.exit, exit, "{args:?}: {}{}", r.stdout, r.stderr);
        assert!(
            r.stderr.starts_with(&format!("os-agent: {code}: ")),
            "{args:?}: {}",
            r.stderr
        );
        assert_eq!(r.json()["code"], code);
    }

    fn stage(&self, name: &str, data: &[u8]) -> Value {
        let (file, sum) = self.file(name, data);
        self.good(&["stage", "--image", &file, "--sha256", &sum])
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.disk).unwrap()
    }

    /// Where a slot lies.
    fn region(&self, slot: Slot) -> std::ops::Range<usize> {
        let layout = os_agent::sys::discover::offline(&self.disk, Slot::A).unwrap();
        let r = layout.region(slot.role()).unwrap();
        r.offset as usize..(r.offset + r.size) as usize
    }

    /// Puts an image into a slot, as a factory does.
    fn plant(&self, slot: Slot, data: &[u8]) {
        let at = self.region(slot).start;
        let mut d = self.bytes();
        d[at..at + data.len()].copy_from_slice(data);
        std::fs::write(&self.disk, d).unwrap();
    }

    fn env(&self) -> Env {
        let s = self.good(&["status"]);
        let slot = |k: &str| s["env"][k].as_str().map(|t| t.parse::<Slot>().unwrap());
        Env {
            cur: slot("cur").unwrap(),
            try_slot: slot("try_slot"),
            left: s["env"]["left"].as_u64().map(|n| n as u8),
            gen_: s["env"]["gen"].as_u64().unwrap() as u32,
        }
    }

    /// What GRUB does when it counts `n` boots.
    fn count(&self, n: u8) {
        let before = self.env().encode();
        let mut after = self.env();
        after.left = after.left.map(|l| l - n);
        let mut d = self.bytes();
        // Only env1 is touched.
        let at = d.windows(512).position(|w| w == before).unwrap();
        d[at..at + 512].copy_from_slice(&after.encode());
        std::fs::write(&self.disk, d).unwrap();
    }
}

/// An answer that could not be written is no success: a report redirected onto a full disk would be cut unnoticed.
#[test]
fn an_answer_that_is_lost_is_told() {
    let b = Bench::new();
    for args in [&["status", "--json"][..], &["history", "--json"], &["status"]] {
        let o = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(&args[..1])
            .args(["--disk", b.disk.as_str(), "--running", "A"])
            .args(&args[1..])
            .stdout(std::fs::File::options().write(true).open("/dev/full").unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!(o.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output"), "{said}");
    }
}

#[test]
fn stage_status_activate_try_commit() {
    let b = Bench::new();
    let r = b.stage("v2.img", &image("2"));
    assert_eq!(
        (r["slot"].as_str(), r["version"].as_str()),
        (Some("B"), Some("2"))
    );
    assert!(r["written_bytes"].as_u64().unwrap() <= image("2").len() as u64 + MIB);
    let s = b.good(&["status"]);
    assert_eq!(s["phase"], "staged");
    assert_eq!(s["slots"][1]["state"], "verified");
    let again = b.stage("v2.img", &image("2"));
    assert_eq!(again["already_staged"], true);
    let r = b.good(&["activate"]);
    assert_eq!(r["slot"], "B");
    assert_eq!(b.env().try_slot, Some(Slot::B));
    assert_eq!(b.good(&["status"])["phase"], "armed");
    b.count(1);
    let s = b.run_as("B", &["status"]).json();
    assert_eq!(
        (s["phase"].as_str(), s["version_id"].as_str()),
        (Some("trial"), Some("2"))
    );
    assert_eq!(s["trial"]["tries_left"], 2);
    let r = b.run_as("B", &["commit"]);
    assert_eq!(r.exit, 0, "{}", r.stderr);
    assert_eq!(b.run_as("B", &["commit"]).json()["already"], true);
    let s = b.run_as("B", &["status"]).json();
    assert_eq!(
        (s["phase"].as_str(), s["env"]["cur"].as_str()),
        (Some("idle"), Some("B"))
    );
    assert_eq!(s["slots"][1]["state"], "committed");
    let h = b.run_as("B", &["history"]).json();
    let kinds: Vec<&str> = h["operations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["commit", "activate", "stage", "stage"]);
    assert_eq!(b.run_as("B", &["verify-slot", "B"]).json()["ok"], true);
}

#[test]
fn t30_a_full_cycle_on_sectors_of_4096_bytes_with_an_unaligned_tail() {
    let b = Bench::on(4096);
    let mut v2 = image("2");
    v2.resize(v2.len() + 512, 0);
    b.stage("v2.img", &v2);
    b.good(&["activate"]);
    b.count(1);
    assert_eq!(b.run_as("B", &["status"]).json()["phase"], "trial");
    assert_eq!(b.run_as("B", &["commit"]).exit, 0);
    let r = b.run_as("B", &["verify-slot", "B"]).json();
    assert_eq!(
        (&r["ok"], r["image_sha256"].as_str()),
        (&Value::Bool(true), Some(sha256(&v2).to_string().as_str()))
    );
    // And back from B into A.
    let (file, sum) = b.file("v3.img", &image("3"));
    assert_eq!(
        b.run_as("B", &["stage", "--image", &file, "--sha256", &sum])
            .json()["slot"],
        "A"
    );
    let s = b.run_as("B", &["status"]).json();
    assert_eq!(
        (s["env"]["cur"].as_str(), s["phase"].as_str()),
        (Some("B"), Some("staged"))
    );
}

#[test]
fn three_silent_tries_then_denied_then_forgotten() {
    let b = Bench::new();
    let (file, sum) = b.file("v3.img", &image("3"));
    let stage = ["stage", "--image", &file, "--sha256", &sum];
    b.good(&stage);
    b.good(&["activate"]);
    b.count(3);
    let s = b.good(&["status"]);
    assert_eq!(
        (s["phase"].as_str(), s["last_failure"]["cause"].as_str()),
        (Some("fell_back"), Some("no_report"))
    );
    assert_eq!(b.env().try_slot, Some(Slot::B), "looking changes nothing");
    b.refused(&stage, "DigestFailedBefore", 3);
    assert_eq!(
        b.env().try_slot,
        None,
        "the first command that may write tidies up"
    );
    b.good(&["forget", &sum]);
    b.refused(&["forget", &sum], "NothingToDo", 3);
    b.good(&stage);
}

#[test]
fn refusals_leave_the_disk_alone() {
    let b = Bench::new();
    let before = b.bytes();
    let html = b.file("page", b"<!DOCTYPE html><html><body>404</body></html>");
    let noise = b.file("noise", &vec![0x5au8; 200_000]);
    let mut huge = image("9");
    huge.resize(4 * MIB as usize + 4096, 1);
    let huge = b.file("huge", &huge);
    let good = b.file("good", &image("2"));
    let zero = "00".repeat(32);
    for (args, code, exit) in [
        (
            vec!["stage", "--image", &html.0, "--sha256", &html.1],
            "NotAPayload",
            4,
        ),
        (
            vec!["stage", "--image", &noise.0, "--sha256", &noise.1],
            "NotAPayload",
            4,
        ),
        (
            vec!["stage", "--image", &huge.0, "--sha256", &huge.1],
            "SlotTooSmall",
            3,
        ),
        (
            vec!["stage", "--image", "http://127.0.0.1:9/x", "--sha256", &zero],
            "HttpNotAllowed",
            3,
        ),
        (
            vec!["stage", "--image", "ftp://x/y", "--sha256", &zero],
            "InvalidArgument",
            2,
        ),
        (
            vec!["stage", "--image", &good.0, "--sha256", "12"],
            "InvalidArgument",
            2,
        ),
        (vec!["stage", "--image", &good.0], "InvalidArgument", 2),
        (vec!["activate"], "NotStaged", 3),
        (vec!["activate", "--digest", &zero], "NotStaged", 3),
        (vec!["rollback"], "NothingToDo", 3),
        (vec!["watch"], "InvalidArgument", 2),
        (vec!["cancel"], "NothingToDo", 3),
        (vec!["verify-slot"], "NotStaged", 3),
    ] {
        b.refused(&args, code, exit);
        assert_eq!(b.bytes(), before, "{args:?}");
    }
    let r = b.run(&["steps", "run", "--anything"]);
    assert!(r.exit == 2 && r.stderr.contains("--anything"), "{}", r.stderr);
    let missing = b.run(&["stage", "--image", "/nonexistent/x.img", "--sha256", &zero]);
    assert!(
        [2, 3, 5].contains(&missing.exit),
        "{} {}",
        missing.exit,
        missing.stderr
    );
    let s = b.good(&["status"]);
    assert!(
        !s["last_failure"]["code"].as_str().unwrap().is_empty(),
        "status says what happened"
    );
    b.good(&["stage", "--image", &good.0, "--sha256", &good.1]);
}

#[test]
fn a_file_that_is_not_there_is_an_error_also_where_nothing_would_be_fetched() {
    let b = Bench::new();
    let (good, sum) = b.file("good", &image("2"));
    b.good(&["stage", "--image", &good, "--sha256", &sum]);
    let again = b.good(&["stage", "--image", &good, "--sha256", &sum]);
    assert_eq!(again["already_staged"], true);
    let page = b.file("page", b"<html>log in</html>");
    for (image, code, exit) in [
        ("/nonexistent/update.img", "InvalidArgument", 2),
        (b.dir.as_str(), "InvalidArgument", 2),
        (page.0.as_str(), "NotAPayload", 4),
        ("https://", "InvalidArgument", 2),
        ("https://[::/u", "InvalidArgument", 2),
    ] {
        b.refused(&["stage", "--image", image, "--sha256", &sum], code, exit);
    }
    // It is staged all the while.
    b.good(&["activate"]);
}

#[test]
fn what_turns_out_wrong_is_never_armed() {
    let b = Bench::new();
    let good = b.file("good", &image("2"));
    let other = sha256(b"other").to_string();
    b.refused(
        &["stage", "--image", &good.0, "--sha256", &other],
        "ChecksumMismatch",
        4,
    );
    assert_eq!(b.good(&["status"])["slots"][1]["state"], "dirty");
    b.refused(&["activate"], "NotStaged", 3);
    b.refused(&["rollback"], "NotStaged", 3);
    for name in ["vmlinuz", "os-agent"] {
        let bad = b.file(name, &image_without("2", name));
        b.refused(
            &["stage", "--image", &bad.0, "--sha256", &bad.1],
            "NotBootable",
            3,
        );
    }
    b.refused(
        &["stage", "--image", &good.0, "--sha256", &good.1, "--version", "3"],
        "WrongVersion",
        3,
    );
    let cut = image("2");
    let cut = b.file("cut", &cut[..150_000]);
    let before = b.bytes();
    let r = b.run(&["stage", "--image", &cut.0, "--sha256", &cut.1]);
    assert_eq!(r.exit, 4, "{}", r.stderr);
    assert!(
        r.stderr.contains("SizeMismatch") && r.stderr.contains("nothing was written"),
        "{}",
        r.stderr
    );
    assert!(
        b.bytes() == before,
        "a cut that shows by its length costs the slot nothing"
    );
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&image("2")).unwrap();
    let packed = packed.finish().unwrap();
    let torn = b.file("torn.gz", &packed[..packed.len() - 100]);
    let r = b.run(&["stage", "--image", &torn.0, "--sha256", &torn.1]);
    assert_eq!(r.exit, 4, "{}", r.stderr);
    let env = b.env();
    assert_eq!((env.cur, env.try_slot), (Slot::A, None));
    let whole = b.file("whole.gz", &packed);
    let r = b.good(&[
        "stage",
        "--image",
        &whole.0,
        "--sha256",
        &whole.1,
        "--version",
        "Slipway 2",
    ]);
    assert_eq!(r["version"], "2");
    // A rotten slot is found before it is armed.
    let mut d = b.bytes();
    let at = d.windows(14).rposition(|w| w == b"VERSION_ID=\"2\"").unwrap();
    d[at] ^= 1;
    std::fs::write(&b.disk, d).unwrap();
    b.refused(&["activate"], "ChecksumMismatch", 4);
    assert_eq!(b.env().try_slot, None);
}

#[test]
fn one_at_a_time_and_nothing_while_uncommitted() {
    let b = Bench::new();
    let two = b.file("two", &image("2"));
    let three = b.file("three", &image("3"));
    let stage3 = ["stage", "--image", &three.0, "--sha256", &three.1];
    {
        let _held = foreign_lock(&b.disk);
        let r = b.run(&["stage", "--image", &two.0, "--sha256", &two.1]);
        assert_eq!(r.exit, 3, "{}", r.stderr);
        assert!(r.stderr.contains("Busy"), "{}", r.stderr);
    }
    b.good(&["stage", "--image", &two.0, "--sha256", &two.1]);
    b.good(&["activate"]);
    b.refused(&stage3, "TrialRunning", 3);
    b.refused(&["activate"], "TrialRunning", 3);
    b.count(1);
    let r = b.run_as("B", &stage3);
    assert!(r.exit == 3 && r.stderr.contains("TrialRunning"), "{}", r.stderr);
    // Rolled back by hand: denied.
    assert_eq!(b.run_as("B", &["rollback"]).exit, 0);
    let s = b.good(&["status"]);
    assert_eq!(
        (s["phase"].as_str(), s["last_failure"]["cause"].as_str()),
        (Some("fell_back"), Some("rolled_back"))
    );
    b.refused(
        &["stage", "--image", &two.0, "--sha256", &two.1],
        "DigestFailedBefore",
        3,
    );
    b.good(&stage3);
    b.good(&["activate"]);
    b.good(&["cancel"]);
    assert_eq!(b.env().try_slot, None);
    // Another slot than the committed one runs.
    let r = b.run_as("B", &stage3);
    assert!(
        r.exit == 3 && r.stderr.contains("UncommittedBoot"),
        "{}",
        r.stderr
    );
}

#[test]
fn the_same_digest_as_the_running_slot_is_refused() {
    let b = Bench::new();
    b.stage("v2.img", &image("2"));
    b.good(&["activate"]);
    b.count(1);
    assert_eq!(b.run_as("B", &["commit"]).exit, 0);
    let (file, sum) = b.file("v2.img", &image("2"));
    let r = b.run_as("B", &["stage", "--image", &file, "--sha256", &sum]);
    assert!(r.exit == 3 && r.stderr.contains("SlotIsActive"), "{}", r.stderr);
}

#[test]
fn usage_and_places_that_are_no_disks() {
    let b = Bench::new();
    for args in [
        &["frobnicate"][..],
        &["stage"],
        &["status", "--disk", "x"],
        &["activate", "--reboot"],
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(args)
            .args(if args[0] == "activate" {
                vec!["--disk", "x", "--running", "A"]
            } else {
                vec![]
            })
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["status", "--socket"])
        .arg(b.dir.join("none.sock"))
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(5), "no agent is a temporary failure");
    let plain = b.dir.join("plain");
    std::fs::write(&plain, vec![0; 1 << 20]).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["status", "--disk", plain.as_str(), "--running", "A"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&out.stderr).contains("DiskUnsupported"));
    let looked: &Utf8Path = &b.disk.with_extension("img.state");
    b.good(&["status"]);
    assert!(!looked.exists(), "looking leaves no trace");
    let bad = b.dir.join("bad.toml");
    std::fs::write(&bad, "[fetch]\nretries = 1\n").unwrap();
    b.refused(&["status", "--config", bad.as_str()], "InvalidArgument", 2);
}

#[test]
fn doctor_looks_at_a_disk_and_repairs_an_os_state_that_nobody_can_read() {
    let b = Bench::new();
    b.plant(Slot::B, &image("2"));
    let d = b.good(&["doctor"]);
    assert_eq!(d["sound"], true, "{d:#}");
    let r = b.run(&["doctor", "--repair-state"]);
    assert_eq!((r.exit, r.json()["code"].as_str()), (3, Some("NothingToDo")));

    // Neither copy nor the file system is left.
    let before = b.bytes();
    let env = b.env().encode();
    let at = before.windows(512).position(|w| w == env).unwrap() - (12 << 10);
    let mut broken = before.clone();
    broken[at..at + (64 << 10)].fill(0xa5);
    std::fs::write(&b.disk, &broken).unwrap();
    let r = b.run(&["doctor"]);
    assert_eq!(r.exit, 1, "{}", r.stdout);
    let checks = r.json()["checks"].clone();
    let env = checks
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["name"] == "environment")
        .unwrap();
    assert_eq!(env["verdict"], "bad");
    assert!(env["advice"].as_str().unwrap().contains("--repair-state"));

    let r = b.run_as("B", &["doctor", "--repair-state"]);
    assert_eq!((r.exit, r.json()["cur"].as_str()), (0, Some("B")), "{}", r.stderr);
    let after = b.bytes();
    assert!(
        after[..at] == before[..at] && after[at + (64 << 10)..] == before[at + (64 << 10)..],
        "only os-state is written"
    );
    let r = b.run_as("B", &["doctor"]);
    assert_eq!(r.json()["sound"], true, "{}", r.stdout);
    assert_eq!(b.run_as("B", &["status"]).json()["env"]["cur"], "B");
}

#[test]
fn history_says_who_asked_what_came_of_it_and_how_long_it_took() {
    let b = Bench::new();
    b.stage("v2.img", &image("2"));
    b.good(&["activate"]);
    let h = b.good(&["history"]);
    let ops = h["operations"].as_array().unwrap();
    assert_eq!(ops.len(), 2);
    for o in ops {
        assert_eq!(
            (o["result"].as_str(), o["asked_by"].as_str()),
            (Some("done"), Some("offline"))
        );
        assert!(o["duration_secs"].as_i64().unwrap() >= 0 && o["started_unix"].as_i64().unwrap() > 0);
    }
    let report = b.good(&["report"]);
    assert_eq!(report["history"]["operations"].as_array().unwrap().len(), 2);
    assert_eq!(report["doctor"]["sound"], true);
    assert_eq!(report["status"]["phase"], "armed");
}

#[test]
fn crashtest_prints_a_table_or_a_document_and_a_sabotage_is_found() {
    let out = |args: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(args)
            .current_dir(dir.path())
            .env_clear()
            .output()
            .unwrap()
    };
    let o = out(&["crashtest", "--quick", "--sabotage", "skip-readback", "--json"]);
    assert_eq!(o.status.code(), Some(1));
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert!(v["bad"].as_u64().unwrap() > 0 && v["sabotage"] == "skip-readback");
    assert!(!v["violations"].as_array().unwrap().is_empty());
    let o = out(&["crashtest", "--quick", "--sabotage", "arm-before-verify"]);
    assert_eq!(o.status.code(), Some(1));
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(
        text.contains("recorded update") && text.contains("was found"),
        "{text}"
    );
    assert_eq!(
        out(&["crashtest", "--sabotage", "nonsense"]).status.code(),
        Some(2)
    );
}
