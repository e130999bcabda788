//! Each refusal and each bad input through the real command line: exit code, error code, nothing that counts has changed,
//! `status` says what happened, the right command works afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::Offline;
use os_e2e::disk::{noise, root_image};
use os_e2e::ext4::Ext4;
use os_e2e::http::{Length, Ranges, Reply, Server};
use os_e2e::proc::{self, Ended};
use os_e2e::product::sha256;
use os_proto::env_block::Env;
use os_proto::layout::Slot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// One node for all cases: what a case leaves behind must not harm the next.
fn node() -> MutexGuard<'static, Offline> {
    static NODE: OnceLock<Mutex<Offline>> = OnceLock::new();
    NODE.get_or_init(|| {
        let o = Offline::new(48, 16);
        // Short patience: the servers here never get better.
        let text = "[fetch]\nconnect_timeout_secs = 2\nfirst_byte_timeout_secs = 2\nmin_rate_bytes_per_sec = 1000\n\
                    min_rate_secs = 3\nretry_limit = 2\nretry_first_ms = 50\nretry_max_ms = 100\n";
        fs_err::write(o.dir.join("config.toml"), text).unwrap();
        Mutex::new(o)
    })
    .lock()
    .unwrap_or_else(PoisonError::into_inner)
}

/// Runs `act`, expects this exit status and error code, an untouched running slot and environment, a status that tells it,
/// and success afterwards.
fn expect(o: &Offline, exit: i32, code: &str, act: impl FnOnce(&Offline) -> Ended) {
    let (slot, env) = (o.running_slot(), effective(o));
    let e = act(o);
    assert_eq!(e.code, exit, "expected exit {exit} ({code}): {}{}", e.out, e.err);
    assert!(
        e.err.contains(code) || e.out.contains(code),
        "expected the code {code}: {}{}",
        e.out,
        e.err
    );
    assert_eq!(o.running_slot(), slot, "{code}: the running slot changed");
    assert_eq!(effective(o), env, "{code}: the environment changed");
    let status = o.status();
    let told = status["last_failure"]["code"].as_str() == Some(code)
        || status["operation"]["code"].as_str() == Some(code);
    assert!(told, "{code}: status does not tell it: {status:#}");
    o.repeat_works();
}

/// What the environment says: `cur`, trial, tries. Its generation may have grown by a disarm.
fn effective(o: &Offline) -> Vec<(Slot, Option<Slot>, Option<u8>)> {
    o.disk
        .env_bytes()
        .unwrap()
        .iter()
        .map(|b| Env::decode(b).unwrap())
        .map(|e| (e.cur, e.try_slot, e.left))
        .collect()
}

fn serve(reply: Reply) -> (Server, String) {
    let s = Server::start().unwrap();
    s.put("/u", reply);
    let url = s.url("/u");
    (s, url)
}

