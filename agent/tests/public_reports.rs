//! Faults that users of other updaters reported in public, each as a test of ours: updates.md section 16, the rows about
//! environment, state machine and doctor. Rows about download, payload and slot discovery are tested beside that code.
//!
//! | row | what it is about | test |
//! |---|---|---|
//! | T19 | activation with a broken environment | `t19_a_broken_environment_copy_is_rebuilt_and_activation_works`; sizes: `boot::fat12::tests` |
//! | T20 | success reported, nothing stored | `t20_a_commit_that_cannot_be_stored_is_no_success`, `t20_…_arming…` |
//! | T21 | an extra line break in the environment | `t21_an_extra_line_break_costs_one_copy_and_nothing_else` |
//! | T22 | two writers, a comment of somebody | `boot::dual_env::tests::eight_writers_take_turns`, `env_block::tests::damage_is_named` |
//! | T23 | first boot without an environment | `t23_a_first_boot_needs_no_environment_of_the_agents_own`; imgbuild ships one: `image.rs` |
//! | T24 | three power pulls | `t24_three_power_cuts_end_on_the_committed_slot` |
//! | T25 | environment duplicated by fsck | `t25_os_state_is_neither_mounted_nor_checked` |
//! | T26 | GRUB sees another layout than Linux | `crash_images.rs` (real GRUB on disks as power cuts leave them) |
//! | T27 | boot configuration empty after a cut | `crashtest::tests::no_power_cut_of_an_update_leaves_a_node_that_does_not_boot` |
//! | T37 | falls to the version before | `t37_whatever_is_broken_off_the_committed_slot_boots` |
//! | T38 | the boot loader is skipped (kexec) | `engine::tests::a_boot_loader_that_does_not_count_is_noticed_and_the_second_time_terminal` |
//! | T39 | endless install and fallback | `t39_a_dead_kernel_boots_three_times_and_then_it_is_quiet` |
//! | T40 | reinstalls what rolled back | `t40_what_fell_back_is_refused_until_it_is_forced` |
//! | T41 | stuck on a bad target | `t41_a_newer_image_replaces_a_staged_one` |
//! | T42 | flip to a blank slot | `t42_nothing_staged_nothing_armed` |
//! | T43 | "up to date" after cancel | `t43_a_cancelled_stage_is_not_done_and_runs_again` |
//! | T44 | a good entry counted bad | `engine::tests::ten_good_boots_change_no_environment_byte` |
//! | T45 | a good image falls back by a stale trial | `t45_each_image_gets_its_own_three_tries` |
//! | T46 | the bad image in both slots | `t46_the_running_slot_is_never_written` |
//! | T47 | wrong root after running from the old one | `t47_an_uncommitted_boot_stages_nothing_and_a_fallback_writes_the_failed_slot` |
//! | T48 | waits for a key | `grub_matrix.rs`: a slot that cannot be loaded costs its tries |
//! | T49 | the counter never falls | `doctor::tests::a_boot_loader_that_does_not_count_is_noticed` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use os_agent::testing::{Fate, Node, sha256};
use os_proto::codes::Code;
use os_proto::env_block::{Env, SIGNATURE, SIZE};
use os_proto::layout::Slot;
use os_proto::v1::{self, Phase};

fn slots(n: &Node) -> [String; 2] {
    let m = n.disk.medium();
    [0, 1].map(|i| sha256(&m.slots[i]).to_string())
}

/// Stages, activates and boots until version 2 is committed.
fn updates(n: &mut Node) {
    n.update("2").unwrap();
    n.committed();
    assert_eq!(n.disk.running(), Slot::B);
}

#[test]
fn t19_a_broken_environment_copy_is_rebuilt_and_activation_works() {
    let full = {
        let mut b = [SIGNATURE, b"cur=A\ntry=\nleft=\ngen=1\ncrc=0\n"].concat();
        b.resize(SIZE, b'x');
        b
    };
    for (name, block) in [("empty", Vec::new()), ("zeros", vec![0; SIZE]), ("full", full)] {
        for copies in [vec![0], vec![1], vec![0, 1]] {
            let mut n = Node::new();
            n.stop();
            for i in &copies {
                n.disk.medium().env[*i] = block.clone();
            }
            n.boot();
            assert!(!n.status().problems.is_empty(), "{name}: reported");
            let env = n.disk.medium().env.clone();
            assert_eq!(env[0], env[1], "{name}: rebuilt");
            assert_eq!(n.disk.env().cur, Slot::A, "{name}");
            updates(&mut n);
        }
    }
}

