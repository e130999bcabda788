//! Public fault reports and known faults of KubeOS, each a test by its number.

use super::super::*;
use super::world::{End, NEW, World};
use crate::drain::{Blocked, Reason};
use crate::proxy::facts::{Fail, Preflight, Work};

fn until(w: &mut World, phase: Phase) {
    for _ in 0..200 {
        if w.report.phase == phase {
            return;
        }
        w.round();
        if w.report.phase == phase {
            return;
        }
        w.tick(3);
    }
    panic!("{phase:?} was not reached: {:?}", w.phases);
}

/// Report 1 (bottlerocket-update-operator 691): the proxy dies between boot and uncordon.
#[test]
fn report_1_killed_between_boot_and_uncordon() {
    let mut w = World::plain();
    until(&mut w, Phase::Verifying);
    w.crash();
    assert!(w.node.unschedulable);
    assert_eq!(w.run_to_the_end(), End::Updated);
}

/// Report 8 (bottlerocket 864): SIGTERM while rebooting is no failure.
#[test]
fn report_8_stopped_while_rebooting() {
    let mut w = World::plain();
    until(&mut w, Phase::Rebooting);
    w.crash();
    w.agent_up = false;
    for _ in 0..5 {
        w.round();
    }
    assert!(w.report.failure.is_none());
    w.agent_up = true;
    assert_eq!(w.run_to_the_end(), End::Updated);
}

/// Report 10 (kured 792): the gate turns bad after the grant, before the cordon.
#[test]
fn report_10_gate_shut_after_the_grant() {
    let mut w = World::plain();
    w.order.policy.as_mut().unwrap().annotationgates = vec!["apps".into()];
    until(&mut w, Phase::Staged);
    w.node.gates.insert("apps".into(), "blocked".into());
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    assert_eq!((w.boots_asked, w.node_writes), (0, 0));
    assert_eq!(w.report.last_result.unwrap().reason, "Gated");
}

/// Report 17 (system-upgrade-controller 341) and KF-R7: a human's cordon survives.
#[test]
fn report_17_foreign_cordon_survives() {
    let mut w = World::plain();
    w.foreign = true;
    w.node.unschedulable = true;
    assert_eq!(w.run_to_the_end(), End::Updated);
    assert!(w.node.unschedulable);
}

/// Report 18, 29: the kubelet dies during the drain: the time limit ends it, nothing is rebooted.
#[test]
fn report_29_drain_that_hangs_ends_by_its_limit() {
    let mut w = World::plain();
    w.stuck = true;
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    assert_eq!(w.boots_asked, 0);
    let r = w.report.last_result.clone().unwrap();
    assert_eq!(r.reason, "DrainTimeout");
    assert_eq!(
        w.report.phase,
        Phase::Staged,
        "the image stays staged for the next try"
    );
    assert!(w.report.next_retry.is_some());
}

/// Report 20 (flatcar-linux-update-operator 188): a failed drain is never followed by a reboot; only the policy may say so.
#[test]
fn report_20_reboot_after_a_failed_drain_only_by_policy() {
    let mut w = World::plain();
    w.stuck = true;
    w.order.policy.as_mut().unwrap().ontimeout = crate::api::OnDrainTimeout::Reboot;
    assert_eq!(w.run_to_the_end(), End::Updated);
    assert_eq!(w.boots_asked, 1);
}

/// Report 21 (flatcar-linux-update-operator 201), KF-R16: the window closes during the drain.
#[test]
fn report_21_kf_r16_window_closes_during_the_drain() {
    let mut w = World::plain();
    w.stuck = true;
    until(&mut w, Phase::Draining);
    let g = w.order.grant.as_mut().unwrap();
    g.notafter = Time(after(w.now, 20));
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    assert_eq!(w.boots_asked, 0);
    assert_eq!(w.report.last_result.unwrap().reason, "GrantExpired");
}

/// Report 25 (kernel-module-management 1062): a reboot so fast that Ready never flips; the boot id decides.
#[test]
fn report_25_fast_reboot() {
    let mut w = World::plain();
    until(&mut w, Phase::Rebooting);
    w.tick(5);
    assert!(w.node.ready);
    assert_eq!(w.run_to_the_end(), End::Updated);
}

