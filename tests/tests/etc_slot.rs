//! /etc follows the slot: what a trial ruins there the committed slot never sees, what was changed after a commit stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::long;
use os_e2e::guest::{STAGE, UP};
use os_e2e::images::{Broken, images};
use os_e2e::node::{Node, say};
use os_e2e::vm::{Firmware, Vm};

const CONFIG: &str = "/etc/containerd/config.toml";

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn a_ruined_etc_goes_with_its_trial_and_a_password_survives() {
    let images = images().unwrap();
    let firmware = if long() { Firmware::Uefi } else { Firmware::Bios };
    let mut node = Node::start("etc", &images, "1", firmware).unwrap();
    node.keep();
    let vm = node.vm().unwrap();
    settled(vm);
    vm.ok(&format!("mkdir -p /etc/containerd; echo good > {CONFIG}; sync"))
        .unwrap();
    let before = vm.etc().unwrap();
    assert!(before.contains("./containerd/config.toml"), "{before}");

    node.staged(&images.broken(Broken::RuinsEtc).unwrap()).unwrap();
    let f = node.flip().and_then(|first| node.settled(first)).unwrap();
    assert_eq!(
        (f.ready.slot.as_str(), f.ready.version.as_str()),
        ("A", "1"),
        "{f:?}"
    );
    let boots: Vec<&str> = f.boots.iter().map(|(slot, _)| slot.as_str()).collect();
    assert_eq!(boots, ["B", "A"], "a bad verdict ends a trial at once");
    let vm = node.vm().unwrap();
    let s = vm
        .status_until("the fallback's cause", UP, |s| {
            s["last_failure"]["cause"] == "health_failed"
        })
        .unwrap();
    let message = s["last_failure"]["message"].as_str().unwrap();
    assert!(message.contains("critical-containerd"), "{message}");
    settled(vm);
    // It did happen, in the trial's own layer.
    let ruined = vm
        .ok(&format!(
            "cat /persist/etc/B{}",
            CONFIG.trim_start_matches("/etc")
        ))
        .unwrap();
    assert_eq!(ruined.trim(), "ruined");
    let after = vm.etc().unwrap();
    let differ: Vec<&str> = after.lines().filter(|l| !before.contains(l)).collect();
    assert_eq!(after, before, "/etc of slot A changed: {differ:#?}");
    say(&format!(
        "/etc is byte-equal to before the trial: {} entries",
        before.lines().count()
    ));

    // A good update takes the settings along; a password changed after its commit stays.
    node.staged(&images.update("2")).unwrap();
    let f = node.flip().unwrap();
    assert_eq!((f.ready.slot.as_str(), f.ready.version.as_str()), ("B", "2"));
    let vm = node.vm().unwrap();
    vm.committed("B").unwrap();
    assert_eq!(vm.ok(&format!("cat {CONFIG}")).unwrap().trim(), "good");
    let changed = password(vm, "after-the-commit");
    let hidden = vm.ok("os-agent report etc").unwrap();
    assert!(hidden.contains("/etc/shadow"), "{hidden}");
    node.power_cycle().unwrap();
    let vm = node.vm().unwrap();
    assert_eq!(shadow(vm), changed, "the password survives a power cut");
    if long() {
        next_update_and_rollback(&mut node, &images, &changed);
    }
}

/// The next update takes the password along; a rollback after a commit returns to the layer that was left then.
fn next_update_and_rollback(node: &mut Node, images: &os_e2e::images::Images, changed: &str) {
    node.staged(&images.update("1")).unwrap();
    let f = node.flip().unwrap();
    assert_eq!(f.ready.slot, "A");
    let vm = node.vm().unwrap();
    vm.committed("A").unwrap();
    assert_eq!(shadow(vm), changed);
    password(vm, "on-slot-a");
    let from = vm.serial.lines().len();
    let a = vm.agent("rollback --reboot", STAGE).unwrap();
    assert_eq!(a.code, 0, "{}", a.text);
    let f = node.next_system(from).unwrap();
    assert_eq!(f.ready.slot, "B");
    let vm = node.vm().unwrap();
    vm.committed("B").unwrap();
    assert_eq!(
        shadow(vm),
        changed,
        "slot B's own /etc, untouched since it was left"
    );
}

fn password(vm: &mut Vm, word: &str) -> String {
    vm.ok(&format!("echo 'root:{word}' | chpasswd && sync")).unwrap();
    shadow(vm)
}

fn shadow(vm: &mut Vm) -> String {
    vm.ok("grep ^root: /etc/shadow").unwrap()
}

/// Everything that starts at boot has started, so nothing writes to /etc any more.
fn settled(vm: &mut Vm) {
    vm.ok("for i in $(seq 60); do systemctl is-system-running | grep -qE 'running|degraded' && break; sleep 2; done; sync")
        .unwrap();
}
