//! Whole stories on a simulated node: real engine, real write path, GRUB's model, scripted boots.
#![allow(clippy::disallowed_methods)]

use super::Begun;
use crate::error::AgentError;
use crate::testing::{Fate, Node, Write, image, image_without, sha256};
use os_proto::codes::Code;
use os_proto::env_block::Env;
use os_proto::layout::Slot;
use os_proto::record::{Content, SlotRecord};
use os_proto::v1::{self, Cause, Phase};
use std::time::Duration;

fn code<T: std::fmt::Debug>(r: Result<T, AgentError>) -> Code {
    r.unwrap_err().code
}

fn wanted(n: &Node, version: &str) -> String {
    n.publish(version).1
}

#[test]
fn an_update_is_tried_and_committed() {
    let mut n = Node::new();
    assert_eq!(n.phase(), Phase::Idle);
    n.update("2").unwrap();
    assert_eq!(n.phase(), Phase::Trial);
    assert_eq!(n.disk.running(), Slot::B);
    n.committed();
    assert!(
        n.host.set().timer_stopped,
        "the early timer is stopped by the commit"
    );
    assert_eq!(n.history, [Slot::A, Slot::B]);
    assert_eq!(n.disk.env(), Env::committed(Slot::B, n.disk.env().gen_));
    let log = n.engine().history(0).operations;
    assert_eq!(
        log.iter()
            .map(|o| (o.kind.as_str(), o.code.as_str()))
            .collect::<Vec<_>>(),
        [("activate", ""), ("stage", "")]
    );
    assert_eq!(log[0].message, "slot B is committed");
    // And on to version 3, back into slot A.
    n.update("3").unwrap();
    n.committed();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::A]);
}

#[test]
fn a_reboot_that_a_step_wants_is_in_the_status_until_an_update_has_its_own() {
    let n = Node::new();
    n.host.set().steps_reboot = Some("new kernel".into());
    let s = n.engine().status();
    assert!(
        s.reboot_required && s.reboot_reason == "steps: new kernel",
        "{s:?}"
    );
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
    assert!(n.engine().status().reboot_reason.contains("is armed"));
}

#[test]
fn t44_ten_good_boots_change_no_environment_byte() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    let before = n.disk.medium().env.clone();
    for _ in 0..10 {
        n.boot();
    }
    assert_eq!(n.disk.medium().env, before);
    assert_eq!(n.phase(), Phase::Idle);
}

#[test]
fn what_must_be_durable_comes_first() {
    let mut n = Node::new();
    // Something armed before, so that disarming has to be seen.
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
    n.engine().cancel(&v1::CancelRequest::default(), "test").unwrap();
    n.disk.medium().log.clear();
    let r = n.stage_request("3", "");
    n.stage(&r).unwrap();
    n.activate("", true).unwrap();
    let log = n.disk.medium().log.clone();
    let first = |f: &dyn Fn(&Write) -> bool| log.iter().position(f).unwrap();
    let last = |f: &dyn Fn(&Write) -> bool| log.iter().rposition(f).unwrap();
    let slot = |w: &Write| matches!(w, Write::Slot(..));
    let record = first(&|w| *w == Write::Record(Slot::B));
    assert!(record < first(&slot), "dirty before the first byte: {log:?}");
    let arm = first(&|w| matches!(w, Write::Env(e) if e.try_slot == Some(Slot::B)));
    assert!(last(&slot) < arm && last(&|w| *w == Write::Flush(Slot::B)) < arm);
    let state = log[..arm].iter().rposition(|w| *w == Write::State).unwrap();
    assert!(state > last(&slot), "armed is recorded before it is armed");
    n.reboot_when_asked();
    n.committed();
}

#[test]
fn three_silent_tries_fall_back_deny_and_forget_allows_again() {
    let mut n = Node::new();
    n.fate("3", Fate::Hangs);
    n.update("2").unwrap();
    n.committed();
    let sum = wanted(&n, "3");
    n.update("3").unwrap();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::A, Slot::A, Slot::A, Slot::B]);
    let s = n.status();
    assert_eq!(s.phase(), Phase::FellBack);
    let f = s.last_failure.unwrap();
    assert_eq!((f.cause(), f.tries), (Cause::NoReport, 3));
    assert!(f.message.contains("power cut"), "{}", f.message);
    assert_eq!(s.failed_digests.len(), 1);
    assert!(s.failed_digests[0].denied && s.failed_digests[0].digest == sum);
    assert_eq!(n.disk.env().try_slot, None);
    // The same digest is refused, by stage; force and forget allow it.
    let r = n.stage_request("3", "");
    assert_eq!(code(n.stage(&r)), Code::DigestFailedBefore);
    n.stage(&v1::StageRequest {
        force: true,
        ..r.clone()
    })
    .unwrap();
    n.engine().forget(&sum).unwrap();
    assert_eq!(code(n.engine().forget(&sum)), Code::NothingToDo);
    n.fate("3", Fate::Good);
    n.stage(&r).unwrap();
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    assert!(n.status().failed_digests.is_empty());
}

