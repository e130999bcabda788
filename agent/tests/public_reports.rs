//! Faults that users of other updaters reported in public, each as a test of ours: updates.md section 16, the rows about
//! environment, state machine and doctor. Rows about download, payload and slot discovery are tested beside that code.
//! Which row is which test: docs/faults.md.
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

/// A stage that stands still in the middle of its download.
fn half_staged(n: &Node, op_id: &str) -> v1::StageRequest {
    let r = n.stage_request("2", op_id);
    n.source.hold_at(Some(128 << 10));
    n.engine().stage(&r, "test").unwrap();
    n.until("the download to stand still", |n| n.source.holding());
    r
}

/// Stages, activates and boots until version 2 is committed.
fn updates(n: &mut Node) {
    n.update("2").unwrap();
    n.committed();
    assert_eq!(n.disk.running(), Slot::B);
}

#[test]
fn t10_a_bad_artifact_is_not_downloaded_for_ever() {
    let n = Node::new();
    let mut bad = n.stage_request("2", "");
    bad.checksum = "22".repeat(32);
    let mut codes = Vec::new();
    for _ in 0..20 {
        codes.push(n.stage(&bad).unwrap_err());
    }
    let spent = codes.iter().position(|e| e.code == Code::BudgetSpent).unwrap();
    assert_eq!(spent, 5, "five runs per digest");
    assert!(codes[..spent].iter().all(|e| e.code == Code::ChecksumMismatch));
    assert!(
        codes[spent..]
            .iter()
            .all(|e| e.code == Code::BudgetSpent && e.code.exit_code() == 3)
    );
    assert!(
        codes[spent].message.contains("ChecksumMismatch"),
        "the last cause: {}",
        codes[spent]
    );
    assert_eq!(n.source.opened(), 5, "then not one byte more");
    // Also after a restart, and for this digest alone.
    let mut n = n;
    n.restart();
    assert_eq!(n.stage(&bad).unwrap_err().code, Code::BudgetSpent);
    n.engine().forget(&bad.checksum).unwrap();
    assert_eq!(n.stage(&bad).unwrap_err().code, Code::ChecksumMismatch);
    updates(&mut n);
}

#[test]
fn t15_a_blank_or_random_slot_is_a_fine_target() {
    for fill in [0u8, 0xff, 0x53] {
        let mut n = Node::new();
        for (i, b) in n.disk.medium().slots[1].iter_mut().enumerate() {
            *b = if fill == 0x53 { ((i * 31) >> 3) as u8 } else { fill };
        }
        updates(&mut n);
    }
}