/// Another good image each time: one that the slot holds already would not be fetched at all, and one that failed often is
/// refused.
fn good(o: &Offline) -> (Vec<u8>, String) {
    use sha2::Digest;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut data = fs_err::read(&o.update).unwrap();
    // In the data of a file, which no checksum of the file system covers.
    let mark = &noise(64)[16..];
    let at = data.chunks(4096).rposition(|b| b[16..64] == *mark).unwrap() * 4096 + 512;
    data[at..at + 8].copy_from_slice(&NEXT.fetch_add(1, Ordering::SeqCst).to_le_bytes());
    let sum = hex::encode(sha2::Sha256::digest(&data));
    (data, sum)
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn truncated_download() {
    let o = node();
    let (data, sum) = good(&o);
    let cut = data.len() as u64 / 2;
    let (_s, url) = serve(Reply {
        cut_after: Some(cut),
        ranges: Ranges::Ignore,
        ..Reply::bytes(data)
    });
    expect(&o, 5, "FetchFailed", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn half_an_image_with_an_honest_length_costs_the_slot_nothing() {
    let o = node();
    o.repeat_works();
    let target = || o.disk.slot_sha256(Slot::B, o.disk.slot_size).unwrap();
    let before = target();
    let (mut data, sum) = good(&o);
    data.truncate(data.len() / 2);
    let file = o.dir.join("half.img");
    fs_err::write(&file, &data).unwrap();
    let (_s, url) = serve(Reply::bytes(data));
    for from in [url.as_str(), file.as_str()] {
        let e = o.stage(from, &sum);
        assert_eq!(e.code, 4, "{}{}", e.out, e.err);
        assert!(
            e.err.contains("SizeMismatch") && e.err.contains("nothing was written"),
            "{}{}",
            e.out,
            e.err
        );
        assert_eq!(target(), before, "slot B was written to");
    }
    o.repeat_works();
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn a_file_that_is_not_there_although_the_slot_holds_what_it_should_be() {
    let o = node();
    o.repeat_works();
    let sum = sha256(&o.update).unwrap();
    let e = o.stage("/nonexistent/update.img", &sum);
    assert_eq!(e.code, 2, "{}{}", e.out, e.err);
    assert!(e.err.contains("InvalidArgument"), "{}", e.err);
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn an_older_file_system_than_the_boot_mounts() {
    let o = node();
    let file = o.dir.join("ext2.img");
    proc::sh(&["mke2fs", "-q", "-F", "-t", "ext2", file.as_str(), "8M"]).unwrap();
    let sum = sha256(&file).unwrap();
    expect(&o, 4, "NotAPayload", |o| o.stage(file.as_str(), &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn an_agent_or_init_that_cannot_run_and_a_kernel_that_is_none() {
    let o = node();
    let program = fs_err::read("/bin/true").unwrap();
    for (path, data, mode, says) in [
        (
            "/usr/bin/os-agent",
            &program[..],
            0o644,
            "agent /usr/bin/os-agent is not executable",
        ),
        (
            "/usr/sbin/init",
            &program[..],
            0o600,
            "init /sbin/init is not executable",
        ),
        ("/boot/vmlinuz", b"abc", 0o644, "is no kernel (3 bytes"),
    ] {
        let file = o.dir.join("bad.img");
        fs_err::copy(&o.update, &file).unwrap();
        let fs = Ext4 { image: file.clone() };
        fs.write(path, data, mode).unwrap();
        let sum = sha256(&file).unwrap();
        expect(&o, 3, "NotBootable", |o| {
            let e = o.stage(file.as_str(), &sum);
            assert!(e.err.contains(says), "{}{}", e.out, e.err);
            e
        });
    }
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn length_too_long_and_too_short() {
    let o = node();
    let (data, sum) = good(&o);
    let len = data.len() as u64;
    let (_s, url) = serve(Reply {
        length: Length::Claim(len + 4096),
        ..Reply::bytes(data.clone())
    });
    let e = o.stage(&url, &sum);
    assert!([4, 5].contains(&e.code), "too long: {}{}", e.out, e.err);
    o.repeat_works();
    let (_s, url) = serve(Reply {
        length: Length::Claim(len - 4096),
        ..Reply::bytes(data)
    });
    let e = o.stage(&url, &sum);
    assert_eq!(e.code, 4, "too short: {}{}", e.out, e.err);
    o.repeat_works();
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn length_absent_is_fine() {
    let o = node();
    let (data, sum) = good(&o);
    let (_s, url) = serve(Reply {
        length: Length::Absent,
        ..Reply::bytes(data)
    });
    let e = o.stage(&url, &sum);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn ten_tebibytes_are_refused_at_once() {
    let o = node();
    let (data, sum) = good(&o);
    let (s, url) = serve(Reply {
        length: Length::Claim(10 << 40),
        ..Reply::bytes(data)
    });
    expect(&o, 3, "SlotTooSmall", |o| o.stage(&url, &sum));
    assert!(s.sent("/u") < 16 << 20, "{} bytes were sent", s.sent("/u"));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn image_larger_than_the_slot() {
    let o = node();
    let big = o.dir.join("big.img");
    root_image(&big, "9", 56, 1, Some("/bin/true".into()), true).unwrap();
    let sum = sha256(&big).unwrap();
    let (_s, url) = serve(Reply::file(&big));
    expect(&o, 3, "SlotTooSmall", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn server_that_is_gone() {
    let o = node();
    let (data, sum) = good(&o);
    let (mut s, url) = serve(Reply::bytes(data));
    s.stop();
    expect(&o, 5, "FetchFailed", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn server_that_stops_in_the_middle() {
    let o = node();
    let (data, sum) = good(&o);
    let (_s, url) = serve(Reply {
        stall_after: Some(1 << 20),
        ..Reply::bytes(data)
    });
    expect(&o, 5, "FetchFailed", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn server_that_cuts_and_then_resumes() {
    let o = node();
    let (data, sum) = good(&o);
    let len = data.len() as u64;
    let (s, url) = serve(Reply {
        cut_after: Some(len / 2),
        faults_for: Some(1),
        ..Reply::bytes(data)
    });
    let e = o.stage(&url, &sum);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
    assert!(
        s.seen().iter().any(|r| r.range.is_some()),
        "no range was asked for: {:?}",
        s.seen()
    );
    assert!(
        s.sent("/u") < len + len / 10,
        "{} of {len} bytes were sent",
        s.sent("/u")
    );
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn trickle_below_the_minimum_rate() {
    let o = node();
    let (data, sum) = good(&o);
    let (_s, url) = serve(Reply {
        trickle: Some((1, Duration::from_millis(200))),
        ..Reply::bytes(data)
    });
    expect(&o, 5, "FetchFailed", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn random_bytes() {
    let o = node();
    let data = noise(1 << 20);
    let file = o.dir.join("random");
    fs_err::write(&file, &data).unwrap();
    let sum = sha256(&file).unwrap();
    let (_s, url) = serve(Reply::bytes(data));
    expect(&o, 4, "NotAPayload", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn html_page() {
    let o = node();
    let (_, sum) = good(&o);
    let (_s, url) = serve(Reply::html());
    expect(&o, 4, "NotAPayload", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn not_found_is_temporary_or_refused_and_costs_nothing() {
    let o = node();
    let (_, sum) = good(&o);
    let (_s, url) = serve(Reply {
        status: 404,
        ..Reply::bytes("no")
    });
    expect(&o, 5, "FetchFailed", |o| o.stage(&url, &sum));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn wrong_checksum() {
    let o = node();
    let (data, _) = good(&o);
    let (_s, url) = serve(Reply::bytes(data));
    expect(&o, 4, "ChecksumMismatch", |o| o.stage(&url, &"ab".repeat(32)));
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn image_without_kernel_or_without_agent() {
    let o = node();
    for (name, agent, kernel) in [("kernel", true, false), ("agent", false, true)] {
        let file = o.dir.join(format!("no-{name}.img"));
        let agent = agent.then_some("/bin/true".into());
        root_image(&file, "9", 48, 1, agent, kernel).unwrap();
        let sum = sha256(&file).unwrap();
        let (_s, url) = serve(Reply::file(&file));
        expect(&o, 3, "NotBootable", |o| o.stage(&url, &sum));
    }
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn plain_http_needs_the_flag() {
    let o = node();
    let (data, sum) = good(&o);
    let (s, url) = serve(Reply::bytes(data));
    let e = o.agent(&["stage", "--image", &url, "--sha256", &sum]);
    assert_eq!(e.code, 3, "{}{}", e.out, e.err);
    assert!(e.err.contains("HttpNotAllowed"), "{}", e.err);
    assert!(s.seen().is_empty(), "{:?}", s.seen());
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn another_version_than_wanted() {
    let o = node();
    let (data, sum) = good(&o);
    let (_s, url) = serve(Reply::bytes(data));
    expect(&o, 3, "WrongVersion", |o| {
        o.agent(&[
            "stage",
            "--image",
            &url,
            "--sha256",
            &sum,
            "--allow-http",
            "--version",
            "Slipway 7",
        ])
    });
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn no_stage_while_a_slot_is_armed_or_on_trial() {
    let o = node();
    let sum = sha256(&o.update).unwrap();
    o.repeat_works();
    let e = o.agent(&["activate"]);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
    let e = o.stage(o.update.as_str(), &sum);
    assert_eq!(e.code, 3, "{}{}", e.out, e.err);
    assert!(
        e.err.contains("TrialRunning") || e.err.contains("UncommittedBoot"),
        "{}",
        e.err
    );
    let e = o.agent(&["cancel"]);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
    o.repeat_works();
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn the_running_slot_is_the_only_proven_one_while_uncommitted() {
    let o = node();
    let sum = sha256(&o.update).unwrap();
    // The disk says that B is committed while A runs.
    let env = Env::decode(&o.disk.env_bytes().unwrap()[0]).unwrap();
    o.disk.set_env(&env.committed_to(Slot::B)).unwrap();
    let before = o.disk.slot_sha256(Slot::B, o.disk.slot_size).unwrap();
    let e = o.stage(o.update.as_str(), &sum);
    o.disk.set_env(&env.committed_to(Slot::A)).unwrap();
    assert_eq!(e.code, 3, "{}{}", e.out, e.err);
    assert!(
        e.err.contains("UncommittedBoot") || e.err.contains("TrialRunning"),
        "{}",
        e.err
    );
    assert_eq!(o.disk.slot_sha256(Slot::B, o.disk.slot_size).unwrap(), before);
    o.repeat_works();
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn a_second_request_while_one_runs() {
    let o = node();
    let (data, sum) = good(&o);
    let (_s, url) = serve(Reply {
        trickle: Some((64 << 10, Duration::from_millis(20))),
        ..Reply::bytes(data)
    });
    let args = ["stage", "--image", &url, "--sha256", &sum, "--allow-http"];
    let mut first = o
        .command(&args)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let e = o.stage(o.update.as_str(), &sum);
    assert_eq!(e.code, 3, "{}{}", e.out, e.err);
    assert!(e.err.contains("Busy"), "{}", e.err);
    let status = first.wait().unwrap();
    assert_eq!(status.code(), Some(0), "the first one must not be disturbed");
    o.repeat_works();
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn activate_without_a_staged_image() {
    let o = Offline::new(48, 1);
    let e = o.agent(&["activate"]);
    assert_eq!(e.code, 3, "{}{}", e.out, e.err);
    assert!(e.err.contains("NotStaged"), "{}", e.err);
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn wrong_usage_is_exit_2() {
    let o = node();
    for args in [
        &["stage"][..],
        &["fly"],
        &["stage", "--image", "/x", "--sha256", "xyz"],
    ] {
        let e = o.agent(args);
        assert_eq!(e.code, 2, "{args:?}: {}{}", e.out, e.err);
    }
}

/// The shipped program is static. It must find groups, users and hosts without the name-service modules of the node's own C
/// library: a static program that loads them crashes.
#[test]
#[ignore = "needs root (a mount namespace): tests/run image"]
fn the_shipped_program_loads_no_name_service() {
    let o = node();
    let socket = o.dir.join("names.sock");
    let switch = o.dir.join("nsswitch.conf");
    let text =
        "passwd: systemd files\ngroup: systemd files\nhosts: resolve mymachines myhostname files dns\n";
    fs_err::write(&switch, text).unwrap();
    let inner = format!(
        "mount --bind {switch} /etc/nsswitch.conf && mount -t tmpfs tmpfs /run && exec {} serve --socket {socket}",
        o.product.agent
    );
    let mut child = os_e2e::proc::command("unshare")
        .args(["-m", "sh", "-c", &inner])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let ask = |user: &str| {
        let mut c = os_e2e::proc::command("setpriv");
        c.args([&format!("--reuid={user}"), "--regid=0", "--clear-groups"]);
        c.arg(&o.product.agent)
            .args(["status", "--json", "--socket", socket.as_str()]);
        os_e2e::proc::status(&mut c).unwrap()
    };
    let mut answer = ask("0");
    for _ in 0..100 {
        if answer.code == 0 || child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        answer = ask("0");
    }
    // A user of whom no file knows.
    let stranger = ask("12345");
    let maps = fs_err::read_to_string(format!("/proc/{}/maps", child.id())).unwrap_or_default();
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ended, None, "os-agent ended: {answer:?}");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        stranger.code != 0 && !stranger.err.contains("transport"),
        "{stranger:?}"
    );
    assert!(!maps.is_empty() && !maps.contains("libnss"), "{maps}");
}