#[test]
fn a_panic_is_a_panic_only_with_a_record() {
    let mut n = Node::new();
    n.fate("2", Fate::Panics("Kernel panic - not syncing: no init".into()));
    n.update("2").unwrap();
    let f = n.status().last_failure.unwrap();
    assert_eq!(f.cause(), Cause::Panic);
    assert!(f.message.contains("no init"));
    assert_eq!(f.kernel_lines, ["Kernel panic - not syncing: no init"]);
    assert_eq!(n.history.len(), 5, "three tries: {:?}", n.history);
}

#[test]
fn a_trial_without_persist_goes_back_at_once_and_is_not_denied() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", true).unwrap();
    n.host.set().obstacle = Some("no partition 4".into());
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::B);
    n.until("the way back", |n| n.host.set().reboots > 0);
    n.host.set().obstacle = None;
    n.reboot_when_asked();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::A], "two boots, not four");
    let s = n.status();
    let f = s.last_failure.unwrap();
    assert_eq!(f.cause(), Cause::Interrupted);
    assert!(f.message.contains("no partition 4"), "{}", f.message);
    assert!(!s.failed_digests[0].denied);
}

#[test]
fn a_trial_that_would_get_no_etc_is_not_armed() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.disk.medium().no_room = Some("PERSIST is full".into());
    n.host.set().persist_problems = vec!["PERSIST is full: 0 inodes".into()];
    assert_eq!(code(n.activate("a", true)), Code::StateWriteFailed);
    assert_eq!(n.disk.env().try_slot, None);
    assert_eq!(n.phase(), Phase::Staged);
    assert!(n.status().problems.iter().any(|p| p.message.contains("0 inodes")));
    n.disk.medium().no_room = None;
    n.activate("a", true).unwrap();
    // The same order again is the stored answer, room or not.
    n.disk.medium().no_room = Some("PERSIST is full".into());
    n.activate("a", true).unwrap();
    n.reboot_when_asked();
    n.committed();
}

#[test]
fn a_rollback_after_a_commit_keeps_the_slots_own_etc() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    assert_eq!(n.disk.medium().keep_etc, None, "an update gets a copy");
    n.stop();
    n.boot();
    let ask = v1::RollbackRequest {
        reboot: true,
        ..Default::default()
    };
    n.engine().rollback(&ask, "t").unwrap();
    n.until("armed", |n| n.disk.env().try_slot == Some(Slot::A));
    assert_eq!(n.disk.medium().keep_etc, Some(Slot::A));
    n.reboot_when_asked();
    n.committed();
}

#[test]
fn a_critical_hook_sends_the_node_back_at_once() {
    let mut n = Node::new();
    n.fate("2", Fate::Hook("critical-net".into(), Some(1)));
    n.update("2").unwrap();
    n.reboot_when_asked();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::A], "one try only");
    let s = n.status();
    assert_eq!(s.phase(), Phase::FellBack);
    let f = s.last_failure.unwrap();
    assert_eq!(f.cause(), Cause::HealthFailed);
    assert!(
        f.message.contains("critical-net ended with 1: says the hook"),
        "{}",
        f.message
    );
    assert!(s.failed_digests[0].denied);
    n.restart();
    assert_eq!(n.phase(), Phase::FellBack, "it is still said after a restart");
}

#[test]
fn a_bad_hook_is_repeated_until_the_deadline_and_then_final() {
    let mut n = Node::new();
    n.fate("2", Fate::Hook("20-app".into(), Some(3)));
    n.update("2").unwrap();
    n.clock.advance(Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(n.phase(), Phase::Trial);
    n.reboot_when_asked();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::A]);
    assert_eq!(n.status().last_failure.unwrap().cause(), Cause::HealthFailed);
}

#[test]
fn a_boot_that_never_completes_uses_up_its_tries_by_the_deadline() {
    let mut n = Node::new();
    n.fate("2", Fate::NeverComplete);
    n.update("2").unwrap();
    n.reboot_when_asked();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::B);
    n.reboot_when_asked();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::B, Slot::B, Slot::A]);
    let f = n.status().last_failure.unwrap();
    assert_eq!(f.cause(), Cause::Deadline);
    assert!(f.message.contains("boot-complete.target"), "{}", f.message);
    assert!(n.status().failed_digests[0].denied);
}

#[test]
fn tries_that_reach_the_agent_and_lose_power_are_not_denied() {
    let mut n = Node::new();
    n.fate("2", Fate::PowerFails);
    n.update("2").unwrap();
    let s = n.status();
    assert_eq!(s.last_failure.unwrap().cause(), Cause::Interrupted);
    assert!(!s.failed_digests[0].denied);
    n.fate("2", Fate::Good);
    n.update("2").unwrap();
    n.committed();
}

