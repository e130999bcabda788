//! Power cuts of a whole machine during stage and activation: it always boots a whole slot, and a repeated stage succeeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::{Random, long};
use os_e2e::guest::STAGE;
use os_e2e::http::Reply;
use os_e2e::images::{Images, images};
use os_e2e::node::{Fallback, Node, say};
use os_e2e::product::sha256;
use os_e2e::vm::Firmware;
use std::time::Duration;

/// Which part of an update is cut.
#[derive(Debug, Clone, Copy)]
enum When {
    Stage,
    Activate,
    Trial,
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn power_cuts_during_stage_and_activation() {
    let images = images().unwrap();
    let mut random = Random::new();
    let cuts: &[When] = &[When::Stage, When::Activate, When::Trial];
    let count = if long() { 10 } else { 3 };
    let mut node = Node::start("cuts", &images, "1", Firmware::Bios).unwrap();
    for i in 0..count {
        let when = cuts[i % cuts.len()];
        say(&format!("cut {i}: {when:?}"));
        cut(&images, &mut node, when, &mut random);
    }
    // After all that an update goes through.
    let target = if node.ready.slot == "A" { "B" } else { "A" };
    let version = if node.ready.version == "1" { "2" } else { "1" };
    node.staged(&images.update(version)).unwrap();
    let f = node.flip().unwrap();
    assert_eq!(
        (f.ready.slot.as_str(), f.ready.version.as_str()),
        (target, version)
    );
    node.vm().unwrap().committed(target).unwrap();
}

/// One cut; the machine runs a committed slot afterwards.
fn cut(images: &Images, node: &mut Node, when: When, random: &mut Random) {
    // What runs is not staged again: the other of two good versions is.
    let other = if node.ready.version == "1" { "2" } else { "1" };
    let image = images.update(other);
    let digest = sha256(&image).unwrap();
    node.server.put("/update.img", Reply::file(&image));
    let url = node.server.guest_url("/update.img");
    let running = node.ready.slot.clone();
    let stage = format!("os-agent stage --image '{url}' --sha256 {digest} --allow-http");
    let vm = node.vm().unwrap();
    vm.network().unwrap();
    vm.status().unwrap();
    let f = match when {
        When::Stage => {
            vm.ok(&format!("nohup {stage} >/dev/null 2>&1 &")).unwrap();
            std::thread::sleep(Duration::from_secs_f64(random.unit() * 20.0));
            let f = node.power_cycle().unwrap();
            assert_eq!(f.ready.slot, running, "a stage must not change what boots: {f:?}");
            f
        }
        When::Activate => {
            let (code, out) = vm.exec(&stage, STAGE).unwrap();
            assert_eq!(code, 0, "{out}");
            vm.ok("nohup os-agent activate --reboot >/dev/null 2>&1 &")
                .unwrap();
            std::thread::sleep(Duration::from_secs_f64(random.unit() * 3.0));
            node.power_cycle().unwrap()
        }
        When::Trial => {
            let (code, out) = vm.exec(&stage, STAGE).unwrap();
            assert_eq!(code, 0, "{out}");
            let from = vm.activate().unwrap();
            vm.wait(os_e2e::vm::GRUB_MARK, os_e2e::guest::UP, from).unwrap();
            std::thread::sleep(Duration::from_secs_f64(random.unit() * 15.0));
            node.power_cycle().unwrap()
        }
    };
    settle(node, &f);
}

/// A whole slot runs; a trial commits, anything else is committed already.
fn settle(node: &mut Node, f: &Fallback) {
    let (slot, version) = (f.ready.slot.clone(), f.ready.version.clone());
    assert!(["1", "2"].contains(&version.as_str()), "{f:?}");
    let s = node.vm().unwrap().committed(&slot).unwrap();
    say(&format!("slot {slot}, version {version}, phase {}", s["phase"]));
}