#[test]
fn t20_a_commit_that_cannot_be_stored_is_no_success() {
    let mut n = Node::new();
    n.config.trial.settle_secs = 100;
    n.update("2").unwrap();
    assert_eq!(n.phase(), Phase::Trial);
    n.disk.medium().env_broken = Some("Input/output error".into());
    n.until("a healthy trial that cannot be committed", |n| {
        n.status().health.is_some_and(|h| h.good_since_unix > 0)
    });
    let e = n
        .engine()
        .commit(&v1::CommitRequest::default(), "test")
        .unwrap_err();
    // Either the gates do not hold long enough yet, or the write fails; never success.
    assert!(matches!(e.code, Code::EnvWriteFailed | Code::TrialRunning), "{e}");
    assert_ne!(e.code.exit_code(), 0);
    for _ in 0..200 {
        n.clock.advance(std::time::Duration::from_secs(1));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(
        n.disk.env().cur,
        Slot::A,
        "nothing was stored, nothing is claimed"
    );
    assert_ne!(n.phase(), Phase::Idle);
}

#[test]
fn t20_arming_that_cannot_be_stored_is_no_success() {
    let mut n = Node::new();
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.disk.medium().env_broken = Some("Input/output error".into());
    let e = n.activate("", true).unwrap_err();
    assert_eq!((e.code, e.code.exit_code()), (Code::EnvWriteFailed, 4));
    assert_eq!(n.host.set().reboots, 0);
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
}

#[test]
fn t21_an_extra_line_break_costs_one_copy_and_nothing_else() {
    let mut n = Node::new();
    n.stop();
    let mut block = [SIGNATURE, b"\n"].concat();
    block.extend(&Env::committed(Slot::B, 9).encode()[SIGNATURE.len()..]);
    block.truncate(SIZE);
    n.disk.medium().env[0] = block;
    n.boot();
    assert_eq!(
        n.disk.running(),
        Slot::A,
        "GRUB and the agent both take the other copy"
    );
    assert_eq!(n.disk.env().cur, Slot::A);
    updates(&mut n);
}

#[test]
fn t23_a_first_boot_needs_no_environment_of_the_agents_own() {
    let mut n = Node::new();
    n.stop();
    for e in &mut n.disk.medium().env {
        e.fill(0);
    }
    n.boot();
    assert_eq!(n.disk.running(), Slot::A, "the slot that has a kernel");
    let codes: Vec<String> = n.status().problems.into_iter().map(|p| p.code).collect();
    assert!(codes.contains(&"EnvLost".to_owned()), "{codes:?}");
    updates(&mut n);
}

#[test]
fn t24_three_power_cuts_end_on_the_committed_slot() {
    let mut n = Node::new();
    n.fate("2", Fate::PowerFails);
    n.update("2").unwrap();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::B, Slot::B, Slot::A]);
    assert_eq!(n.phase(), Phase::FellBack);
    assert!(!n.status().failed_digests[0].denied, "power cuts blame nobody");
}

#[test]
fn t25_os_state_is_neither_mounted_nor_checked() {
    use os_proto::layout::{Role, SLIPWAY};
    let row = SLIPWAY.iter().find(|e| e.role == Role::OsState).unwrap();
    assert_eq!(row.mount, None);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd");
    let mut files = vec![camino::Utf8PathBuf::from(root)];
    let mut seen = 0;
    while let Some(p) = files.pop() {
        if p.is_dir() {
            files.extend(p.read_dir_utf8().unwrap().map(|e| e.unwrap().into_path()));
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&p).unwrap_or_default();
        for line in text.lines().filter(|l| !l.trim_start().starts_with('#')) {
            let touches = line.contains("os-state") || line.contains("gpt6");
            let acts = ["mount", "fsck", "Where=", "What="]
                .iter()
                .any(|w| line.contains(w));
            assert!(!(touches && acts), "{p}: {line}");
        }
    }
    assert!(seen > 5);
}

#[test]
fn t37_whatever_is_broken_off_the_committed_slot_boots() {
    // While it downloads.
    let mut n = Node::new();
    let r = n.stage_request("2", "s");
    n.source.hold(true);
    let begun = n.engine().stage(&r, "test").unwrap();
    n.stop();
    n.source.hold(false);
    drop(begun);
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
    // Staged and never armed; armed and taken back.
    n.stage(&r).unwrap();
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
    n.activate("a", false).unwrap();
    n.engine().cancel(&v1::CancelRequest::default(), "t").unwrap();
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
    // On trial and ended by somebody.
    n.activate("b", true).unwrap();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::B);
    n.engine().rollback(&v1::RollbackRequest::default(), "t").unwrap();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::A);
    assert_eq!(n.disk.env().cur, Slot::A);
}