#[test]
fn a_hook_that_says_not_yet_holds_the_commit_up() {
    let mut n = Node::new();
    n.fate("2", Fate::Hook("10-wait".into(), Some(75)));
    n.update("2").unwrap();
    n.until("a round", |n| n.status().health.is_some());
    assert_eq!(n.phase(), Phase::Trial);
    let r = n.engine().commit(&v1::CommitRequest::default(), "test");
    assert_eq!(code(r), Code::TrialRunning);
    n.host.set().hooks.clear();
    n.committed();
}

#[test]
fn confirm_by_the_cluster() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    let r = v1::ActivateRequest {
        op_id: "roll-1".into(),
        reboot: true,
        confirm: v1::Confirm::Cluster as i32,
        deadline_secs: 1200,
        ..Default::default()
    };
    let _ = n.engine().activate(&r, "test").unwrap();
    n.reboot_when_asked();
    n.until("health", |n| n.status().health.is_some_and(|h| h.healthy));
    assert_eq!(n.phase(), Phase::Trial, "healthy, but nobody confirmed");
    let mark = |digest: &str, boot_id: &str| v1::CommitRequest {
        digest: digest.into(),
        boot_id: boot_id.into(),
        ..Default::default()
    };
    let e = n.engine();
    let boot_id = n.status().boot_id;
    assert_eq!(
        code(e.commit(&mark(&"00".repeat(32), &boot_id), "test")),
        Code::NotStaged
    );
    assert_eq!(code(e.commit(&mark("", "another"), "test")), Code::BootIdChanged);
    let sum = wanted(&n, "2");
    assert!(!e.commit(&mark(&sum, &boot_id), "test").unwrap().already);
    assert!(e.commit(&mark(&sum, &boot_id), "test").unwrap().already);
    assert_eq!(n.phase(), Phase::Idle);
}

#[test]
fn silence_of_the_cluster() {
    for (keep, what) in [(true, v1::OnSilence::Keep), (false, v1::OnSilence::Reboot)] {
        let mut n = Node::new();
        let r = n.stage_request("2", "");
        n.stage(&r).unwrap();
        let r = v1::ActivateRequest {
            reboot: true,
            confirm: v1::Confirm::Cluster as i32,
            on_silence: what as i32,
            ..Default::default()
        };
        let _ = n.engine().activate(&r, "test").unwrap();
        n.reboot_when_asked();
        n.host.set().timer_stopped = false;
        if keep {
            n.until("keep", |n| n.host.set().timer_stopped);
            n.clock.advance(Duration::from_secs(3600));
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(n.host.set().reboots, 0);
            assert_eq!(n.phase(), Phase::Trial);
            n.until("health", |n| n.status().health.is_some_and(|h| h.healthy));
            n.engine().commit(&v1::CommitRequest::default(), "test").unwrap();
        } else {
            n.reboot_when_asked();
            assert_eq!(n.disk.running(), Slot::B, "one try is used up");
            assert_eq!(n.disk.env().left, Some(1));
        }
    }
}

#[test]
fn the_same_operation_id_joins_or_returns_the_stored_result() {
    let mut n = Node::new();
    n.source.hold(true);
    let r = n.stage_request("2", "op-1");
    let first = n.engine().stage(&r, "test").unwrap();
    let again = n.engine().stage(&r, "test").unwrap();
    assert!(matches!(again, super::Begun::Running(_)));
    let other = n.stage_request("3", "op-2");
    assert_eq!(code(n.stage(&other)), Code::Busy);
    assert_eq!(
        code(
            n.engine()
                .activate(&v1::ActivateRequest::default(), "test")
                .map(|_| ())
        ),
        Code::Busy
    );
    n.source.hold(false);
    drop((first, again));
    n.until("staged", |n| n.phase() == Phase::Staged);
    let opened = n.source.opened();
    n.restart();
    let r = n.stage(&r).unwrap();
    assert_eq!(r.slot, Some(Slot::B));
    assert_eq!(
        n.source.opened(),
        opened,
        "the stored result, also after a restart"
    );
    n.activate("op-3", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    let env = n.disk.env();
    n.activate("op-3", true).unwrap();
    n.clock.advance(Duration::from_secs(5));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(n.disk.env(), env);
    assert_eq!(n.host.set().reboots, 0, "at most one reboot");
    assert_eq!(code(n.activate("op-1", false)), Code::InvalidArgument);
}

#[test]
fn what_an_uncommitted_slot_refuses() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
    let three = n.stage_request("3", "");
    assert_eq!(code(n.stage(&three)), Code::TrialRunning);
    assert_eq!(code(n.activate("", false)), Code::TrialRunning);
    n.fate("2", Fate::Hook("x".into(), Some(75)));
    n.boot();
    assert_eq!(n.phase(), Phase::Trial);
    assert_eq!(code(n.stage(&three)), Code::TrialRunning);
    assert_eq!(code(n.activate("", true)), Code::TrialRunning);
    // Rollback ends the trial at once, and the digest is denied.
    n.engine()
        .rollback(&v1::RollbackRequest::default(), "test")
        .unwrap();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::A);
    let s = n.status();
    assert_eq!(
        (s.phase(), s.last_failure.unwrap().cause()),
        (Phase::FellBack, Cause::RolledBack)
    );
    assert_eq!(code(n.stage(&r)), Code::DigestFailedBefore);
    n.stage(&three).unwrap();
}