/// Report 30 (tuppr 575): told to boot, and the boot id never changes.
#[test]
fn report_30_acknowledged_and_never_rebooted() {
    let mut w = World::plain();
    until(&mut w, Phase::Draining);
    w.pods = 0;
    for _ in 0..3 {
        // The world reboots in tick; here it never comes to that.
        let d = decide(&w.facts());
        for a in &d.actions {
            let _ = w.act(a);
        }
        if w.report.phase == Phase::Rebooting {
            break;
        }
        w.tick(3);
    }
    assert_eq!(w.report.phase, Phase::Rebooting);
    assert!(w.agent.armed);
    let mut f = w.facts();
    f.now = after(w.now, 3601);
    let d = decide(&f);
    assert_eq!(
        d.actions,
        [Action::Cancel],
        "disarmed before it is schedulable again"
    );
    f.agent.as_mut().unwrap().armed = false;
    f.done.insert(Step::Cancel, Ok(()));
    let d = decide(&f);
    assert_eq!(d.reason, "RebootTimeout");
    assert_eq!(d.actions[0], Action::Release { uncordon: true });
    let Action::Report(r) = &d.actions[1] else {
        panic!("{d:?}")
    };
    assert_eq!(r.last_result.as_ref().unwrap().outcome, Outcome::Failed);
}

/// An admin uncordons while the node is drained: three times it is put back, then the grant is given back.
#[test]
fn uncordoned_by_a_human_while_draining() {
    let mut w = World::plain();
    w.stuck = true;
    until(&mut w, Phase::Draining);
    for n in 1..=3 {
        w.node.unschedulable = false;
        w.round();
        assert!(w.node.unschedulable, "put back, {n}");
    }
    w.node.unschedulable = false;
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    assert_eq!(w.report.last_result.unwrap().reason, "Uncordoned");
    assert_eq!(w.boots_asked, 0);
}

/// KF-R3: the other slot is not overwritten while a drain is known to be impossible.
#[test]
fn kf_r3_preflight_before_the_slot_is_touched() {
    let mut w = World::plain();
    w.preflight_blocked = vec![Blocked {
        pod: "d/p".into(),
        pdb: None,
        reason: Reason::MultiplePDBs,
        message: "two budgets".into(),
        since: w.now,
    }];
    for _ in 0..20 {
        w.round();
        w.tick(3);
    }
    assert!(!w.agent.report.has_staged(NEW));
    assert_eq!(w.report.phase, Phase::Idle);
    assert_eq!(w.report.failure.as_ref().unwrap().reason, "DrainBlocked");
    assert_eq!(w.report.drain.as_ref().unwrap().blocked_by[0].pod, "d/p");
    let writes = w.status_writes;
    w.tick(300);
    w.round();
    assert_eq!(w.status_writes, writes, "not before ten minutes");
    w.preflight_blocked.clear();
    w.tick(400);
    assert_eq!(w.run_to_the_end(), End::Updated);
}

/// KF-R1 and KF-R12: one preparation; a full budget at preflight is only reported; errors back off.
#[test]
fn kf_r12_failed_downloads_back_off() {
    let mut w = World::plain();
    w.stage_fails = Some(Fail {
        reason: "FetchFailed".into(),
        message: "GET: 404".into(),
        passing: true,
    });
    let mut tries = Vec::new();
    for _ in 0..2000 {
        let before = w.report.failure.as_ref().map_or(0, |x| x.count);
        w.round();
        if w.report.failure.as_ref().map_or(0, |x| x.count) > before {
            tries.push(w.now.as_second());
        }
        w.tick(3);
    }
    let gaps: Vec<i64> = tries.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.len() >= 4, "{gaps:?}");
    assert!(gaps.windows(2).all(|g| g[1] >= g[0] - 3), "{gaps:?}");
    assert!((57..=66).contains(&gaps[0]), "{gaps:?}");
    assert!(!crate::api::counts_as_failure(
        &w.report.failure.as_ref().unwrap().reason
    ));
}

/// KF-R11: a wrong checksum is a sticky, counted failure, told once.
#[test]
fn kf_r11_wrong_checksum_is_terminal_and_visible() {
    let mut w = World::plain();
    w.stage_fails = Some(Fail {
        reason: "DigestMismatch".into(),
        message: "expected 22, found 33".into(),
        passing: false,
    });
    assert_eq!(w.run_to_the_end(), End::NotStaged);
    assert_eq!(w.report.phase, Phase::Failed);
    assert_eq!(w.report.failure.as_ref().unwrap().reason, "DigestMismatch");
    assert_eq!(w.report.failure.as_ref().unwrap().count, 1);
    assert_eq!(w.node_writes, 0, "R2: no cordon");
}

