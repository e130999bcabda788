//! Why a trial ended, on one node with UEFI firmware: three panics that pstore kept, three silent resets, three trials that
//! were cut after they had reached the agent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use os_e2e::guest::{STAGE, UP};
use os_e2e::images::{Broken, Images, images};
use os_e2e::node::{Fallback, Node, say};
use os_e2e::vm::Firmware;
use serde_json::Value;
use std::sync::{Mutex, OnceLock, PoisonError};

/// One node for all of them, so that each begins where the one before ended.
fn on_node(case: impl FnOnce(&Images, &mut Node)) {
    static NODE: OnceLock<Mutex<(Images, Node)>> = OnceLock::new();
    let node = NODE.get_or_init(|| {
        let images = images().unwrap();
        let mut node = Node::start("causes", &images, "2", Firmware::Uefi).unwrap();
        node.keep();
        Mutex::new((images, node))
    });
    let mut guard = node.lock().unwrap_or_else(PoisonError::into_inner);
    let (images, node) = &mut *guard;
    case(images, node);
}

const ALL_TRIES: [(&str, &str); 4] = [("B", "2"), ("B", "1"), ("B", "0"), ("A", "-")];

fn seen(f: &Fallback) -> Vec<(&str, &str)> {
    f.boots.iter().map(|(s, t)| (s.as_str(), t.as_str())).collect()
}

/// The node runs version 2 from slot A and knows why; the status and the entry of the digest.
fn fell_back(node: &mut Node, digest: &str, f: &Fallback) -> (Value, Value) {
    assert_eq!(
        (f.ready.slot.as_str(), f.ready.version.as_str()),
        ("A", "2"),
        "{f:?}"
    );
    let of = |s: &Value| -> Option<Value> {
        let list = s["failed_digests"].as_array()?;
        list.iter()
            .find(|d| d["digest"].as_str().is_some_and(|d| d.contains(digest)))
            .cloned()
    };
    let vm = node.vm().unwrap();
    let s = vm
        .status_until("a cause for the fallback", UP, |s| of(s).is_some())
        .unwrap();
    say(&format!(
        "cause {}: {}; last sign of life: {}",
        s["last_failure"]["cause"], s["last_failure"]["message"], s["last_failure"]["last_sign_of_life"]
    ));
    let entry = of(&s).unwrap();
    (s, entry)
}

/// Whether the digest would be staged.
fn accepted(node: &mut Node, digest: &str) -> (i32, String) {
    let args = format!("stage --image https://images.example/3 --sha256 {digest} --dry-run");
    let a = node.vm().unwrap().agent(&args, STAGE).unwrap();
    (a.code, a.text)
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn a_three_panics_are_told_with_the_kernels_last_lines() {
    on_node(|images, node| {
        let digest = node.staged(&images.broken(Broken::PanicsLate).unwrap()).unwrap();
        let f = node.flip().and_then(|first| node.settled(first)).unwrap();
        assert_eq!(seen(&f), ALL_TRIES);
        let (s, entry) = fell_back(node, &digest, &f);
        let failure = &s["last_failure"];
        assert_eq!(failure["cause"], "panic", "{s:#}");
        let lines: Vec<&str> = failure["kernel_lines"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        say(&format!("kernel: {lines:#?}"));
        assert!(
            lines.iter().any(|l| l.contains("version 3 is about to crash")),
            "{lines:#?}"
        );
        assert!(lines.iter().any(|l| l.contains("Kernel panic")), "{lines:#?}");
        assert_eq!(entry["denied"], true, "{entry:#}");
        let vm = node.vm().unwrap();
        let text = vm.ok("os-agent status").unwrap();
        assert!(
            text.contains("kernel: ") && text.contains("Kernel panic"),
            "{text}"
        );
        // Archived, and the firmware's memory is free again. A trial's own systemd-pstore may have been cut while it moved the
        // record of the one before, so there may be fewer than three.
        let kept = vm
            .ok("ls /persist/os-agent/panics | wc -l; ls /sys/fs/pstore | wc -l")
            .unwrap();
        say(&format!(
            "records archived, records left in the firmware: {}",
            kept.trim().replace('\n', ", ")
        ));
        let counts: Vec<u32> = kept.lines().map(|l| l.trim().parse().unwrap()).collect();
        assert!(counts[0] >= 1 && counts[1] == 0, "{kept}");
    });
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn b_three_silent_resets_are_no_report_until_somebody_forgets_it() {
    on_node(|images, node| {
        let digest = node.staged(&images.broken(Broken::Resets).unwrap()).unwrap();
        let f = node.flip().and_then(|first| node.settled(first)).unwrap();
        assert_eq!(seen(&f), ALL_TRIES);
        let (s, entry) = fell_back(node, &digest, &f);
        let failure = &s["last_failure"];
        assert_eq!(
            (failure["cause"].as_str(), failure["tries"].as_u64()),
            (Some("no_report"), Some(3)),
            "{s:#}"
        );
        let message = failure["message"].as_str().unwrap();
        assert!(
            message.contains("3 of 3 tries") && message.contains("power cut looks the same"),
            "{message}"
        );
        let sign = failure["last_sign_of_life"].as_str().unwrap();
        assert!(sign.contains("initramfs"), "{sign}");
        assert_eq!(entry["denied"], true, "{entry:#}");
        let (code, text) = accepted(node, &digest);
        assert_eq!(code, 3, "{text}");
        assert!(text.contains("forget"), "{text}");
        node.vm()
            .unwrap()
            .ok(&format!("os-agent forget {digest}"))
            .unwrap();
        let (code, text) = accepted(node, &digest);
        assert_eq!(code, 0, "{text}");
    });
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn c_trials_that_reached_the_agent_and_were_cut_are_not_denied() {
    on_node(|images, node| {
        let digest = node.staged(&images.broken(Broken::NeverReady).unwrap()).unwrap();
        let mut f = node.flip().unwrap();
        for left in [2u8, 1, 0] {
            assert_eq!((f.ready.slot.as_str(), f.ready.trial), ("B", Some(left)), "{f:?}");
            let waits = |s: &Value| s["phase"] == "trial" && s["health"]["boot_complete"] == true;
            node.vm()
                .unwrap()
                .status_until("the trial's agent", UP, waits)
                .unwrap();
            f = node.power_cycle().unwrap();
        }
        let (s, entry) = fell_back(node, &digest, &f);
        let failure = &s["last_failure"];
        assert_eq!(failure["cause"], "interrupted", "{s:#}");
        assert!(
            failure["last_sign_of_life"].as_str().unwrap().contains("10-wait"),
            "{s:#}"
        );
        assert_eq!(entry["denied"], false, "{entry:#}");
        let (code, text) = accepted(node, &digest);
        assert_eq!(code, 0, "{text}");
    });
}