#[test]
fn a_slot_chosen_at_the_console_is_foreign() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    n.boot_as(Some(Slot::A));
    assert_eq!(n.phase(), Phase::Foreign);
    let r = n.stage_request("3", "");
    assert_eq!(code(n.stage(&r)), Code::UncommittedBoot);
    assert_eq!(code(n.activate("", true)), Code::UncommittedBoot);
    // Back to the committed slot by its digest.
    let back = v1::ActivateRequest {
        digest: wanted(&n, "2"),
        reboot: true,
        ..Default::default()
    };
    let _ = n.engine().activate(&back, "test").unwrap();
    n.reboot_when_asked();
    assert_eq!((n.disk.running(), n.phase()), (Slot::B, Phase::Idle));
    // Or it is kept.
    n.boot_as(Some(Slot::A));
    n.engine().commit(&v1::CommitRequest::default(), "test").unwrap();
    assert_eq!((n.disk.env().cur, n.phase()), (Slot::A, Phase::Idle));
}

#[test]
fn t38_a_boot_loader_that_does_not_count_is_noticed_and_the_second_time_terminal() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    for round in 1..=2 {
        n.activate("", true).unwrap();
        let env = n.disk.env();
        n.boot_as(Some(Slot::A)); // looks like kexec: nothing was counted
        assert_eq!(env.left, Some(3));
        let s = n.status();
        assert_eq!(s.phase(), Phase::Staged, "round {round}");
        assert_eq!(s.last_failure.unwrap().code, "TrialNotStarted");
        assert!(s.failed_digests.is_empty(), "the digest is not blamed");
        assert_eq!(n.disk.env().try_slot, None);
    }
    assert_eq!(code(n.activate("", true)), Code::TrialNotStarted);
    n.engine().forget(&wanted(&n, "2")).unwrap();
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    n.committed();
}

#[test]
fn rollback_when_idle_is_a_verified_trial_of_the_other_slot() {
    let mut n = Node::new();
    let none = v1::RollbackRequest {
        reboot: true,
        ..Default::default()
    };
    assert_eq!(
        code(n.engine().rollback(&none, "test").map(|_| ())),
        Code::NothingToDo
    );
    n.update("2").unwrap();
    n.committed();
    // Repeating it wants the same: the other slot stays armed, and then the node restarts.
    let armed = v1::RollbackRequest::default();
    n.engine().rollback(&armed, "test").unwrap();
    n.until("the other slot is armed", |n| n.phase() == Phase::Armed);
    let env = n.disk.env();
    n.engine().rollback(&armed, "test").unwrap();
    assert_eq!((n.phase(), n.disk.env()), (Phase::Armed, env));
    n.engine().rollback(&none, "test").unwrap();
    n.reboot_when_asked();
    assert_eq!(n.phase(), Phase::Trial);
    n.committed();
    assert_eq!(n.disk.running(), Slot::A);
    // A slot that rotted since is not armed.
    n.disk.medium().slots[1][100_000] ^= 1;
    let r = n.engine().rollback(&none, "test").unwrap();
    let super::Begun::Running(h) = r else {
        panic!("it reads the slot back")
    };
    n.until("the end", |_| h.follow().borrow().result.is_some());
    assert_eq!(
        code(h.follow().borrow().result.clone().unwrap()),
        Code::ChecksumMismatch
    );
    assert_eq!(n.disk.env().try_slot, None);
    let b = &n.status().slots[1];
    assert_eq!(b.state(), v1::SlotState::Dirty);
}

#[test]
fn a_staged_image_that_never_ran_is_no_way_back() {
    let n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
    let ask = v1::RollbackRequest::default();
    n.engine().rollback(&ask, "test").unwrap();
    assert_eq!((n.phase(), n.disk.env().try_slot), (Phase::Staged, None));
    // Again, by hand or after a kill: nothing is armed.
    assert_eq!(
        code(n.engine().rollback(&ask, "test").map(|_| ())),
        Code::NothingToDo
    );
    assert_eq!((n.phase(), n.disk.env().try_slot), (Phase::Staged, None));
}

#[test]
fn verification_is_not_inherited_by_the_next_process() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.restart();
    assert_eq!(n.phase(), Phase::Staged);
    n.disk.medium().slots[1][50_000] ^= 0x40;
    assert_eq!(code(n.activate("", true)), Code::ChecksumMismatch);
    assert_eq!(n.disk.env().try_slot, None, "never armed");
    assert_eq!(code(n.activate("", true)), Code::NotStaged);
    n.stage(&r).unwrap();
    n.restart();
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    n.committed();
}