#[test]
fn t18_a_clock_that_went_back_is_told_with_the_last_time_that_is_known() {
    use os_agent::ports::Clock;
    let n = Node::new();
    n.stage(&n.stage_request("2", "")).unwrap();
    let then = n.clock.unix();
    n.clock.set_unix(then - 3600);
    n.source.fail_open(os_agent::error::AgentError::new(
        Code::ClockSuspect,
        "certificate not valid yet; clock says 2026",
    ));
    let e = n.stage(&n.stage_request("3", "")).unwrap_err();
    assert_eq!((e.code, e.code.exit_code()), (Code::ClockSuspect, 5));
    let known = jiff::Timestamp::from_second(then).unwrap().to_string();
    assert!(e.message.ends_with(&format!("last known {known}")), "{e}");
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
fn t22_a_comment_of_somebody_elses_tool_is_tolerated() {
    let mut n = Node::new();
    n.stop();
    let block = Env::committed(Slot::A, 7).encode();
    let text = String::from_utf8(block.to_vec()).unwrap();
    let mut commented = text
        .replacen("cur=", "# WARNING: edited by a tool\ncur=", 1)
        .into_bytes();
    commented.truncate(SIZE);
    n.disk.medium().env = [commented.clone(), commented];
    n.boot();
    let s = n.status();
    assert!(s.problems.is_empty(), "{:?}", s.problems);
    assert_eq!(s.env.unwrap().r#gen, 7);
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
fn t46_a_rerun_without_a_reboot_stays_off_the_running_slot() {
    let mut n = Node::new();
    let before = slots(&n)[0].clone();
    // The same bad order again and again, armed or not, by the same and by the next process.
    n.fate("2", Fate::Hangs);
    let r = n.stage_request("2", "");
    for i in 0..3 {
        n.stage(&r).unwrap();
        n.activate("", false).unwrap();
        assert_eq!(n.stage(&r).unwrap_err().code, Code::TrialRunning);
        n.engine().cancel(&v1::CancelRequest::default(), "t").unwrap();
        if i == 1 {
            n.restart();
        }
        assert_eq!(slots(&n)[0], before, "round {i}");
    }
    n.activate("", true).unwrap();
    n.reboot_when_asked();
    assert_eq!(n.history, [Slot::A, Slot::B, Slot::B, Slot::B, Slot::A]);
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

#[test]
fn kf_a2_a_slot_that_is_not_known_to_be_whole_is_never_booted() {
    // Empty.
    let mut n = Node::new();
    let env = n.disk.medium().env.clone();
    let back = v1::RollbackRequest {
        reboot: true,
        ..Default::default()
    };
    let code = |n: &Node| n.engine().rollback(&back, "t").map(|_| ()).unwrap_err().code;
    assert_eq!(code(&n), Code::NothingToDo);
    // The agent is killed while it writes.
    half_staged(&n, "s");
    n.stop();
    n.source.hold_at(None);
    n.boot();
    assert!(
        matches!(code(&n), Code::NotStaged | Code::NothingToDo),
        "{}",
        code(&n)
    );
    assert_eq!(n.activate("", true).unwrap_err().code, Code::NotStaged);
    assert_eq!((n.host.set().reboots, n.disk.running()), (0, Slot::A));
    assert_eq!(n.disk.medium().env, env);
}

#[test]
fn kf_a3_a_switch_is_a_trial_and_the_default_stays_until_it_is_proven() {
    let mut n = Node::new();
    n.fate(
        "2",
        Fate::Panics("Kernel panic - not syncing: Attempted to kill init!".into()),
    );
    let r = n.stage_request("2", "");
    n.stage(&r).unwrap();
    n.activate("a", true).unwrap();
    let env = n.disk.env();
    assert_eq!(
        (env.cur, env.try_slot, env.left),
        (Slot::A, Some(Slot::B), Some(3))
    );
    n.reboot_when_asked();
    assert_eq!(
        n.history,
        [Slot::A, Slot::B, Slot::B, Slot::B, Slot::A],
        "back by itself"
    );
    let s = n.status();
    let f = s.last_failure.unwrap();
    assert_eq!((s.phase, f.cause()), (Phase::FellBack as i32, v1::Cause::Panic));
    assert!(f.message.contains("kill init"), "{}", f.message);
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
}

#[test]
fn kf_a4_what_is_there_is_not_written_again_and_another_version_is_not_booted() {
    let n = Node::new();
    // The image calls itself otherwise than the order does.
    let mut wrong = n.stage_request("2", "");
    wrong.os_image = "Slipway 9".into();
    let e = n.stage(&wrong).unwrap_err();
    assert_eq!((e.code, e.code.exit_code()), (Code::WrongVersion, 3));
    assert_eq!(n.activate("", true).unwrap_err().code, Code::NotStaged);
    assert_eq!(n.host.set().reboots, 0);
    // The slot holds it already: read, not written, not fetched.
    let right = n.stage_request("2", "");
    n.stage(&right).unwrap();
    let (opened, bytes) = (n.source.opened(), slots(&n));
    n.disk.medium().log.clear();
    let again = n.stage(&right).unwrap();
    assert!(again.already && again.written == 0);
    assert_eq!((n.source.opened(), slots(&n)), (opened, bytes));
    let wrote = |w: &os_agent::testing::Write| matches!(w, os_agent::testing::Write::Slot(..));
    assert!(!n.disk.medium().log.iter().any(wrote));
}

#[test]
fn kf_a5_an_agent_that_stops_leaves_no_writer_behind() {
    let mut n = Node::new();
    let r = half_staged(&n, "s");
    n.stop();
    n.source.hold_at(None);
    let left = slots(&n);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(slots(&n), left, "nobody writes after the agent");
    n.boot();
    n.stage(&r).unwrap();
    let image = os_agent::testing::image("2");
    assert!(n.disk.medium().slots[1][..image.len()] == image[..]);
}

#[test]
fn kf_a6_the_reply_comes_before_an_orderly_reboot() {
    let n = Node::new();
    n.stage(&n.stage_request("2", "")).unwrap();
    let r = n.activate("a", true).unwrap();
    assert_eq!(r.slot, Some(Slot::B));
    // Time stands still on this node: the request to the service manager waits for the reply to be read.
    assert_eq!(n.host.set().reboots, 0);
    n.until("the request", |n| n.host.set().reboots == 1);
    // And it is the only way: the system call is nowhere in the program.
    let src = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut todo = vec![camino::Utf8PathBuf::from(src)];
    while let Some(p) = todo.pop() {
        if p.is_dir() {
            todo.extend(p.read_dir_utf8().unwrap().map(|e| e.unwrap().into_path()));
        } else if p.extension() == Some("rs") {
            let text = std::fs::read_to_string(&p).unwrap();
            assert!(
                !text.contains("system::reboot(") && !text.contains("RB_AUTOBOOT"),
                "{p}"
            );
        }
    }
}

/// docs/faults.md names tests that exist, and every row that it lists as tested has one.
#[test]
fn the_table_of_faults_names_real_tests() {
    let root = camino::Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    let mut sources = String::new();
    let mut todo: Vec<camino::Utf8PathBuf> = ["agent", "proto", "proxy", "imgbuild", "tests"]
        .map(|d| root.join(d))
        .to_vec();
    while let Some(p) = todo.pop() {
        if p.is_dir() {
            if p.file_name() != Some("target") {
                todo.extend(p.read_dir_utf8().unwrap().map(|e| e.unwrap().into_path()));
            }
        } else if p.extension() == Some("rs") {
            sources.push_str(&std::fs::read_to_string(&p).unwrap());
        }
    }
    let table = std::fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let mut rows = 0;
    for line in table
        .lines()
        .filter(|l| l.starts_with("| T") || l.starts_with("| KF-"))
    {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (row, tests) = (cells[1], cells[3]);
        rows += 1;
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(
            !names.is_empty() || tests.starts_with("not here"),
            "{row}: {tests}"
        );
        for name in names {
            assert!(sources.contains(&format!("fn {name}(")), "{row}: no test {name}");
        }
    }
    assert!(rows >= 60, "{rows}");
}
