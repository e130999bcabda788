//! Four broken versions 3 on one node that runs version 2: each ends on version 2 again, with a cause that people can read.
//! The kernel panic gets all three tries; the others begin with one try left, as if GRUB had counted two already.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::long;
use os_e2e::guest::UP;
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
        let firmware = if long() { Firmware::Uefi } else { Firmware::Bios };
        let mut node = Node::start("broken3", &images, "2", firmware).unwrap();
        node.keep();
        Mutex::new((images, node))
    });
    let mut guard = node.lock().unwrap_or_else(PoisonError::into_inner);
    let (images, node) = &mut *guard;
    case(images, node);
}

/// Stages and activates a broken image; the node must end on version 2 in slot A.
fn breaks(images: &Images, node: &mut Node, how: Broken, one_try: bool) -> (Fallback, Value) {
    say(&format!("version 3, {}", how.name()));
    let digest = node.staged(&images.broken(how).unwrap()).unwrap();
    let f = if one_try && !long() {
        node.flip_with_one_try()
    } else {
        node.flip()
    }
    .and_then(|first| node.settled(first))
    .unwrap();
    assert_eq!(
        (f.ready.slot.as_str(), f.ready.version.as_str()),
        ("A", "2"),
        "{f:?}"
    );
    let last = f.boots.last().unwrap();
    assert_eq!((last.0.as_str(), last.1.as_str()), ("A", "-"), "{f:?}");
    let s = node
        .vm()
        .unwrap()
        .status_until("a cause for the fallback", UP, |s| {
            s["failed_digests"].as_array().is_some_and(|a| {
                a.iter()
                    .any(|d| d["digest"].as_str().is_some_and(|d| d.contains(&digest)))
            })
        })
        .unwrap();
    let failure = &s["last_failure"];
    say(&format!(
        "cause {}: {}",
        failure["cause"],
        failure["message"].as_str().unwrap_or_default()
    ));
    assert!(
        failure["message"].as_str().is_some_and(|m| m.len() > 10),
        "no readable cause: {s:#}"
    );
    // A node that fell back takes the next update.
    let env = node.vm().unwrap().env1().unwrap();
    assert_eq!((env.cur.letter(), env.try_slot), ("A", None), "{env:?}");
    (f, s)
}

fn cause(s: &Value) -> String {
    let c = s["last_failure"]["cause"].as_str().unwrap_or_default();
    c.to_ascii_lowercase().replace(['_', '-'], "")
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn kernel_panic_three_tries() {
    on_node(|images, node| {
        let (f, s) = breaks(images, node, Broken::Panic, false);
        let seen: Vec<(&str, &str)> = f.boots.iter().map(|(s, t)| (s.as_str(), t.as_str())).collect();
        assert_eq!(seen, [("B", "2"), ("B", "1"), ("B", "0"), ("A", "-")]);
        assert!(
            cause(&s).contains("noreport") || cause(&s).contains("panic"),
            "{s:#}"
        );
    });
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn init_missing_ends_by_the_watchdog() {
    on_node(|images, node| {
        let (_, s) = breaks(images, node, Broken::NoInit, true);
        assert!(cause(&s).contains("noreport"), "{s:#}");
    });
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn failing_hook_goes_back_at_once() {
    on_node(|images, node| {
        // All three tries are there, and one is enough: a bad verdict does not wait for the others.
        let (f, s) = breaks(images, node, Broken::Hook, false);
        let seen: Vec<(&str, &str)> = f.boots.iter().map(|(s, t)| (s.as_str(), t.as_str())).collect();
        assert_eq!(seen, [("B", "2"), ("A", "-")]);
        assert!(cause(&s).contains("health"), "{s:#}");
        let message = s["last_failure"]["message"].as_str().unwrap();
        assert!(
            message.contains("critical-broken"),
            "the hook is not named: {message}"
        );
    });
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot"]
fn agent_that_exits_ends_by_the_deadline() {
    on_node(|images, node| {
        let (_, s) = breaks(images, node, Broken::AgentExits, true);
        assert!(
            cause(&s).contains("noreport") || cause(&s).contains("deadline"),
            "{s:#}"
        );
    });
}