#[test]
fn bad_payloads_leave_slot_and_environment_alone() {
    let n = Node::new();
    let good = n.stage_request("2", "");
    n.stage(&good).unwrap();
    let before = n.disk.medium().slots.clone();
    let env = n.disk.medium().env.clone();
    let serve = |data: Vec<u8>| {
        let sum = sha256(&data).to_string();
        n.source.put("http://images/bad", data);
        v1::StageRequest {
            source: Some(v1::Source {
                from: Some(v1::source::From::Url("http://images/bad".into())),
                allow_http: true,
                ..Default::default()
            }),
            checksum: sum,
            ..Default::default()
        }
    };
    let mut huge = image("9");
    huge.resize(crate::testing::SLOT_BYTES as usize + 4096, 7);
    for (data, want) in [
        (b"<!DOCTYPE html><html></html>".to_vec(), Code::NotAPayload),
        (vec![0x5a; 100_000], Code::NotAPayload),
        (huge, Code::SlotTooSmall),
    ] {
        assert_eq!(code(n.stage(&serve(data))), want);
        assert_eq!(n.disk.medium().slots, before, "{want}");
        assert_eq!(n.phase(), Phase::Staged, "what was staged still is");
    }
    let missing = v1::StageRequest {
        source: Some(v1::Source {
            from: Some(v1::source::From::Url("https://images/none".into())),
            ..Default::default()
        }),
        ..good.clone()
    };
    // The slot holds that digest already: nothing is fetched at all.
    assert!(n.stage(&missing).unwrap().already);
    let other = v1::StageRequest {
        checksum: "11".repeat(32),
        ..missing
    };
    assert_eq!(code(n.stage(&other)), Code::FetchFailed);
    assert_eq!(n.status().last_failure.unwrap().code, "FetchFailed");
    assert_eq!(n.disk.medium().slots, before);
    assert_eq!(n.disk.medium().env, env);
    n.activate("", false).unwrap();
}

#[test]
fn what_is_found_wrong_while_writing_leaves_a_dirty_slot_that_is_never_armed() {
    let n = Node::new();
    let env = n.disk.medium().env.clone();
    let active = n.disk.medium().slots[0].clone();
    let mut r = n.stage_request("2", "");
    r.checksum = "22".repeat(32);
    assert_eq!(code(n.stage(&r)), Code::ChecksumMismatch);
    assert_eq!(n.status().slots[1].state(), v1::SlotState::Dirty);
    assert_eq!(code(n.activate("", false)), Code::NotStaged);

    let r = n.stage_request("2", "");
    n.source
        .fail_at(100_000, AgentError::new(Code::FetchFailed, "connection reset"));
    assert_eq!(code(n.stage(&r)), Code::FetchFailed);
    for name in ["vmlinuz", "initramfs.img", "os-agent"] {
        let data = image_without("2", name);
        let mut r = n.stage_request("2", "");
        r.checksum = sha256(&data).to_string();
        n.source.put("http://images/2", data);
        assert_eq!(code(n.stage(&r)), Code::NotBootable, "{name}");
    }
    let mut r = n.stage_request("2", "");
    r.os_image = "3".into();
    assert_eq!(code(n.stage(&r)), Code::WrongVersion);
    assert_eq!(code(n.activate("", false)), Code::NotStaged);
    let (env_now, active_now) = {
        let m = n.disk.medium();
        (m.env.clone(), m.slots[0].clone())
    };
    assert_eq!((env_now, active_now), (env, active));
    r.os_image = "Slipway 2".into();
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
}

#[test]
fn an_object_that_changes_starts_over_and_a_spent_budget_is_terminal() {
    let n = Node::new();
    let r = n.stage_request("2", "");
    n.source
        .fail_at(70_000, AgentError::new(Code::ObjectChanged, "ETag changed"));
    n.stage(&r).unwrap();
    let mut bad = n.stage_request("3", "");
    bad.checksum = "33".repeat(32);
    for _ in 0..5 {
        assert_eq!(code(n.stage(&bad)), Code::ChecksumMismatch);
    }
    assert_eq!(code(n.stage(&bad)), Code::BudgetSpent);
    n.engine().forget(&"33".repeat(32)).unwrap();
    assert_eq!(code(n.stage(&bad)), Code::ChecksumMismatch);
}