/// KF-R14, report 16: the order goes away in every phase; no node hangs.
#[test]
fn report_16_kf_r14_order_withdrawn_in_every_phase() {
    for phase in [
        Phase::Staging,
        Phase::Staged,
        Phase::Draining,
        Phase::Rebooting,
        Phase::Verifying,
    ] {
        for withdrawn in [Desired::Abort, Desired::Idle] {
            let mut w = World::plain();
            until(&mut w, phase);
            w.order.desired = withdrawn;
            if withdrawn == Desired::Idle {
                w.granted = false;
                w.order.grant = None;
                w.order.attempt = 1;
            }
            for _ in 0..300 {
                w.round();
                w.tick(3);
            }
            assert!(!w.node.unschedulable, "{phase:?} {withdrawn:?}: {:?}", w.report);
            assert_eq!(w.node.cordoned_by, None, "{phase:?} {withdrawn:?}");
            assert!(!w.agent.trial, "{phase:?} {withdrawn:?}");
        }
    }
}

/// The node reboots by itself between grant and Boot: nothing was changed, nothing counts.
#[test]
fn a_reboot_of_its_own_is_no_fallback() {
    let mut w = World::plain();
    w.stuck = true;
    until(&mut w, Phase::Draining);
    w.agent.report.boot_id = "boot-by-power".into();
    w.node.boot_id = "boot-by-power".into();
    w.crash();
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    let r = w.report.last_result.unwrap();
    assert_eq!(r.reason, "NodeRebooted");
    assert!(!crate::api::counts_as_failure(&r.reason));
}

/// A digest that fell back is not staged again without a human (I4); forgiving it is one act.
#[test]
fn a_denied_digest_stays_denied_until_forgiven() {
    let mut w = World::plain();
    w.agent.denied = vec![NEW.into()];
    for _ in 0..20 {
        w.round();
        w.tick(3);
    }
    assert_eq!(w.report.phase, Phase::Failed);
    assert!(!w.agent.report.has_staged(NEW));
    w.order.forgive = vec![NEW.into()];
    w.order.opid = Some("op-stage-2".into());
    assert_eq!(w.run_to_the_end(), End::Updated);
}

/// The agent is silent: before Boot the grant is given back at its end; nothing is lost.
#[test]
fn silent_agent_while_draining() {
    let mut w = World::plain();
    until(&mut w, Phase::Draining);
    w.agent_up = false;
    for _ in 0..500 {
        w.round();
        w.tick(3);
    }
    assert!(!w.node.unschedulable);
    assert_eq!(w.report.last_result.as_ref().unwrap().reason, "GrantExpired");
}

#[test]
fn settings_go_in_order_and_are_recorded_at_the_end() {
    let mut w = World::plain();
    let configs = |v: &str| Configs {
        version: Some(v.into()),
        configs: vec![crate::api::Config {
            model: Some("kernel.sysctl".into()),
            ..Default::default()
        }],
    };
    w.order.upgradeconfigs = Some(configs("pre"));
    w.order.sysconfigs = Some(configs("post"));
    until(&mut w, Phase::Verifying);
    assert_eq!(
        (w.report.upgradeconfigs.clone(), w.report.sysconfigs.clone()),
        (None, None)
    );
    assert_eq!(w.run_to_the_end(), End::Updated);
    assert_eq!(w.report.upgradeconfigs, w.order.upgradeconfigs);
    assert_eq!(w.report.sysconfigs, w.order.sysconfigs);
}

/// A setting rejected inside the trial: back to the previous system.
#[test]
fn rejected_setting_inside_the_trial_rolls_back() {
    let mut w = World::plain();
    w.order.sysconfigs = Some(Configs {
        version: Some("1".into()),
        configs: vec![crate::api::Config::default()],
    });
    until(&mut w, Phase::Verifying);
    let mut f = w.facts();
    f.done.insert(
        Step::Sysconfigs,
        Err(Fail {
            reason: "ConfigRejected".into(),
            message: "no such key".into(),
            passing: false,
        }),
    );
    let d = decide(&f);
    assert!(matches!(&d.actions[0], Action::Report(r) if r.phase == Phase::RollingBack));
    assert_eq!(d.actions[1], Action::RollBack);
}

