//! A broken PERSIST: the committed slot boots, sshd and the agent answer and say why, no trial is consumed, and the kubelet
//! does not start without what it stored. `mounts` shows the same on the initramfs's script alone, without a machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use camino::Utf8Path;
use os_e2e::guest::STAGE;
use os_e2e::images::images;
use os_e2e::node::{Fallback, Node, say};
use os_e2e::proc;
use os_e2e::vm::Firmware;
use serde_json::Value;

/// What is left of PERSIST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Mounted read-write.
    Usable,
    /// What it holds is seen, changes are not stored.
    Readable,
    /// Nothing.
    Nothing,
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn five_ways() {
    let images = images().unwrap();
    let (start, journal) = persist_and_journal(&images.disk("1"));
    let mut node = Node::start("persist", &images, "1", Firmware::Bios).unwrap();
    node.keep();
    node.staged(&images.update("2")).unwrap();
    let vm = node.vm().unwrap();
    vm.ok("echo mine > /etc/persisted; echo identity > /var/lib/identity; sync")
        .unwrap();
    node.power_off().unwrap();
    let (disk, base) = (node.machine.disk.clone(), node.machine.dir.join("base.qcow2"));
    copy(&disk, &base);

    // 1. The journal is garbage, and it has something to replay (the power was cut).
    poke(&disk, &format!("write -P 0xa5 {} 64k", journal));
    let f = node.power_on().unwrap();
    let s = answers("journal garbage", &mut node, &f, Left::Usable);
    assert!(problems(&s).contains("e2fsck -p ended with 1"), "{s:#}");
    node.power_off().unwrap();

    // 2. The first superblock is zeros.
    copy(&base, &disk);
    poke(&disk, &format!("write -P 0 {} 1024", start + 1024));
    let f = node.power_on().unwrap();
    let s = answers("superblock zeroed", &mut node, &f, Left::Readable);
    assert!(problems(&s).contains("bad superblock"), "{s:#}");

    // 3. No partition.
    node.vm()
        .unwrap()
        .ok("sgdisk -d 4 $(readlink -f /run/slipway/disk); sync")
        .unwrap();
    let f = node.power_cycle().unwrap();
    let s = answers("partition missing", &mut node, &f, Left::Nothing);
    assert!(problems(&s).contains("no partition 4"), "{s:#}");
    node.power_off().unwrap();

    // 4. The device takes no write.
    copy(&base, &disk);
    node.machine.read_only = true;
    let f = node.power_on().unwrap();
    let s = answers("read-only device", &mut node, &f, Left::Readable);
    assert!(problems(&s).contains("can only be read"), "{s:#}");
    node.power_off().unwrap();
    node.machine.read_only = false;

    // 5. Neither a block nor an inode is free.
    copy(&base, &disk);
    node.power_on().unwrap();
    full(&mut node);
}

fn full(node: &mut Node) {
    let vm = node.vm().unwrap();
    vm.status().unwrap();
    let (code, out) = vm
        .exec(
            "mkdir -p /persist/junk; cd /persist/junk; i=0; while : > $i; do i=$((i+1)); done 2>/dev/null; \
             for n in 0 1 2 3; do dd if=/dev/zero of=$n bs=1M; sync; dd if=/dev/zero of=$n bs=1k oflag=append conv=notrunc; done 2>/dev/null; \
             sync; df /persist; df -i /persist; ! : > one-more",
            STAGE,
        )
        .unwrap();
    assert_eq!(code, 0, "PERSIST is not full: {out}");
    // A trial would get no copy of /etc: refused before anything is armed.
    let a = vm.agent("activate", STAGE).unwrap();
    assert_eq!(a.code, 5, "{}", a.text);
    assert!(a.text.contains("PERSIST is full"), "{}", a.text);
    // The agent's own documents still find room.
    let a = vm
        .agent("stage --image slot:B --op-id on-a-full-disk", STAGE)
        .unwrap();
    assert_eq!(a.code, 0, "{}", a.text);
    let f = node.power_cycle().unwrap();
    let s = answers("full", node, &f, Left::Usable);
    assert!(problems(&s).contains("PERSIST is full"), "{s:#}");
    assert_eq!(s["phase"], "staged", "{s:#}");
    let h = node.vm().unwrap().ok("os-agent history --json").unwrap();
    assert!(h.contains("on-a-full-disk"), "{h}");
    // And with room again everything is as it was.
    node.vm().unwrap().ok("rm -rf /persist/junk; sync").unwrap();
    let f = node.power_cycle().unwrap();
    let s = answers("room again", node, &f, Left::Usable);
    assert_eq!(problems(&s), "", "{s:#}");
}

