//! Every row of the state table, and properties that hold for every sequence of events.

use super::*;
use crate::evidence::{Evidence, Mark, Panic, Sign};
use crate::ports::EnvCopies;
use crate::state::{Armed, Try};
use os_proto::env_block::TRIES;
use os_proto::record::{MIN_READER, SCHEMA};
use proptest::prelude::*;

fn digest(n: u8) -> Sha256Digest {
    Sha256Digest([n; 32])
}

fn record(n: u8, content: Content) -> SlotRecord {
    SlotRecord {
        schema: SCHEMA,
        min_reader: MIN_READER,
        version: n.to_string(),
        os_image: format!("Slipway {n}"),
        image_size: 4096,
        image_sha256: digest(n),
        payload_digests: vec![digest(n)],
        content,
        verified_unix: 0,
        unknown: Default::default(),
    }
}

fn copies(env: Env) -> EnvCopies {
    EnvCopies {
        env1: Ok(env),
        env2: Ok(env),
    }
}

fn node(running: Slot, boot_id: &str, counted: bool) -> Node {
    let boot = Boot {
        running: Ok(running),
        boot_id: boot_id.into(),
        counted,
        gated: true,
    };
    Node::new(
        boot,
        State::default(),
        false,
        [Some(record(1, Content::Factory)), None],
    )
}

fn panicked(reason: &str) -> Evidence {
    Evidence {
        panic: Some(Panic {
            reason: reason.to_owned(),
            lines: vec!["before".to_owned(), reason.to_owned()],
            ..Panic::default()
        }),
        signs: Vec::new(),
    }
}

fn start(node: &Node, env: Env, panic: Option<&str>) -> Step {
    let event = Event::Started {
        copies: Ok(copies(env)),
        evidence: panic.map(panicked).unwrap_or_default(),
    };
    step(node, 100, event).unwrap()
}

fn stage(op: &str, n: u8) -> Event {
    Event::Stage(StageAsk {
        op_id: op.into(),
        digest: digest(n),
        version: None,
        asked_by: "test".into(),
        force: false,
        dry_run: false,
        from_slot: None,
    })
}

fn installed(n: u8) -> Event {
    Event::Installed(SlotContent {
        version: n.to_string(),
        os_image: format!("Slipway {n}"),
        image_size: 4096,
        image_sha256: digest(n),
        fetched: 1,
        written: 1,
        remark: String::new(),
    })
}

fn activate(op: &str, reboot: bool) -> Event {
    Event::Activate(ActivateAsk {
        op_id: op.into(),
        asked_by: "test".into(),
        digest: None,
        expect_boot_id: String::new(),
        valid_until_unix: 0,
        reboot,
        confirm: Confirm::Local,
        deadline_secs: 0,
        on_silence: OnSilence::Reboot,
    })
}

/// Idle on slot A, then 2 staged in slot B.
fn staged() -> Node {
    let n = start(&node(Slot::A, "b1", false), Env::committed(Slot::A, 1), None).node;
    let n = step(&n, 100, stage("s", 2)).unwrap().node;
    let n = step(&n, 100, Event::FirstWrite).unwrap().node;
    step(&n, 100, installed(2)).unwrap().node
}

fn armed() -> Node {
    step(&staged(), 100, activate("a", true)).unwrap().node
}

/// The same durable facts in another boot.
fn rebooted(old: &Node, running: Slot, boot_id: &str, counted: bool) -> Node {
    let boot = Boot {
        running: Ok(running),
        boot_id: boot_id.into(),
        counted,
        gated: true,
    };
    Node::new(boot, old.state.clone(), old.read_only, old.records.clone())
}

fn kinds(effects: &[Effect]) -> Vec<&'static str> {
    effects
        .iter()
        .map(|e| match e {
            Effect::SaveState { required: true } => "state!",
            Effect::SaveState { required: false } => "state",
            Effect::SaveRecord { .. } => "record",
            Effect::RepairEnv(_) => "repair",
            Effect::Disarm(_) => "disarm",
            Effect::PrepareTrial(_) => "prepare",
            Effect::Arm(..) => "arm",
            Effect::Commit(_) => "commit",
            Effect::ReadEnvBack(_) => "read-back",
            Effect::StartWork => "work",
            Effect::CancelWork => "cancel",
            Effect::StartTrial => "trial",
            Effect::StopTrialTimer => "stop-timer",
            Effect::Reply => "reply",
            Effect::Reboot => "reboot",
        })
        .collect()
}