/// Config in place: labelled, neither cordoned nor rebooted, a foreign cordon untouched (KF-R7).
#[test]
fn kf_r7_config_touches_no_cordon() {
    let mut w = World::plain();
    w.foreign = true;
    w.node.unschedulable = true;
    w.order.desired = Desired::Config;
    w.order.opid = Some("op-config".into());
    w.order.sysconfigs = Some(Configs {
        version: Some("7".into()),
        configs: vec![crate::api::Config::default()],
    });
    w.order.grant = Some(crate::api::GrantOrder {
        epoch: 1,
        grantedat: Time(w.now),
        notafter: Time(after(w.now, 600)),
    });
    w.round();
    assert!(w.node.configuring);
    for _ in 0..5 {
        w.round();
        w.tick(3);
    }
    assert!(!w.node.configuring && w.node.unschedulable);
    assert_eq!(w.report.last_result.as_ref().unwrap().outcome, Outcome::Done);
    assert_eq!(
        w.report.sysconfigs.as_ref().unwrap().version.as_deref(),
        Some("7")
    );
    assert_eq!(w.boots_asked, 0);
}

#[test]
fn without_an_instance_nothing_is_written_but_our_own_cordon_goes() {
    let mut w = World::plain();
    w.node.unschedulable = true;
    w.node.cordoned_by = Some("gone/3".into());
    let mut f = w.facts();
    f.order = None;
    f.preflight = Work::Ended(Preflight::default());
    let d = decide(&f);
    assert_eq!(d.actions, [Action::Release { uncordon: true }]);
}

/// The agent answers an operation id that comes back with other entries with a refusal: settings that were edited under the
/// same order, or half of whose answer was lost, ask under an id of their own; the same entries ask under the same one.
#[test]
fn the_operation_id_of_settings_names_their_entries() {
    let configs = |version: &str, key: &str| Configs {
        version: Some(version.into()),
        configs: vec![crate::api::Config {
            model: Some("kernel.sysctl".into()),
            contents: vec![crate::api::ConfigEntry {
                key: Some(key.into()),
                ..Default::default()
            }],
            ..Default::default()
        }],
    };
    let asked = |c: Configs| {
        let mut w = World::plain();
        w.order.desired = Desired::Config;
        w.order.opid = Some("op-config".into());
        w.order.sysconfigs = Some(c);
        w.order.grant = Some(crate::api::GrantOrder {
            epoch: 1,
            grantedat: Time(w.now),
            notafter: Time(after(w.now, 600)),
        });
        let d = decide(&w.facts());
        let ids = d.actions.iter().find_map(|a| match a {
            Action::Configure { op_id, .. } => Some(op_id.clone()),
            _ => None,
        });
        ids.unwrap()
    };
    let first = asked(configs("1", "a"));
    assert!(
        first.starts_with("op-config.config.") && first.len() <= 128,
        "{first}"
    );
    assert_eq!(first, asked(configs("1", "a")), "a repeated call joins");
    assert_ne!(first, asked(configs("1", "b")));
    assert_ne!(first, asked(configs("2", "a")));
}

/// The slot no longer holds what was staged: given back, staged anew, and not asked for again at once.
#[test]
fn a_slot_that_lost_the_target_backs_off_and_is_staged_again() {
    let mut w = World::plain();
    until(&mut w, Phase::Draining);
    w.agent.report.staged_digest.clear();
    w.agent.report.staged_digests.clear();
    for _ in 0..5 {
        w.round();
    }
    let r = w.report.last_result.clone().unwrap();
    assert_eq!((r.outcome, r.reason.as_str()), (Outcome::Aborted, "NotStaged"));
    assert_eq!(w.report.phase, Phase::Idle, "it has to be staged again");
    assert!(!w.node.unschedulable && w.boots_asked == 0);
    let wait = |w: &World| w.report.next_retry.as_ref().unwrap().0.as_second() - w.now.as_second();
    let first = wait(&w);
    assert!((60..=1800).contains(&first), "{first}");
    // Once more under the next order: longer.
    w.order.opid = Some("op-boot-2".into());
    w.order.attempt = 2;
    for _ in 0..5 {
        w.round();
    }
    assert_eq!(w.report.last_result.as_ref().unwrap().op_id, "op-boot-2");
    assert_eq!(w.report.failure.as_ref().unwrap().count, 2);
    assert!(wait(&w) >= 2 * first, "{} after {first}", wait(&w));
}

