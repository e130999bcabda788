//! The main story in QEMU: boot version 1, look at what the image kept of its packages, upgrade to version 2 over HTTP, commit.
//! BIOS in `tests/run boot`; UEFI in `tests/demo` and `tests/long`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::long;
use os_e2e::images::{Images, images};
use os_e2e::node::{Node, say};
use os_e2e::vm::{Firmware, Vm};

const WHY: &str = "os-agent must stay below 48 MiB";

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn bios() {
    let images = images().unwrap();
    let mut node = story(&images, Firmware::Bios);
    two_copies_differ(&images, &mut node);
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/long boot (and tests/demo)"]
fn uefi() {
    if !long() {
        println!("skipped: UEFI is tests/demo's and tests/long's");
        return;
    }
    story(&images().unwrap(), Firmware::Uefi);
}

fn story(images: &Images, firmware: Firmware) -> Node {
    let mut node = Node::start("upgrade", images, "1", firmware).unwrap();
    assert_eq!(
        (node.ready.slot.as_str(), node.ready.version.as_str()),
        ("A", "1")
    );
    assert_eq!(node.ready.trial, None);
    system_is_whole(node.vm().unwrap());
    persist_has_grown(node.vm().unwrap());
    packaged_files(node.vm().unwrap(), "1.0");
    node.vm()
        .unwrap()
        .ok("echo mine > /etc/persisted; sync; ! touch /usr/x")
        .unwrap();

    let s = node.status().unwrap();
    assert_eq!(s["phase"], "idle", "{s:#}");
    assert_eq!(s["slots"][0]["version"], "1", "factory record: {s:#}");

    let written = written_to_slot(node.vm().unwrap(), "b");
    let image = images.update("2");
    node.staged(&image).unwrap();
    let vm = node.vm().unwrap();
    let written = written_to_slot(vm, "b") - written;
    let size = fs_err::metadata(&image).unwrap().len();
    say(&format!(
        "{written} bytes written to the slot for an image of {size}"
    ));
    assert!(written <= size + (1 << 20), "{written} bytes written for {size}");
    let peak = peak_kib(vm);
    say(&format!("peak memory of os-agent while staging: {} KiB", peak));
    assert!(peak <= 48 << 10, "{peak} KiB: {WHY}");

    let f = node.flip().unwrap();
    assert_eq!((f.ready.slot.as_str(), f.ready.version.as_str()), ("B", "2"));
    assert_eq!(f.ready.trial, Some(2));
    assert_eq!(f.boots.len(), 1, "{f:?}");
    let s = node.vm().unwrap().committed("B").unwrap();
    assert_eq!(s["phase"], "idle", "{s:#}");
    let vm = node.vm().unwrap();
    assert_eq!(vm.ok("cat /etc/persisted").unwrap().trim(), "mine");
    system_is_whole(vm);
    persist_has_grown(vm);
    packaged_files(vm, "2.0");
    // Nothing counts a committed boot.
    let before = vm.env1().unwrap();
    let f = node.power_cycle().unwrap();
    assert_eq!((f.ready.slot.as_str(), f.ready.trial), ("B", None));
    assert_eq!(node.vm().unwrap().env1().unwrap(), before);
    node
}

/// Machine id and SSH host keys are made on the node, never carried by the image.
fn two_copies_differ(images: &Images, node: &mut Node) {
    // The keys are made in the background of the first boot.
    let script = "for i in $(seq 100); do test -s /etc/ssh/ssh_host_ed25519_key.pub && break; sleep 1; done; \
                  cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub";
    let ours = node.vm().unwrap().ok(script).unwrap();
    // One machine at a time: the first one's power goes off, its disk is not needed any more.
    node.power_off().unwrap();
    let machine = os_e2e::vm::Machine::overlay(
        &node.machine.dir.join("2"),
        &images.disk("1"),
        node.machine.firmware,
    )
    .unwrap();
    let mut vm = machine.start().unwrap();
    vm.ready(os_e2e::guest::UP, 0).unwrap();
    let theirs = vm.ok(script).unwrap();
    assert_eq!(ours.lines().count(), 2, "{ours}");
    assert_eq!(theirs.lines().count(), 2, "{theirs}");
    for (a, b) in ours.lines().zip(theirs.lines()) {
        let key = |l: &str| l.split(' ').take(2).collect::<Vec<_>>().join(" ");
        assert!(a.len() >= 32 && key(a) != key(b), "the same on two machines: {a}");
    }
}

/// Mounts, units and the agent are as they should be.
fn system_is_whole(vm: &mut Vm) {
    let out = vm
        .ok("for i in $(seq 60); do systemctl is-system-running | grep -qE 'running|degraded' && break; sleep 2; done; \
             systemctl --failed --no-legend --plain; echo --; for m in / /etc /var /persist /opt; do findmnt -n -o TARGET,FSTYPE,OPTIONS $m; done; \
             echo --; systemctl is-active boot-complete.target os-agent.service; cat /run/os-agent/persist-missing 2>/dev/null; true")
        .unwrap();
    let parts: Vec<&str> = out.split("--\n").collect();
    assert_eq!(parts[0].trim(), "", "failed units:\n{out}");
    let root = parts[1].lines().next().unwrap();
    assert!(
        root.contains("ext4") && root.contains("ro,"),
        "root must be read-only: {root}"
    );
    assert!(
        parts[1].contains("overlay") && parts[1].contains("/persist "),
        "{out}"
    );
    assert_eq!(parts[2].trim(), "active\nactive", "{out}");
}

/// The disk is larger than the image was: partition table, kernel and file system know, and nothing is left to do.
fn persist_has_grown(vm: &mut Vm) {
    let out = vm
        .ok("p=$(readlink -f $(findmnt -n -o SOURCE /persist)); p=${p##*/}; d=$(basename $(readlink -f /sys/class/block/$p/..)); \
             cat /sys/class/block/$d/size /sys/class/block/$p/start /sys/class/block/$p/size; \
             df -B512 --output=size /persist | tail -1; os-agent grow-persist --json")
        .unwrap();
    let mut lines = out.lines();
    let mut number = || lines.next().unwrap().trim().parse::<u64>().unwrap();
    let (disk, start, partition, fs) = (number(), number(), number(), number());
    let rest = disk - start - partition;
    assert!(rest < 4096, "{rest} sectors of the disk are left: {out}");
    // Its tables and its journal take some of it.
    assert!(
        fs <= partition && fs > partition / 100 * 85,
        "the file system has {fs} of {partition} sectors: {out}"
    );
    let json: serde_json::Value = serde_json::from_str(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(json["changed"], false, "{json:#}");
}

/// What packages say about their files holds in the booted system.
fn packaged_files(vm: &mut Vm, version: &str) {
    let out = vm
        .ok("cd /usr/share/test-package; cat version; stat -c '%a %U:%G' . owned; stat -c '%h %i' pair-a pair-b; \
             getfattr --absolute-names --only-values -n user.test-package xattr; echo; \
             getfattr --absolute-names -e hex -n security.capability /usr/bin/test-package-capable | grep =; \
             stat -c '%a %U' /usr/bin/test-package-setuid; systemctl is-enabled test-package.service")
        .unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], version, "{out}");
    assert_eq!(
        &lines[1..3],
        ["750 testpkg:testpkg", "640 testpkg:testpkg"],
        "owners: {out}"
    );
    assert_eq!(lines[3], lines[4], "two names, one inode: {out}");
    assert!(lines[3].starts_with("2 "), "two links: {out}");
    assert_eq!(lines[5], "carried", "extended attribute: {out}");
    // Revision 2, effective, permitted bit 10 (cap_net_bind_service).
    assert_eq!(
        lines[6], "security.capability=0x0100000200040000000000000000000000000000",
        "{out}"
    );
    assert_eq!(lines[7], "4755 root", "{out}");
    assert_eq!(lines[8], "enabled", "{out}");
}

/// Bytes that the kernel has sent to the slot's partition since boot.
fn written_to_slot(vm: &mut Vm, slot: &str) -> u64 {
    let out = vm
        .ok(&format!(
            "d=$(readlink -f /run/slipway/root-{slot}); set -- $(cat /sys/class/block/${{d##*/}}/stat); echo $7"
        ))
        .unwrap();
    out.trim().parse::<u64>().unwrap() * 512
}

/// Highest resident size of the daemon so far.
fn peak_kib(vm: &mut Vm) -> u64 {
    let out = vm
        .ok("grep VmHWM /proc/$(systemctl show -p MainPID --value os-agent)/status")
        .unwrap();
    out.split_whitespace().nth(1).unwrap().parse().unwrap()
}