/// What must hold in each case; the status.
fn answers(what: &str, node: &mut Node, f: &Fallback, left: Left) -> Value {
    assert_eq!(
        (f.ready.slot.as_str(), f.ready.version.as_str()),
        ("A", "1"),
        "{what}: {f:?}"
    );
    assert_eq!(f.boots.len(), 1, "{what}: reboots: {f:?}");
    assert_eq!(f.ready.trial, None, "{what}");
    let vm = node.vm().unwrap();
    let s = vm.status().unwrap();
    assert_eq!(s["persist_available"], left == Left::Usable, "{what}: {s:#}");
    assert_eq!(
        (s["env"]["cur"].as_str(), s["env"]["try_slot"].as_str()),
        (Some("A"), None),
        "{what}: {s:#}"
    );
    let ssh = vm
        .ok("for i in $(seq 30); do t=$( (exec 3<>/dev/tcp/127.0.0.1/22; head -c 7 <&3) 2>/dev/null ) && break; sleep 2; done; echo \"$t\"")
        .unwrap();
    assert_eq!(ssh.trim(), "SSH-2.0", "{what}: sshd");
    let kept = vm
        .ok("cat /etc/persisted /var/lib/identity 2>/dev/null; true")
        .unwrap();
    assert_eq!(
        kept.trim() == "mine\nidentity",
        left != Left::Nothing,
        "{what}: {kept}"
    );
    let kubelet = vm
        .ok("mkdir -p /run/systemd/system; printf '[Service]\\nExecStart=/usr/bin/sleep infinity\\n' > /run/systemd/system/kubelet.service; \
             systemctl daemon-reload; systemctl start kubelet; systemctl is-active kubelet; true")
        .unwrap();
    let runs = kubelet.lines().last() == Some("active");
    assert_eq!(runs, left == Left::Usable, "{what}: kubelet is {kubelet}");
    if left != Left::Usable {
        let a = vm.agent("stage --image slot:B", STAGE).unwrap();
        assert_eq!(
            a.code, 5,
            "{what}: staging without a place for the state: {}",
            a.text
        );
    }
    say(&format!(
        "{what}: slot A, sshd, kubelet {}; {}",
        kubelet.trim(),
        problems(&s)
    ));
    s
}

fn problems(s: &Value) -> String {
    let list = s["problems"].as_array().unwrap();
    let texts: Vec<&str> = list.iter().filter_map(|p| p["message"].as_str()).collect();
    texts.join("; ")
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    proc::sh(&["cp", "--reflink=auto", from.as_str(), to.as_str()]).unwrap();
}

/// Changes a disk that no machine uses.
fn poke(disk: &Utf8Path, command: &str) {
    let out = proc::sh(&["qemu-io", "-f", "qcow2", "-c", command, disk.as_str()]).unwrap();
    assert!(out.contains("wrote"), "qemu-io {command}: {out}");
}

/// Bytes at which PERSIST and its file system's journal begin.
fn persist_and_journal(disk: &Utf8Path) -> (u64, u64) {
    let out = proc::sh(&["sgdisk", "-i", "4", disk.as_str()]).unwrap();
    let line = out.lines().find(|l| l.starts_with("First sector:")).unwrap();
    let sector: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    let start = sector * 512;
    let place = format!("{disk}?offset={start}");
    let out = proc::sh(&["debugfs", "-R", "blocks <8>", &place]).unwrap();
    let block: u64 = out.split_whitespace().next().unwrap().parse().unwrap();
    let out = proc::sh(&["dumpe2fs", "-h", &place]).unwrap();
    let line = out.lines().find(|l| l.starts_with("Block size:")).unwrap();
    let size: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    (start, start + block * size)
}