#[test]
fn refusals_before_anything_happens() {
    let n = Node::new();
    let mut same = n.stage_request("1", "");
    assert_eq!(code(n.stage(&same)), Code::SlotIsActive);
    same.checksum = "xyz".into();
    assert_eq!(code(n.stage(&same)), Code::InvalidArgument);
    let mut plain = n.stage_request("2", "");
    plain.source.as_mut().unwrap().allow_http = false;
    assert_eq!(code(n.stage(&plain)), Code::HttpNotAllowed);
    let dry = v1::StageRequest {
        dry_run: true,
        ..n.stage_request("2", "")
    };
    n.disk.medium().log.clear();
    n.stage(&dry).unwrap();
    assert!(n.disk.medium().log.is_empty());
    assert_eq!(code(n.activate("", false)), Code::NotStaged);
    n.disk.medium().slot_holder = Some("mount /mnt".into());
    let r = n.stage_request("2", "");
    assert_eq!(code(n.stage(&r)), Code::SlotBusy);
    assert_ne!(n.status().slots[1].state(), v1::SlotState::Dirty);
    n.disk.medium().slot_holder = None;
    n.stage(&r).unwrap();
    let late = v1::ActivateRequest {
        valid_until_unix: 1,
        ..Default::default()
    };
    assert_eq!(
        code(n.engine().activate(&late, "t").map(|_| ())),
        Code::OrderExpired
    );
    let other = v1::ActivateRequest {
        expect_boot_id: "x".into(),
        ..Default::default()
    };
    assert_eq!(
        code(n.engine().activate(&other, "t").map(|_| ())),
        Code::BootIdChanged
    );
    let other = v1::ActivateRequest {
        digest: "44".repeat(32),
        ..Default::default()
    };
    assert_eq!(
        code(n.engine().activate(&other, "t").map(|_| ())),
        Code::NotStaged
    );
    assert_eq!(
        code(n.engine().cancel(&v1::CancelRequest::default(), "t")),
        Code::NothingToDo
    );
}

#[test]
fn cancel_while_it_downloads_and_while_it_is_armed() {
    let n = Node::new();
    n.source.hold(true);
    let r = n.stage_request("2", "");
    let begun = n.engine().stage(&r, "test").unwrap();
    n.engine().cancel(&v1::CancelRequest::default(), "test").unwrap();
    let super::Begun::Running(h) = begun else {
        panic!("it runs")
    };
    n.until("the end", |_| h.follow().borrow().result.is_some());
    assert_eq!(code(h.follow().borrow().result.clone().unwrap()), Code::Cancelled);
    n.source.hold(false);
    n.stage(&r).unwrap();
    n.activate("", false).unwrap();
    n.engine().cancel(&v1::CancelRequest::default(), "test").unwrap();
    assert_eq!((n.phase(), n.disk.env().try_slot), (Phase::Staged, None));
    n.activate("", false).unwrap();
}

#[test]
fn an_agent_that_stops_while_staging_continues_with_the_same_request() {
    let mut n = Node::new();
    n.source.hold(true);
    let r = n.stage_request("2", "op-9");
    let _ = n.engine().stage(&r, "test").unwrap();
    n.stop();
    n.source.hold(false);
    n.boot();
    assert_eq!(n.phase(), Phase::Idle);
    assert_eq!(n.status().operation.unwrap().finished_unix, 0);
    n.stage(&r).unwrap();
    assert_eq!(n.phase(), Phase::Staged);
}

#[test]
fn without_state_nothing_is_staged_but_a_trial_is_still_committed_or_left() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", true).unwrap();
    n.until("reboot", |n| n.host.set().reboots > 0);
    n.stop();
    n.disk.medium().state = None;
    n.disk.medium().records = [None, None];
    n.disk.medium().state_broken = Some("PERSIST is not mounted".into());
    n.boot();
    assert_eq!(n.phase(), Phase::Trial);
    assert!(!n.status().persist_available);
    n.until("a commit", |n| n.disk.env().cur == Slot::B);
    let r = n.stage_request("3", "");
    assert_eq!(code(n.stage(&r)), Code::StateWriteFailed);
    let of_slot = v1::StageRequest {
        source: Some(v1::Source {
            from: Some(v1::source::From::Slot(v1::Slot::A.into())),
            ..v1::Source::default()
        }),
        checksum: String::new(),
        ..r
    };
    assert_eq!(code(n.stage(&of_slot)), Code::StateWriteFailed);
    // The way back needs no state either: armed from outside, a verdict is bad.
    n.stop();
    let env = n.disk.env();
    n.disk.set_env(&env.armed(Slot::A));
    n.fate("1", Fate::Hook("critical-x".into(), Some(2)));
    n.boot();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::B);
    assert_eq!(n.disk.env().try_slot, None);
}

#[test]
fn without_state_the_evidence_of_a_fallback_stays_in_the_environment() {
    let mut n = Node::new();
    n.fate("2", Fate::Hangs);
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("", true).unwrap();
    n.disk.medium().state_broken = Some("full".into());
    n.reboot_when_asked();
    assert_eq!(n.phase(), Phase::FellBack);
    assert_eq!(
        (n.disk.env().try_slot, n.disk.env().left),
        (Some(Slot::B), Some(0))
    );
    n.disk.medium().state_broken = None;
    n.boot();
    assert_eq!(n.disk.env().try_slot, None);
    assert!(n.status().failed_digests[0].denied);
}