#[test]
fn t39_a_dead_kernel_boots_three_times_and_then_it_is_quiet() {
    let mut n = Node::new();
    n.fate("2", Fate::Hangs);
    n.update("2").unwrap();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::B, Slot::B, Slot::A]);
    let env = n.disk.medium().env.clone();
    for _ in 0..5 {
        n.boot();
        assert_eq!(n.disk.running(), Slot::A);
    }
    assert_eq!(n.disk.medium().env, env);
    assert_eq!(n.host.set().reboots, 0);
}

#[test]
fn t40_what_fell_back_is_refused_until_it_is_forced() {
    let mut n = Node::new();
    n.fate("2", Fate::Hangs);
    n.update("2").unwrap();
    let mut r = n.stage_request("2", "");
    assert_eq!(n.stage(&r).unwrap_err().code, Code::DigestFailedBefore);
    r.force = true;
    n.stage(&r).unwrap();
}

#[test]
fn t41_a_newer_image_replaces_a_staged_one() {
    let mut n = Node::new();
    let two = n.stage_request("2", "");
    n.stage(&two).unwrap();
    let three = n.stage_request("3", "");
    n.stage(&three).unwrap();
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    assert_eq!(n.status().version_id, "3");
}

#[test]
fn t42_nothing_staged_nothing_armed() {
    let n = Node::new();
    let env = n.disk.medium().env.clone();
    assert_eq!(n.activate("", true).unwrap_err().code, Code::NotStaged);
    assert_eq!(n.disk.medium().env, env);
    assert_eq!(n.host.set().reboots, 0);
}

#[test]
fn t43_a_cancelled_stage_is_not_done_and_runs_again() {
    for at in [0, 1, 128 << 10, 256 << 10] {
        let n = Node::new();
        let r = n.stage_request("2", "");
        n.source.hold_at(Some(at));
        let begun = n.engine().stage(&r, "test").unwrap();
        n.until("the download to stand still", |n| n.source.holding());
        n.engine().cancel(&v1::CancelRequest::default(), "t").unwrap();
        n.source.hold_at(None);
        let os_agent::engine::Begun::Running(h) = begun else {
            panic!("it cannot be over")
        };
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(rt.block_on(h.finished()).unwrap_err().code, Code::Cancelled);
        assert_eq!(n.phase(), Phase::Idle, "cancelled at {at}");
        let running = slots(&n)[0].clone();
        n.stage(&r).unwrap();
        assert_eq!(n.phase(), Phase::Staged);
        assert_eq!(slots(&n)[0], running);
    }
}

#[test]
fn t45_each_image_gets_its_own_three_tries() {
    let mut n = Node::new();
    n.fate("2", Fate::Hangs);
    n.fate("3", Fate::Hangs);
    n.update("2").unwrap();
    n.history.clear();
    n.update("3").unwrap();
    assert_eq!(n.history, [Slot::B, Slot::B, Slot::B, Slot::A]);
    n.fate("4", Fate::Good);
    n.update("4").unwrap();
    n.committed();
    assert_eq!(n.disk.running(), Slot::B);
}

#[test]
fn t46_the_running_slot_is_never_written() {
    let mut n = Node::new();
    let before = slots(&n)[0].clone();
    n.fate("2", Fate::Hangs);
    n.update("2").unwrap();
    for version in ["3", "4"] {
        let r = n.stage_request(version, "");
        n.stage(&r).unwrap();
    }
    assert_eq!(slots(&n)[0], before);
}

#[test]
fn t47_an_uncommitted_boot_stages_nothing_and_a_fallback_writes_the_failed_slot() {
    let mut n = Node::new();
    updates(&mut n);
    // Somebody picks the old slot at the console: the other one is the only proven one.
    n.boot_as(Some(Slot::A));
    let before = slots(&n);
    let r = n.stage_request("3", "");
    assert_eq!(n.stage(&r).unwrap_err().code, Code::UncommittedBoot);
    assert_eq!(slots(&n), before);
    // After a fallback the failed slot is the target.
    n.boot();
    n.fate("4", Fate::Hangs);
    n.update("4").unwrap();
    assert_eq!(n.disk.running(), Slot::B);
    let before = slots(&n);
    let r = n.stage_request("5", "");
    n.stage(&r).unwrap();
    let after = slots(&n);
    assert!(after[1] == before[1] && after[0] != before[0]);
}