/// Going back to the previous system stages it first: it lies in the other slot, but the agent boots only what was staged.
#[test]
fn the_previous_system_is_staged_before_it_is_booted() {
    let mut w = World::plain();
    assert_eq!(w.run_to_the_end(), End::Updated);
    assert_eq!(w.agent.report.previous_digest, super::world::OLD);
    w.order.desired = Desired::Stage;
    w.order.opid = Some("op-back".into());
    w.order.target.as_mut().unwrap().digest = super::world::OLD.into();
    w.round();
    assert!(
        matches!(w.report.phase, Phase::Idle | Phase::Staging),
        "{:?}",
        w.report.phase
    );
    let d = decide(&w.facts());
    assert!(
        d.actions.iter().any(|a| matches!(a, Action::Stage { .. })),
        "{:?}",
        d.actions
    );
}

/// Report 2 (bottlerocket-update-operator 630): what was written and what was done differ by one step when the process dies.
/// It dies once after every single action of the whole way.
#[test]
fn report_2_killed_after_every_single_action() {
    for n in 1.. {
        let mut w = World::plain();
        let mut left = n;
        'life: for _ in 0..300 {
            let d = decide(&w.facts());
            for a in &d.actions {
                if w.act(a).is_err() {
                    break;
                }
                left -= 1;
                if left == 0 {
                    w.crash();
                    break 'life;
                }
            }
            w.tick(3);
        }
        if left > 0 {
            assert!(n > 12, "the whole way has only {n} actions?");
            return;
        }
        assert_eq!(w.run_to_the_end(), End::Updated, "died after action {n}");
        assert_eq!(w.boots_asked, 1, "died after action {n}");
    }
}

/// KF-R2: a drain that did not end well is no drain: no boot, the grant given back, the reason told.
#[test]
fn kf_r2_a_drain_that_failed_is_never_followed_by_a_boot() {
    use crate::drain::run::Outcome as Drained;
    for end in [
        Drained::Refused(Vec::new()),
        Drained::TimedOut(Vec::new()),
        Drained::VolumesAttached(Vec::new()),
        Drained::Fault("the list of pods was refused".into()),
    ] {
        let mut w = World::plain();
        until(&mut w, Phase::Draining);
        let mut f = w.facts();
        f.drain = Work::Ended(end.clone());
        let d = decide(&f);
        assert!(
            !d.actions.iter().any(|a| matches!(a, Action::Boot { .. })),
            "{end:?}: {:?}",
            d.actions
        );
        let told = d.actions.iter().find_map(|a| match a {
            Action::Report(r) => r.failure.clone(),
            _ => None,
        });
        assert!(told.is_some_and(|x| !x.reason.is_empty()), "{end:?}");
    }
}

/// KF-R5: nothing waits for ever, and an edit interrupts: the order is withdrawn while a budget holds the drain.
#[test]
fn kf_r5_a_drain_that_never_ends_is_interrupted_by_an_edit() {
    let mut w = World::plain();
    w.stuck = true;
    until(&mut w, Phase::Draining);
    let before = w.now;
    w.order.desired = Desired::Abort;
    assert_eq!(w.run_to_the_end(), End::GivenBack);
    let ended = w
        .report
        .last_result
        .as_ref()
        .unwrap()
        .finished_at
        .as_ref()
        .unwrap()
        .0;
    assert!(
        ended.as_second() - before.as_second() < 60,
        "long before the limit of the drain"
    );
    assert!(!w.node.unschedulable && w.boots_asked == 0);
}

/// KF-R6: the patch that uncordons fails once: it is repeated, mark and labels go with it, and a later config arrives.
#[test]
fn kf_r6_an_uncordon_that_fails_is_repeated_and_nothing_is_lost() {
    let mut w = World::plain();
    let mut refused = 0;
    for _ in 0..300 {
        let d = decide(&w.facts());
        for a in &d.actions {
            // The server refuses the first two; what follows in the round is not done.
            if matches!(a, Action::Release { .. }) && refused < 2 {
                refused += 1;
                break;
            }
            if w.act(a).is_err() {
                break;
            }
        }
        w.tick(3);
    }
    assert_eq!(refused, 2, "an uncordon was tried and tried again");
    assert!(!w.node.unschedulable && !w.node.upgrading && w.node.cordoned_by.is_none());
    assert_eq!(w.report.last_result.as_ref().unwrap().outcome, Outcome::Done);
    w.order.desired = Desired::Config;
    w.order.opid = Some("op-config".into());
    w.order.sysconfigs = Some(Configs {
        version: Some("later".into()),
        configs: vec![crate::api::Config::default()],
    });
    w.order.grant = Some(crate::api::GrantOrder {
        epoch: 1,
        grantedat: Time(w.now),
        notafter: Time(after(w.now, 600)),
    });
    for _ in 0..5 {
        w.round();
        w.tick(3);
    }
    assert_eq!(
        w.report.sysconfigs.as_ref().unwrap().version.as_deref(),
        Some("later")
    );
    assert!(!w.node.configuring);
}

