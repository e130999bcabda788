//! The power is cut in the middle of a download, and again in the middle of the one that takes it up: boot, finish, commit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use os_e2e::guest::{STAGE, UP};
use os_e2e::http::Reply;
use os_e2e::images::images;
use os_e2e::node::{Node, say};
use os_e2e::product::sha256;
use os_e2e::vm::Firmware;

const MIB: u64 = 1 << 20;
/// What one cut may cost: what was written since the last flush, and what was on its way.
const CUT_COSTS: u64 = (64 + 16) * MIB;

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn a_resumed_update_is_cut_finished_and_committed() {
    let images = images().unwrap();
    let image = images.update("2");
    let (digest, size) = (sha256(&image).unwrap(), fs_err::metadata(&image).unwrap().len());
    let mut node = Node::start("resume", &images, "1", Firmware::Bios).unwrap();
    node.keep();
    node.server.put("/update.img", Reply::file(&image));
    let url = node.server.guest_url("/update.img");
    let stage = format!("stage --image '{url}' --sha256 {digest} --allow-http --op-id cut");
    let mut done = 0;
    for part in 1..=2u64 {
        let vm = node.vm().unwrap();
        vm.network().unwrap();
        vm.status().unwrap();
        vm.ok(&format!(
            "nohup os-agent {stage} --limit-rate 24M > /tmp/stage.log 2>&1 &"
        ))
        .unwrap();
        let goal = size * part / 3;
        let s = vm
            .status_until("part of the image", UP, |s| {
                s["progress"]["step"] == "fetch" && s["progress"]["done_bytes"].as_u64() >= Some(goal)
            })
            .unwrap();
        assert_eq!(s["env"]["try_slot"].as_str(), None);
        let sent = node.server.sent("/update.img");
        say(&format!(
            "cut {part} at {}: {} MiB sent so far",
            s["progress"]["done_bytes"],
            sent / MIB
        ));
        assert!(
            s["progress"]["done_bytes"].as_u64().unwrap() < size,
            "it was over already: {s:#}"
        );
        let f = node.power_cycle().unwrap();
        assert_eq!((f.ready.slot.as_str(), f.boots.len()), ("A", 1), "{f:?}");
        done = sent;
    }
    let vm = node.vm().unwrap();
    vm.network().unwrap();
    vm.status().unwrap();
    let a = vm.agent(&stage, STAGE).unwrap();
    assert_eq!(a.code, 0, "{}", a.text);
    let sent = node.server.sent("/update.img");
    say(&format!(
        "{} MiB sent for an image of {} MiB over two power cuts ({} MiB after the last)",
        sent / MIB,
        size / MIB,
        (sent - done) / MIB
    ));
    assert!(
        sent <= size + 2 * CUT_COSTS,
        "{sent} bytes sent for an image of {size}"
    );
    let f = node.flip().unwrap();
    assert_eq!((f.ready.slot.as_str(), f.ready.version.as_str()), ("B", "2"));
    node.vm().unwrap().committed("B").unwrap();
}