#[test]
fn rows_of_a_stage() {
    let idle = start(&node(Slot::A, "b1", false), Env::committed(Slot::A, 1), None);
    assert_eq!((idle.node.phase, kinds(&idle.effects)), (Phase::Idle, vec![]));
    let s = step(&idle.node, 1, stage("s", 2)).unwrap();
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (Phase::Staging, vec!["state!", "work"])
    );
    let w = step(&s.node, 1, Event::FirstWrite).unwrap();
    assert_eq!(kinds(&w.effects), ["record", "state!"]);
    let i = step(&w.node, 1, installed(2)).unwrap();
    assert_eq!(
        (i.node.phase, kinds(&i.effects)),
        (Phase::Staged, vec!["record", "state!", "reply"])
    );
    let f = step(
        &w.node,
        1,
        Event::WorkFailed(AgentError::new(Code::FetchFailed, "x")),
    )
    .unwrap();
    assert_eq!(
        (f.node.phase, kinds(&f.effects)),
        (Phase::Idle, vec!["state", "reply"])
    );
    assert_eq!(f.node.records[1].as_ref().unwrap().content, Content::Dirty);
    // Nothing written yet: what was staged stays staged.
    let again = step(&i.node, 1, stage("s2", 3)).unwrap();
    let f = step(
        &again.node,
        1,
        Event::WorkFailed(AgentError::new(Code::FetchFailed, "x")),
    )
    .unwrap();
    assert_eq!(f.node.phase, Phase::Staged);
}

#[test]
fn rows_of_arming_and_taking_back() {
    let a = step(&staged(), 1, activate("a", true)).unwrap();
    assert_eq!(a.node.phase, Phase::Armed);
    assert_eq!(
        kinds(&a.effects),
        ["state!", "prepare", "arm", "read-back", "reply", "reboot"]
    );
    let a = step(&staged(), 1, activate("a", false)).unwrap();
    assert_eq!(
        kinds(&a.effects),
        ["state!", "prepare", "arm", "read-back", "reply"]
    );
    let cancel = Event::Cancel(CancelAsk {
        op_id: "c".into(),
        asked_by: String::new(),
        expect_boot_id: String::new(),
        target_op_id: String::new(),
    });
    let c = step(&a.node, 1, cancel).unwrap();
    assert_eq!(
        (c.node.phase, kinds(&c.effects)),
        (Phase::Staged, vec!["disarm", "read-back", "state", "reply"])
    );
    // A new process has to read back first.
    let n = start(
        &rebooted(&staged(), Slot::A, "b1", false),
        Env::committed(Slot::A, 1),
        None,
    )
    .node;
    assert_eq!(n.phase, Phase::Staged);
    let a = step(&n, 1, activate("a", true)).unwrap();
    assert_eq!(kinds(&a.effects), ["state!", "work"]);
    let a = step(&a.node, 1, Event::ReadBack).unwrap();
    assert_eq!(
        kinds(&a.effects),
        ["state!", "prepare", "arm", "read-back", "reply", "reboot"]
    );
}