/// A right that the proxy lacks is told by one Event and the status, in this order, because it may be the right to report; not
/// again while it is missing, whatever the order; and taken back once it is there.
#[test]
fn a_missing_right_is_told_once_and_taken_back() {
    let words = "pods is forbidden: User \"x\" cannot list resource \"pods\"; apply proxy/deploy/rbac.yaml";
    for phase in [Phase::Idle, Phase::Staged, Phase::Draining] {
        let mut w = World::plain();
        until(&mut w, phase);
        let mut f = w.facts();
        f.forbidden = Some(words.into());
        let d = decide(&f);
        let [
            Action::Event {
                message,
                warning: true,
                ..
            },
            Action::Report(r),
        ] = d.actions.as_slice()
        else {
            panic!("{phase:?}: {:?}", d.actions)
        };
        assert!(message == words && d.tells_of_a_missing_right());
        assert_eq!(r.phase, w.report.phase, "nothing else changes");
        f.report = (**r).clone();
        for _ in 0..3 {
            let d = decide(&f);
            assert!(
                !d.actions.iter().any(|a| matches!(a, Action::Event { .. })),
                "{phase:?}: told twice"
            );
            for a in &d.actions {
                if let Action::Report(r) = a {
                    f.report = (**r).clone();
                }
            }
            let told = f
                .report
                .failure
                .as_ref()
                .map(|x| (x.reason.as_str(), x.message.as_str()));
            assert_eq!(told, Some(("Forbidden", words)), "{phase:?}");
        }
        f.forbidden = None;
        let d = decide(&f);
        let taken_back = d.actions.iter().any(|a| match a {
            Action::Report(r) => r.failure.is_none(),
            Action::Boot { report, .. } => report.failure.is_none(),
            _ => false,
        });
        assert!(taken_back, "{phase:?}: {:?}", d.actions);
    }
}

/// Staging overwrites what lies in the other slot: said with the phase, not by a write of its own when the agent says it too. The
/// source of a rollback stays named.
#[test]
fn staging_says_at_once_that_the_way_back_is_gone() {
    for rollback in [false, true] {
        let mut w = World::plain();
        w.agent.report.previous_digest = "cc".into();
        w.agent.report.previous_version = "Slipway 0".into();
        if rollback {
            w.order.target.as_mut().unwrap().kind = crate::api::GrantKind::Rollback;
        }
        let mut f = w.facts();
        f.report.agent = Some(w.agent.report.clone());
        f.preflight = Work::Ended(Preflight::default());
        let d = decide(&f);
        let Action::Report(r) = &d.actions[0] else {
            panic!("{:?}", d.actions)
        };
        assert_eq!(r.phase, Phase::Staging);
        let said = r.agent.as_ref().unwrap();
        assert_eq!(said.previous_digest.is_empty(), !rollback);
        assert_eq!(said.previous_version.is_empty(), !rollback);
        f.report = (**r).clone();
        f.stage = Work::Running;
        assert!(
            decide(&f).actions.is_empty(),
            "the agent still says the old thing"
        );
        f.agent.as_mut().unwrap().report.previous_digest.clear();
        f.agent.as_mut().unwrap().report.previous_version.clear();
        assert!(decide(&f).actions.is_empty(), "the agent says it too");
    }
}

/// After the boot the agent answers before the Node is read: nothing is written for that alone.
#[test]
fn the_first_word_after_the_boot_waits_for_the_node() {
    let mut w = World::plain();
    until(&mut w, Phase::Rebooting);
    let mut f = w.facts();
    f.agent.as_mut().unwrap().report.boot_id = "another".into();
    f.node = None;
    let d = decide(&f);
    assert!(d.actions.is_empty() && d.wake.is_some(), "{:?}", d.actions);
}
