//! `kill -9` of os-agent at random moments of `stage`: the running slot never changes, the boot loader's choice stays a whole
//! slot, and the same command succeeds afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::{Offline, Random, long};
use os_e2e::http::{Reply, Server};
use os_e2e::product::sha256;
use os_proto::boot_choice::{self, Facts, Save};
use os_proto::layout::Slot;
use std::process::Stdio;
use std::time::Instant;

/// What unpatched GRUB would start from the disk as it is now.
fn choice(o: &Offline) -> Slot {
    let [env1, env2] = o.disk.env_bytes().unwrap();
    boot_choice::choose(&Facts {
        env1: Some(&env1),
        env2: Some(&env2),
        a_has_kernel: true,
        save: Save::Works,
        picked: None,
    })
    .line
    .slot
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn at_random_moments_of_stage() {
    let o = Offline::new(96, 64);
    let before = o.running_slot();
    let sum = sha256(&o.update).unwrap();
    let server = Server::start().unwrap();
    server.put("/u", Reply::file(&o.update));
    let url = server.url("/u");
    let args = ["stage", "--image", &url, "--sha256", &sum, "--allow-http"];

    // How long a whole stage takes here, so that the kills spread over all of it.
    let start = Instant::now();
    let e = o.agent(&args);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
    let whole = start.elapsed();
    println!("a whole stage takes {whole:?}");

    let count = if long() { 200 } else { 50 };
    let mut random = Random::new();
    let (mut killed, mut finished) = (0, 0);
    for i in 0..count {
        let at = whole.mul_f64(random.unit() * 1.05);
        // A slot of other content each time, or there would be nothing left to write.
        scramble(&o, i);
        let mut child = o
            .command(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(at);
        let _ = child.kill();
        let status = child.wait().unwrap();
        if status.code() == Some(0) {
            finished += 1;
        } else {
            killed += 1;
        }
        assert_eq!(
            o.running_slot(),
            before,
            "kill {i} at {at:?}: the running slot changed"
        );
        assert_eq!(
            choice(&o),
            Slot::A,
            "kill {i} at {at:?}: GRUB would not start slot A"
        );
        // Every fifth time the repetition itself may be killed again: state of several kills adds up.
        if i % 5 == 0 {
            o.repeat_works();
            assert_eq!(choice(&o), Slot::A);
        }
    }
    o.repeat_works();
    assert_eq!(o.running_slot(), before);
    println!("{killed} killed, {finished} had finished, of {count}");
    assert!(killed >= count * 3 / 4, "too few kills hit a running stage");
}

#[test]
#[ignore = "needs the release build, gdisk and mtools: tests/run image"]
fn at_random_moments_of_activate() {
    let o = Offline::new(48, 16);
    let before = o.running_slot();
    let sum = sha256(&o.update).unwrap();
    // How long it takes here: most of it is reading back.
    o.repeat_works();
    let start = Instant::now();
    assert_eq!(o.agent(&["activate"]).code, 0);
    let whole = start.elapsed();
    assert_eq!(o.agent(&["cancel"]).code, 0);
    let mut random = Random::new();
    let mut armed = 0;
    for i in 0..if long() { 50 } else { 10 } {
        o.repeat_works();
        let mut child = o
            .command(&["activate"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(whole.mul_f64(0.5 + random.unit() * 0.6));
        let _ = child.kill();
        let _ = child.wait().unwrap();
        assert_eq!(o.running_slot(), before);
        // Whatever GRUB would start now is whole.
        if choice(&o) == Slot::B {
            armed += 1;
            let size = fs_err::metadata(&o.update).unwrap().len();
            assert_eq!(
                o.disk.slot_sha256(Slot::B, size).unwrap(),
                sum,
                "kill {i}: armed, but not whole"
            );
        }
        // An armed slot is disarmed by cancel; when nothing is armed that is refused or nothing to do.
        let e = o.agent(&["cancel"]);
        assert!([0, 3].contains(&e.code), "cancel: {}{}", e.out, e.err);
        assert_eq!(choice(&o), Slot::A, "kill {i}: still armed after cancel");
    }
    println!("armed {armed} times");
}

/// Other bytes all over slot B.
fn scramble(o: &Offline, i: u64) {
    use std::os::unix::fs::FileExt;
    let f = fs_err::OpenOptions::new().write(true).open(&o.disk.path).unwrap();
    let start = o.disk.slot_start(Slot::B);
    let block = vec![(i % 251) as u8 + 1; 1 << 20];
    for m in 0..o.disk.slot_size >> 20 {
        f.file().write_all_at(&block, start + (m << 20)).unwrap();
    }
}