#[test]
fn rows_of_an_agent_start() {
    let env = armed().env.unwrap();
    let left = |l| Env { left: Some(l), ..env };
    let b = |slot, id: &str, counted| rebooted(&armed(), slot, id, counted);
    // Armed, same boot: the request is repeated once.
    let s = start(&b(Slot::A, "b1", false), env, None);
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (Phase::Armed, vec!["state!", "reboot"])
    );
    let s = start(&rebooted(&s.node, Slot::A, "b1", false), env, None);
    assert_eq!(kinds(&s.effects), Vec::<&str>::new());
    assert_eq!(s.node.problems[0].0, Code::RebootStuck);
    // The trial runs.
    let s = start(&b(Slot::B, "b2", true), left(2), None);
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (Phase::Trial, vec!["state", "trial"])
    );
    // Not counted by GRUB: chosen at the console.
    let s = start(&b(Slot::B, "b2", false), left(3), None);
    assert_eq!((s.node.phase, kinds(&s.effects)), (Phase::Foreign, vec![]));
    // Never started.
    let s = start(&b(Slot::A, "b2", false), left(3), None);
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (Phase::Staged, vec!["state", "disarm"])
    );
    assert_eq!(s.node.state.not_started, 1);
    // Fell back.
    let s = start(&b(Slot::A, "b5", false), left(0), None);
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (Phase::FellBack, vec!["state!", "disarm"])
    );
    // Tries left: it must not start again, with or without the state.
    let s = start(&b(Slot::A, "b5", false), left(1), None);
    assert_eq!(kinds(&s.effects), ["state", "disarm"]);
    // A commit that the state did not hear of.
    let s = start(&b(Slot::B, "b2", false), Env::committed(Slot::B, 9), None);
    assert_eq!((s.node.phase, kinds(&s.effects)), (Phase::Idle, vec!["state"]));
    assert!(s.node.state.armed.is_none());
    // No slots.
    let mut n = node(Slot::A, "b1", false);
    n.boot.running = Err(AgentError::new(Code::DiskUnsupported, "no disk"));
    let s = start(&n, Env::committed(Slot::A, 1), None);
    assert_eq!(s.node.phase, Phase::NoSlots);
    assert_eq!(
        step(&s.node, 1, stage("s", 2)).unwrap_err().code,
        Code::DiskUnsupported
    );
}

