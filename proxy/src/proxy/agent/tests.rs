use super::*;

fn reply(phase: v1::Phase, other: v1::SlotState) -> v1::StatusReply {
    let slot = |slot: v1::Slot, digest: &str, state: v1::SlotState, running: bool| v1::SlotStatus {
        slot: slot as i32,
        image_sha256: digest.into(),
        state: state as i32,
        running,
        ..Default::default()
    };
    v1::StatusReply {
        phase: phase as i32,
        running: v1::Slot::A as i32,
        slots: vec![
            slot(v1::Slot::A, "three", v1::SlotState::Committed, true),
            slot(v1::Slot::B, "two", other, false),
        ],
        ..Default::default()
    }
}

#[test]
fn the_previous_system_is_not_staged_until_the_agent_says_so() {
    let fact = |phase, other| AgentFact::from(&reply(phase, other)).report;
    let idle = fact(v1::Phase::Idle, v1::SlotState::Verified);
    assert!(!idle.has_staged("two") && idle.runs("three"));
    assert_eq!(
        (idle.previous_digest.as_str(), idle.staged_digest.as_str()),
        ("two", "")
    );
    for phase in [v1::Phase::Staged, v1::Phase::Armed] {
        let r = fact(phase, v1::SlotState::Verified);
        assert!(r.has_staged("two") && r.previous_digest == "two", "{phase:?}");
        assert!(!fact(phase, v1::SlotState::Dirty).has_staged("two"), "{phase:?}");
    }
    for phase in [
        v1::Phase::Staging,
        v1::Phase::Trial,
        v1::Phase::FellBack,
        v1::Phase::Foreign,
    ] {
        assert!(
            !fact(phase, v1::SlotState::Verified).has_staged("two"),
            "{phase:?}"
        );
    }
}