#[test]
fn a_cut_image_is_refused_before_the_slot_is_touched() {
    let n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    let before = n.disk.medium().log.len();
    let cut = crate::testing::image("3")[..200_000].to_vec();
    let mut r = n.stage_request("3", "");
    r.checksum = sha256(&cut).to_string();
    n.source.put("http://images/3", cut);
    let e = n.stage(&r).unwrap_err();
    assert_eq!(e.code, Code::SizeMismatch, "{e}");
    let wrote = n.disk.medium().log[before..]
        .iter()
        .any(|w| matches!(w, Write::Slot(..)));
    assert!(!wrote, "{:?}", n.disk.medium().log);
    // What was staged before still is.
    n.activate("", false).unwrap();
}

#[test]
fn progress_says_fetch_while_a_stale_record_is_replaced() {
    let n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.disk.medium().slots[1][5000] ^= 1;
    // The source does not answer, so that nothing else tells what goes on.
    n.source
        .fail_open(AgentError::new(Code::FetchFailed, "no answer"));
    let begun = n.engine().stage(&r, "t").unwrap();
    let Begun::Running(h) = begun else {
        panic!("nothing runs")
    };
    let view = h.follow();
    n.until("an end", |_| view.borrow().result.is_some());
    let v = view.borrow().clone();
    assert_eq!(v.progress.step, "fetch", "{v:?}");
}

#[test]
fn a_damaged_or_newer_state_starts_reports_and_still_commits() {
    for (text, read_only) in [
        (&b"{ not json"[..], false),
        (
            br#"{"schema":3,"min_reader":3,"phase":"teleporting","operations":[]}"#,
            true,
        ),
        (
            br#"{"schema":3,"min_reader":1,"phase":"idle","hue":"blue"}"#,
            false,
        ),
    ] {
        let mut n = Node::new();
        let r = n.stage_request("2", "");
        n.stage(&r).unwrap();
        n.activate("", false).unwrap();
        n.stop();
        n.disk.medium().state = Some(text.to_vec());
        n.boot();
        assert_eq!(n.phase(), Phase::Trial, "the environment decides");
        assert_eq!(n.status().read_only_state, read_only);
        n.until("a commit", |n| n.disk.env().cur == Slot::B);
        if read_only {
            assert_eq!(n.disk.medium().state.as_deref(), Some(text), "never written");
            let r = n.stage_request("3", "");
            let e = n.stage(&r).unwrap_err();
            assert_eq!(e.code, Code::StateTooNew);
            assert!(e.message.contains("os-agent rollback --reboot"), "{e}");
            // Back to the other slot works on newer state.
            n.engine()
                .rollback(
                    &v1::RollbackRequest {
                        reboot: true,
                        ..Default::default()
                    },
                    "t",
                )
                .unwrap();
            n.reboot_when_asked();
            assert_eq!(n.disk.running(), Slot::A);
        } else if text.starts_with(br#"{"schema"#) {
            let m = n.disk.medium();
            let s = String::from_utf8_lossy(m.state.as_deref().unwrap()).into_owned();
            assert!(s.contains("blue"), "{s}");
        }
    }
}

#[test]
fn environment_copies_are_repaired_first() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    n.stop();
    n.disk.medium().env[0] = vec![0; 512];
    n.boot();
    assert_eq!(n.disk.running(), Slot::B, "env2 knows");
    assert_eq!(n.disk.env().cur, Slot::B);
    assert!(n.status().problems.iter().any(|p| p.code == "StateBroken"));
    n.stop();
    n.disk.medium().env = [vec![0; 512], vec![1; 512]];
    n.boot();
    assert!(n.status().problems.iter().any(|p| p.code == "EnvLost"));
    assert_eq!(n.disk.env().cur, n.disk.running());
    // A power cut between the two writes of a commit: env1 wins, and both agree again.
    let a = n.disk.env();
    n.stop();
    n.disk.medium().env[1] = a.armed(a.cur.other()).encode().to_vec();
    n.boot();
    let m = n.disk.medium();
    assert_eq!(m.env[0], m.env[1]);
    assert_eq!(Env::decode(&m.env[0]).unwrap().try_slot, None);
}

#[test]
fn an_environment_that_cannot_be_written_arms_nothing() {
    let n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.disk.medium().env_broken = Some("EIO".into());
    assert_eq!(code(n.activate("", true)), Code::EnvWriteFailed);
    assert_eq!(n.host.set().reboots, 0);
    assert_eq!(n.phase(), Phase::Staged);
    n.disk.medium().env_broken = None;
    n.activate("", true).unwrap();
    assert_eq!(n.phase(), Phase::Armed);
}