#[test]
fn an_operation_id_belongs_to_one_order() {
    let idle = start(&node(Slot::A, "b1", false), Env::committed(Slot::A, 1), None).node;
    let busy = step(&idle, 100, stage("s", 2)).unwrap().node;
    assert_eq!(step(&busy, 100, stage("s", 2)).unwrap().outcome, Outcome::Joined);
    assert_eq!(
        step(&busy, 100, stage("s", 3)).unwrap_err().code,
        Code::InvalidArgument
    );
    // What an older agent wrote has the digest alone.
    let mut old = staged();
    old.state.operations[0].order.clear();
    assert_eq!(
        step(&old, 100, stage("s", 3)).unwrap_err().code,
        Code::InvalidArgument
    );
    assert!(matches!(
        step(&old, 100, stage("s", 2)).unwrap().outcome,
        Outcome::Replay(_)
    ));
    // A reboot that the first order did not ask for is another order.
    let armed = step(&staged(), 100, activate("a", false)).unwrap().node;
    assert!(matches!(
        step(&armed, 100, activate("a", false)).unwrap().outcome,
        Outcome::Replay(_)
    ));
    assert_eq!(
        step(&armed, 100, activate("a", true)).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn a_stage_whose_slot_holds_something_else_by_now_runs_again() {
    let mut n = staged();
    n = step(&n, 100, stage("t", 3)).unwrap().node;
    n = step(&n, 100, Event::FirstWrite).unwrap().node;
    n = step(&n, 100, installed(3)).unwrap().node;
    let again = step(&n, 200, stage("s", 2)).unwrap();
    assert_eq!(again.outcome, Outcome::Started);
    let last = again.node.state.operations.last().unwrap();
    assert_eq!(
        (last.op_id.as_str(), last.started_unix, last.finished_unix),
        ("s", 200, 0)
    );
    assert_eq!(again.node.state.operations.len(), 2);
}

#[test]
fn an_armed_slot_that_contradicts_its_record_is_disarmed() {
    let s = step(&armed(), 200, Event::Contradicts(Slot::B, digest(9))).unwrap();
    assert!(matches!(s.effects[0], Effect::Disarm(e) if e.try_slot.is_none()));
    assert_eq!(s.node.record(Slot::B).unwrap().content, Content::Dirty);
    assert_eq!((s.node.phase, &s.node.state.staged), (Phase::Idle, &None));
    assert_eq!(s.node.state.last_failure.unwrap().code, "MediumCorrupt");
}

#[test]
fn rows_of_a_trial() {
    let env = Env {
        left: Some(2),
        ..armed().env.unwrap()
    };
    let t = start(&rebooted(&armed(), Slot::B, "b2", true), env, None).node;
    let s = step(&t, 1, Event::Healthy).unwrap();
    assert_eq!(
        (s.node.phase, kinds(&s.effects)),
        (
            Phase::Idle,
            vec!["commit", "read-back", "state", "stop-timer", "reply"]
        )
    );
    assert_eq!(s.node.env.unwrap().cur, Slot::B);
    let s = step(&t, 1, Event::Bad("hook".into())).unwrap();
    assert_eq!(kinds(&s.effects), ["state", "disarm", "reboot"]);
    assert_eq!(s.node.state.failed_digests[0].cause, Cause::HealthFailed);
    assert_eq!(step(&s.node, 1, stage("z", 3)).unwrap_err().code, Code::Busy);
    // The agent dies between the verdict and the disarm: the next one finishes it.
    let again = start(&rebooted(&s.node, Slot::B, "b2", true), env, None);
    assert_eq!(kinds(&again.effects), ["state", "disarm", "reboot"]);
    let s = step(&t, 1, Event::Deadline("late".into())).unwrap();
    assert_eq!(kinds(&s.effects), ["state", "reboot"]);
    assert!(
        s.node.state.failed_digests.is_empty(),
        "the verdict falls after the last try"
    );
    let rb = Event::Rollback(RollbackAsk {
        op_id: "r".into(),
        asked_by: String::new(),
        expect_boot_id: String::new(),
        reboot: false,
    });
    let s = step(&t, 1, rb).unwrap();
    assert_eq!(kinds(&s.effects), ["state", "disarm", "reply", "reboot"]);
}

#[test]
fn causes() {
    let a = armed().state.armed.unwrap();
    let reached = |n: usize| {
        let mut a = a.clone();
        a.tries = (0..n)
            .map(|i| Try {
                boot_id: i.to_string(),
                left: None,
                started_unix: 0,
                last: "boot-complete.target is not reached".into(),
                last_secs: 7,
                kept: false,
                unknown: Default::default(),
            })
            .collect();
        a
    };
    let j = |a: &crate::state::Armed, left, panic: Option<&str>| {
        fallback::judge(Some(a), Some(left), &panic.map(panicked).unwrap_or_default())
    };
    assert_eq!(j(&reached(0), 0, None).cause, Cause::NoReport);
    assert_eq!(j(&reached(0), 0, Some("Kernel panic")).cause, Cause::Panic);
    assert_eq!(j(&reached(3), 0, None).cause, Cause::Interrupted);
    let mixed = j(&reached(1), 0, None);
    assert_eq!((mixed.cause, mixed.silent, mixed.tries), (Cause::NoReport, 2, 3));
    assert!(
        mixed
            .last_sign
            .contains("boot-complete.target is not reached at 7 s")
    );
    let mut v = reached(3);
    v.verdict = Some(crate::state::Verdict {
        cause: Cause::Deadline,
        detail: "late".into(),
    });
    assert_eq!(j(&v, 0, Some("panic")).cause, Cause::Deadline);
    assert_eq!(
        fallback::judge(None, Some(0), &Evidence::default()).cause,
        Cause::NoReport
    );
}

#[test]
fn a_panic_is_told_with_the_kernels_last_lines_whichever_boot_finds_its_record() {
    let env = armed().env.unwrap();
    let left = |l| Env { left: Some(l), ..env };
    // Found by the boot after the last try.
    let s = start(
        &rebooted(&armed(), Slot::A, "b9", false),
        left(0),
        Some("Kernel panic - here"),
    );
    let f = s.node.state.last_failure.unwrap();
    assert_eq!((f.cause, f.kernel_lines.len()), (Some(Cause::Panic), 2));
    assert!(f.message.contains("Kernel panic - here"), "{}", f.message);
    assert!(s.node.state.failed_digests[0].denied);
    // Found by the second try, which was then cut: nobody finds it twice.
    let t = start(
        &rebooted(&armed(), Slot::B, "b2", true),
        left(1),
        Some("Kernel panic - first try"),
    )
    .node;
    let s = start(&rebooted(&t, Slot::A, "b9", false), left(0), None);
    let f = s.node.state.last_failure.unwrap();
    assert_eq!(f.cause, Some(Cause::Panic));
    assert!(f.message.contains("first try"), "{}", f.message);
    // One of long before the arming is not of this trial.
    let mut old = panicked("Kernel panic - old");
    old.panic.as_mut().unwrap().at_unix = 5;
    let mut a = armed();
    a.state.armed.as_mut().unwrap().armed_unix = 1_800_000_000;
    assert_eq!(
        fallback::judge(a.state.armed.as_ref(), Some(0), &old).cause,
        Cause::NoReport
    );
}

#[test]
fn silence_names_the_last_sign_of_life_and_the_early_timer_is_a_deadline() {
    let a = armed().state.armed.unwrap();
    let mark = |boot: &str, secs, mark| Sign {
        boot_id: boot.into(),
        secs,
        mark,
    };
    let judge =
        |a: &Armed, signs: Vec<Sign>| fallback::judge(Some(a), Some(0), &Evidence { panic: None, signs });
    let e = judge(&a, vec![]);
    assert_eq!(
        (e.cause, e.silent, e.last_sign.as_str()),
        (Cause::NoReport, 3, "")
    );
    assert!(
        e.detail.contains("power cut") && e.detail.contains("none"),
        "{}",
        e.detail
    );
    let e = judge(
        &a,
        vec![mark("t1", 4, Mark::Initramfs), mark("t2", 6, Mark::Initramfs)],
    );
    assert_eq!(e.cause, Cause::NoReport);
    assert_eq!(e.last_sign, "the initramfs mounted PERSIST at 6 s after boot");
    let e = judge(
        &a,
        vec![mark("t1", 4, Mark::Initramfs), mark("t1", 900, Mark::Deadline)],
    );
    assert_eq!((e.cause, e.silent), (Cause::Deadline, 0));
    assert!(e.detail.contains("never started"), "{}", e.detail);
    let e = judge(
        &a,
        vec![mark("t1", 4, Mark::Initramfs), mark("t1", 30, Mark::Emergency)],
    );
    assert_eq!(e.last_sign, "emergency or rescue mode at 30 s after boot");
    // What the agent saw comes after the initramfs of the same boot, and a later silent boot after both.
    let mut one = a.clone();
    one.tries.push(Try {
        boot_id: "t1".into(),
        left: Some(2),
        started_unix: 0,
        last: "all gates hold".into(),
        last_secs: 40,
        kept: false,
        unknown: Default::default(),
    });
    let e = judge(&one, vec![mark("t1", 4, Mark::Initramfs)]);
    assert_eq!(
        (e.silent, e.last_sign.as_str()),
        (2, "all gates hold at 40 s after boot")
    );
    let e = judge(
        &one,
        vec![mark("t1", 4, Mark::Initramfs), mark("t2", 5, Mark::Initramfs)],
    );
    assert_eq!(e.last_sign, "the initramfs mounted PERSIST at 5 s after boot");
}

#[test]
fn a_trial_that_cannot_be_judged_goes_back_at_once_and_its_digest_is_not_denied() {
    let env = Env {
        left: Some(2),
        ..armed().env.unwrap()
    };
    let t = start(&rebooted(&armed(), Slot::B, "b2", true), env, None).node;
    let s = step(&t, 1, Event::Obstructed("no PERSIST".into())).unwrap();
    assert_eq!(kinds(&s.effects), ["state", "disarm", "reboot"]);
    let f = &s.node.state.failed_digests[0];
    assert_eq!((f.cause, f.denied), (Cause::Interrupted, false));
    // Where nothing could be stored, the next boot says that there was a trial.
    let s = start(&rebooted(&armed(), Slot::A, "b9", false), env.disarmed(), None);
    assert_eq!(s.node.phase, Phase::FellBack);
    let f = &s.node.state.failed_digests[0];
    assert_eq!((f.cause, f.denied), (Cause::Interrupted, false));
}

#[test]
fn a_way_back_keeps_its_own_etc_and_an_update_gets_a_copy() {
    let env = |n: &Node| n.env.unwrap();
    let prepared = |s: &Step| {
        s.effects.iter().find_map(|e| match e {
            Effect::PrepareTrial(keep) => Some(*keep),
            _ => None,
        })
    };
    let update = step(&staged(), 1, activate("a", true)).unwrap();
    assert_eq!(prepared(&update), Some(None));
    let tried = Env {
        left: Some(2),
        ..env(&update.node)
    };
    let t = start(&rebooted(&update.node, Slot::B, "b2", true), tried, None).node;
    let done = step(&t, 1, Event::Healthy).unwrap().node;
    assert_eq!(done.state.own_etc, Some(Slot::A));
    // Rollback after the commit: slot A is as it was when it was last committed.
    let back = Event::Rollback(RollbackAsk {
        op_id: "r".into(),
        asked_by: String::new(),
        expect_boot_id: String::new(),
        reboot: true,
    });
    let r = step(&done, 1, back).unwrap();
    let r = step(&r.node, 1, Event::ReadBack).unwrap();
    assert_eq!(prepared(&r), Some(Some(Slot::A)));
    assert_eq!(r.node.state.own_etc, None, "a trial may change it");
    // A new image in slot A: a copy.
    let n = step(&done, 1, stage("s3", 3)).unwrap().node;
    let n = step(&n, 1, Event::FirstWrite).unwrap().node;
    let n = step(&n, 1, installed(3)).unwrap().node;
    let a = step(&n, 1, activate("a3", true)).unwrap();
    assert_eq!(prepared(&a), Some(None));
}

/// A random step of a random world.
#[derive(Debug, Clone)]
enum Act {
    Stage(u8),
    FirstWrite,
    Installed,
    ReadBack,
    Fail,
    Activate(u8, bool),
    Commit,
    Rollback(u8, bool),
    Cancel,
    Healthy,
    NotHealthy,
    Bad,
    Obstructed,
    Deadline,
    Forget(u8),
    AgentRestart,
    Reboot {
        picked: Option<bool>,
        reaches_agent: bool,
    },
    LoseState,
    DamageEnv(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (2u8..5).prop_map(Act::Stage),
        4 => Just(Act::FirstWrite),
        4 => Just(Act::Installed),
        3 => Just(Act::ReadBack),
        1 => Just(Act::Fail),
        5 => (0u8..4, any::<bool>()).prop_map(|(n, r)| Act::Activate(n, r)),
        1 => Just(Act::Commit),
        1 => (0u8..4, any::<bool>()).prop_map(|(n, r)| Act::Rollback(n, r)),
        1 => Just(Act::Cancel),
        2 => Just(Act::Healthy),
        1 => Just(Act::NotHealthy),
        1 => Just(Act::Bad),
        1 => Just(Act::Obstructed),
        1 => Just(Act::Deadline),
        1 => (2u8..5).prop_map(Act::Forget),
        2 => Just(Act::AgentRestart),
        6 => (proptest::option::weighted(0.1, any::<bool>()), any::<bool>())
            .prop_map(|(picked, reaches_agent)| Act::Reboot { picked, reaches_agent }),
        1 => Just(Act::LoseState),
        1 => any::<bool>().prop_map(Act::DamageEnv),
    ]
}

/// What really is, beside the node's belief.
struct World {
    node: Node,
    env: [Option<Env>; 2],
    saved: State,
    records: [Option<SlotRecord>; 2],
    running: Slot,
    boot: u32,
    /// Content of each slot was read back since its last write.
    whole: [bool; 2],
    /// … by this very process.
    proven: [bool; 2],
    /// Boots in which an operation that arms asked for a reboot.
    reboots: std::collections::BTreeMap<String, std::collections::BTreeSet<u32>>,
    working: bool,
    wrote: bool,
    /// The slot was committed since its image was last written, and no trial touched its layer of /etc since.
    own_etc: [bool; 2],
}

fn at(s: Slot) -> usize {
    usize::from(s == Slot::B)
}

impl World {
    fn new() -> World {
        let n = node(Slot::A, "0", false);
        let env = Env::committed(Slot::A, 1);
        let records = n.records.clone();
        let mut w = World {
            node: n,
            env: [Some(env), Some(env)],
            saved: State::default(),
            records,
            running: Slot::A,
            boot: 0,
            whole: [true, false],
            proven: [false, false],
            reboots: Default::default(),
            working: false,
            wrote: false,
            own_etc: [true, false],
        };
        w.start(false);
        w
    }

    fn start(&mut self, counted: bool) {
        let boot = Boot {
            running: Ok(self.running),
            boot_id: self.boot.to_string(),
            counted,
            gated: true,
        };
        self.node = Node::new(boot, self.saved.clone(), false, self.records.clone());
        self.working = false;
        self.wrote = false;
        self.proven = [false, false];
        let copy = |e: Option<Env>| e.ok_or_else(|| "damaged".to_owned());
        let copies = EnvCopies {
            env1: copy(self.env[0]),
            env2: copy(self.env[1]),
        };
        self.event(Event::Started {
            copies: Ok(copies),
            evidence: Evidence::default(),
        });
    }

    fn event(&mut self, event: Event) {
        let arms = matches!(
            event,
            Event::Activate(_) | Event::Rollback(_) | Event::ReadBack | Event::Started { .. }
        );
        let Ok(s) = step(&self.node, 1000, event) else {
            return;
        };
        let known = self.node.env;
        self.node = s.node;
        let target = self.running.other();
        let mut env_writes = 0;
        let mut prepared = false;
        for e in &s.effects {
            match e {
                Effect::SaveState { .. } => self.saved = self.node.state.clone(),
                Effect::SaveRecord { slot, record, .. } => {
                    if record.content == Content::Dirty {
                        self.own_etc[at(*slot)] = false;
                    }
                    self.records[at(*slot)] = Some((**record).clone());
                }
                Effect::PrepareTrial(keep) => {
                    prepared = true;
                    if let Some(s) = keep {
                        assert!(
                            *s == target && self.own_etc[at(*s)],
                            "only an untouched layer is kept"
                        );
                    }
                    // Whatever the trial does with it.
                    self.own_etc[at(target)] = false;
                }
                Effect::Arm(slot, env) => {
                    assert_eq!(*slot, target, "only the inactive slot is armed");
                    assert!(prepared, "word for the initramfs comes before arming");
                    assert!(
                        self.whole[at(*slot)] && self.proven[at(*slot)],
                        "never an unverified slot"
                    );
                    assert_eq!(
                        (env.try_slot, env.left, env.cur),
                        (Some(*slot), Some(TRIES), self.running)
                    );
                    assert!(self.saved.armed.is_some(), "armed is durable first");
                    self.proven[at(*slot)] = false;
                    self.write(*env, &mut env_writes);
                }
                Effect::Commit(env) => {
                    assert_eq!(
                        (env.cur, env.try_slot),
                        (self.running, None),
                        "what runs is committed"
                    );
                    self.own_etc[at(env.cur)] = true;
                    self.write(*env, &mut env_writes);
                }
                Effect::Disarm(env) => {
                    // With both copies gone from the medium, what the agent read at its start counts.
                    let before = self.env[0].or(self.env[1]).or(known);
                    assert_eq!(env.try_slot, None);
                    assert_eq!(
                        before.map(|b| b.cur),
                        Some(env.cur),
                        "a disarm never changes the default"
                    );
                    self.write(*env, &mut env_writes);
                }
                Effect::RepairEnv(env) => self.write(*env, &mut env_writes),
                Effect::ReadEnvBack(env) => assert_eq!(self.env[0], Some(*env)),
                Effect::StartWork => self.working = true,
                Effect::Reboot => {
                    if arms && self.node.phase == Phase::Armed {
                        let op = self
                            .node
                            .state
                            .armed
                            .as_ref()
                            .map(|a| a.op_id.clone())
                            .unwrap_or_default();
                        let boots = self.reboots.entry(op).or_default();
                        boots.insert(self.boot);
                        assert_eq!(boots.len(), 1, "at most one reboot per operation");
                    }
                }
                Effect::CancelWork | Effect::StartTrial | Effect::StopTrialTimer | Effect::Reply => {}
            }
        }
        let unsettled = matches!(self.node.phase, Phase::Armed | Phase::Trial | Phase::Foreign);
        assert!(
            !(unsettled
                && self
                    .node
                    .running_op
                    .as_ref()
                    .is_some_and(|r| r.kind == Kind::Stage)),
            "nothing is staged while armed, on trial or foreign"
        );
    }

    fn write(&mut self, env: Env, writes: &mut u32) {
        *writes += 1;
        assert!(
            self.env[0].is_none_or(|old| env.gen_ != old.gen_) || self.env[1].is_none() || *writes > 1,
            "every write is a new generation"
        );
        self.env = [Some(env), Some(env)];
    }

    /// GRUB.
    fn boot(&mut self, picked: Option<Slot>) -> bool {
        self.boot += 1;
        if let Some(p) = picked {
            self.running = p;
            return false;
        }
        match (self.env[0], self.env[1]) {
            (Some(mut e), _) => match (e.trial(), e.left) {
                (Some(t), Some(n @ 1..=3)) => {
                    e.left = Some(n - 1);
                    self.env[0] = Some(e);
                    self.running = t;
                    true
                }
                _ => {
                    self.running = e.cur;
                    false
                }
            },
            (None, Some(e)) => {
                self.running = e.cur;
                false
            }
            (None, None) => {
                self.running = Slot::A;
                false
            }
        }
    }

    fn apply(&mut self, a: &Act, i: usize) {
        let op = format!("op{i}");
        let worker = self.node.running_op.clone().filter(|_| self.working);
        match a {
            Act::Stage(n) => self.event(stage(&op, *n)),
            Act::FirstWrite => {
                if worker.is_some_and(|r| r.kind == Kind::Stage) {
                    let t = self.running.other();
                    assert_ne!(
                        self.env[0].and_then(|e| e.trial()),
                        Some(t),
                        "disarmed before the first byte"
                    );
                    self.event(Event::FirstWrite);
                    self.whole[at(t)] = false;
                    self.proven[at(t)] = false;
                    self.wrote = true;
                }
            }
            Act::Installed => {
                if let Some(Then::Stage { digest: d }) = worker.map(|r| r.then)
                    && self.wrote
                {
                    let t = at(self.running.other());
                    self.whole[t] = true;
                    self.proven[t] = true;
                    self.event(installed(d.0[0]));
                    self.wrote = false;
                }
            }
            Act::ReadBack => {
                let t = at(self.running.other());
                if worker.is_some() && self.whole[t] && !self.wrote {
                    self.proven[t] = true;
                    self.event(Event::ReadBack);
                }
            }
            Act::Fail => {
                if worker.is_some() {
                    self.wrote = false;
                    self.event(Event::WorkFailed(AgentError::new(Code::FetchFailed, "x")));
                }
            }
            Act::Activate(n, reboot) => self.event(activate(&format!("a{n}"), *reboot)),
            Act::Commit => self.event(Event::Commit(CommitAsk {
                proof: Proof::Runs,
                op_id: op,
                asked_by: String::new(),
                digest: None,
                boot_id: String::new(),
            })),
            Act::Rollback(n, reboot) => self.event(Event::Rollback(RollbackAsk {
                op_id: format!("r{n}"),
                asked_by: String::new(),
                expect_boot_id: String::new(),
                reboot: *reboot,
            })),
            Act::Cancel => self.event(Event::Cancel(CancelAsk {
                op_id: op,
                asked_by: String::new(),
                expect_boot_id: String::new(),
                target_op_id: String::new(),
            })),
            Act::Healthy => self.event(Event::Healthy),
            Act::NotHealthy => self.event(Event::NotHealthy),
            Act::Bad => self.event(Event::Bad("hook".into())),
            Act::Obstructed => self.event(Event::Obstructed("hook".into())),
            Act::Deadline => self.event(Event::Deadline("late".into())),
            Act::Forget(n) => self.event(Event::Forget(digest(*n))),
            Act::AgentRestart => {
                let counted =
                    self.env[0].is_some_and(|e| e.trial() == Some(self.running)) && self.node.boot.counted;
                self.start(counted);
            }
            Act::Reboot {
                picked,
                reaches_agent,
            } => {
                let picked = picked.map(|b| if b { Slot::B } else { Slot::A });
                // A person does not pick a slot that cannot start.
                let picked = picked.filter(|s| self.whole[at(*s)]);
                let mut counted = self.boot(picked);
                assert!(self.whole[at(self.running)], "a half-written slot never boots");
                // A boot that does not reach the agent is followed by another.
                if !reaches_agent && counted {
                    counted = self.boot(None);
                }
                self.start(counted);
            }
            Act::LoseState => {
                self.saved = State::default();
                self.reboots.clear();
            }
            Act::DamageEnv(first) => self.env[usize::from(!first)] = None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_the_rules(acts in proptest::collection::vec(act(), 1..60)) {
        let mut w = World::new();
        for (i, a) in acts.iter().enumerate() {
            w.apply(a, i);
        }
    }
}