#[test]
fn a_reboot_request_is_repeated_once_after_a_restart_and_then_reported() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("op-1", true).unwrap();
    n.until("reboot", |n| n.host.set().reboots == 1);
    n.restart();
    n.until("reboot again", |n| n.host.set().reboots == 2);
    n.restart();
    n.clock.advance(Duration::from_secs(5));
    assert!(n.status().problems.iter().any(|p| p.code == "RebootStuck"));
    assert_eq!(n.host.set().reboots, 2);
    // Without a reboot asked for, a restart asks for none.
    let n2 = {
        let mut n = Node::new();
        let r = n.stage_request("2", "");
        n.stage(&r).unwrap();
        n.activate("", false).unwrap();
        n.restart();
        n.clock.advance(Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(20));
        n
    };
    assert_eq!((n2.phase(), n2.host.set().reboots), (Phase::Armed, 0));
}

#[test]
fn staging_from_the_other_slot_reads_it_back() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    let from = v1::StageRequest {
        source: Some(v1::Source {
            from: Some(v1::source::From::Slot(v1::Slot::A as i32)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let r = n.stage(&from).unwrap();
    assert!(r.already && r.slot == Some(Slot::A) && r.image_sha256 == Some(sha256(&image("1"))));
    let rec = n.disk.medium().records[0].clone().unwrap();
    let rec = SlotRecord::parse(&rec).unwrap().unwrap();
    assert_eq!(rec.content, Content::Verified);
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    let own = v1::StageRequest {
        source: Some(v1::Source {
            from: Some(v1::source::From::Slot(v1::Slot::A as i32)),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(code(n.stage(&own)), Code::SlotIsActive);
}

#[test]
fn verify_slot_compares_with_the_record() {
    let mut n = Node::new();
    n.update("2").unwrap();
    n.committed();
    let look = |n: &Node, s| {
        n.engine()
            .verify_slot(
                s,
                &crate::ports::Cancel::default(),
                &crate::testdisk::Recorder::default(),
            )
            .unwrap()
            .ok
    };
    assert!(look(&n, None) && look(&n, Some(Slot::B)));
    n.disk.medium().slots[0][9999] ^= 1;
    assert!(!look(&n, None));
}

/// Where the image of [`crate::testing::image`] has a byte that is not in its first block.
const INSIDE: usize = 100_000;

#[test]
fn a_chunk_that_reads_back_differently_is_written_once_more() {
    for (fault, fine) in [(INSIDE, true), (1100, true), (INSIDE, false), (1100, false)] {
        let mut n = Node::new();
        let r = n.stage_request("2", "s");
        let writes = if fine { 1 } else { u32::MAX };
        n.disk.medium().rot = Some(crate::testing::Rot { at: fault, writes });
        let result = n.stage(&r);
        let log = n.engine().history(0).operations;
        if fine {
            result.unwrap();
            assert_eq!(n.source.opened(), 2, "fetched once more");
            assert!(
                log[0].message.contains("chunk 0") && log[0].message.contains("writing it again"),
                "the log says so: {}",
                log[0].message
            );
            assert_eq!(n.disk.medium().slots[1][..image("2").len()], image("2")[..]);
            n.activate("a", true).unwrap();
            n.reboot_when_asked();
            n.committed();
            continue;
        }
        assert_eq!(code(result), Code::MediumCorrupt);
        assert!(log[0].message.contains("written twice"), "{}", log[0].message);
        assert_eq!(n.source.opened(), 2, "once more, and not for ever");
        assert_eq!(code(n.activate("a", true)), Code::NotStaged);
        assert_eq!(n.disk.env().try_slot, None);
        let s = n.status();
        assert_eq!(s.slots[1].state(), v1::SlotState::Dirty);
        assert_eq!(s.last_failure.unwrap().code, "MediumCorrupt");
        // The disk was replaced: the same order goes through.
        n.disk.medium().rot = None;
        n.stage(&n.stage_request("2", "s2")).unwrap();
    }
}

/// Stages, and gives the progress at its end.
fn progress_of(n: &Node, r: &v1::StageRequest) -> v1::Progress {
    let super::Begun::Running(h) = n.engine().stage(r, "test").unwrap() else {
        panic!("answered at once");
    };
    let view = h.follow();
    while view.borrow().result.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(view.borrow().result.clone().unwrap().is_ok());
    h.progress()
}

#[test]
fn progress_says_what_was_written_and_what_stood_there() {
    let mut n = Node::new();
    let size = image("2").len() as u64;
    let p = progress_of(&n, &n.stage_request("2", "a"));
    assert_eq!((p.written_bytes, p.saved_bytes), (size, 0), "{p:?}");
    // Nobody knows what the slot holds, and all of it is right.
    n.stop();
    n.disk.medium().records[1] = None;
    n.boot();
    let p = progress_of(&n, &n.stage_request("2", "b"));
    assert_eq!((p.written_bytes, p.saved_bytes), (0, size), "{p:?}");
}
