//! The durable state over restarts, reboots and versions: files of the format before and after ours, and the log of
//! operations.
#![allow(clippy::disallowed_methods)]

use crate::state::{SCHEMA, State};
use crate::testing::{Node, image, sha256};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use os_proto::record::{Content, SlotRecord};
use os_proto::v1::{self, Phase};
use serde_json::Value;

const BEFORE: &[u8] = include_bytes!("../state/fixtures/state-1.json");
const AFTER: &[u8] = include_bytes!("../state/fixtures/state-3.json");
/// Its writer says that only its own kind may write it.
const AFTER_CLOSED: &[u8] = include_bytes!("../state/fixtures/state-3-closed.json");

/// A node with this state file, version 1 in slot A and a verified version 2 in slot B.
fn node(state: &[u8]) -> Node {
    let mut n = Node::new();
    n.stop();
    {
        let data = image("2");
        let mut m = n.disk.medium();
        m.slots[1][..data.len()].copy_from_slice(&data);
        let a = SlotRecord::parse(m.records[0].as_deref().unwrap())
            .unwrap()
            .unwrap();
        let b = SlotRecord {
            version: "2".into(),
            os_image: "Slipway 2".into(),
            image_sha256: sha256(&data),
            payload_digests: vec![sha256(&data)],
            content: Content::Verified,
            ..a
        };
        m.records[1] = Some(b.to_json());
        m.state = Some(state.to_vec());
    }
    n.boot();
    n
}

fn roll_back(n: &mut Node) {
    let r = v1::RollbackRequest {
        reboot: true,
        ..Default::default()
    };
    n.engine().rollback(&r, "test").unwrap();
    n.reboot_when_asked();
    assert_eq!(n.disk.running(), Slot::B);
    n.until("a commit", |n| n.disk.env().cur == Slot::B);
}

fn stored(n: &Node) -> Value {
    serde_json::from_slice(n.disk.medium().state.as_deref().unwrap()).unwrap()
}

#[test]
fn a_state_of_the_format_before_ours_is_read_reported_and_rolled_back_on() {
    let mut n = node(BEFORE);
    let s = n.status();
    assert!(s.problems.is_empty() && !s.read_only_state, "{s:#?}");
    assert_eq!(s.failed_digests[0].version, "1.9");
    assert_eq!(s.last_failure.unwrap().tries, 3);
    assert_eq!(n.engine().history(0).operations.len(), 2);
    roll_back(&mut n);
    let v = stored(&n);
    assert_eq!(v["schema"], SCHEMA, "rewritten in our format");
    assert_eq!(v["operations"][0]["op_id"], "old-stage");
    assert!(v["counted_unix"].as_i64().unwrap() > 0);
}

#[test]
fn a_state_of_the_format_after_ours_is_read_reported_and_rolled_back_on_and_keeps_what_we_do_not_know() {
    let mut n = node(AFTER);
    let s = n.status();
    assert!(s.problems.is_empty() && !s.read_only_state, "{s:#?}");
    assert_eq!(n.engine().history(0).operations.len(), 2);
    roll_back(&mut n);
    let v = stored(&n);
    assert_eq!(v["schema"], 3);
    assert_eq!(v["third_slot"]["letter"], "C");
    assert_eq!(v["failed_digests"][0]["mood"], "bad");
    assert_eq!(v["operations"][0]["weight"], 3);
    assert_eq!(v["operations"][0]["result"]["pages"], 64);
}

#[test]
fn a_state_that_only_a_newer_agent_may_write_is_read_reported_rolled_back_on_and_left_alone() {
    let mut n = node(AFTER_CLOSED);
    let s = n.status();
    assert!(s.read_only_state);
    assert!(
        s.problems.iter().any(|p| p.code == Code::StateTooNew.as_str()),
        "{:#?}",
        s.problems
    );
    assert_eq!(s.phase(), Phase::Idle);
    assert_eq!(s.failed_digests.len(), 1, "what can be understood is shown");
    assert_eq!(n.engine().history(0).operations.len(), 2);
    let r = n.stage_request("3", "");
    assert_eq!(n.stage(&r).unwrap_err().code, Code::StateTooNew);
    roll_back(&mut n);
    assert_eq!(n.disk.medium().state.as_deref(), Some(AFTER_CLOSED));
}

#[test]
fn an_operation_is_done_once_whatever_restarts_in_between() {
    let mut n = Node::new();
    let r = n.stage_request("2", "stage-1");
    let first = n.stage(&r).unwrap();
    let fetched = n.source.opened();
    n.restart();
    assert_eq!(n.stage(&r).unwrap(), first, "the stored answer, after a restart");
    n.activate("activate-1", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    // After the reboot too: the same ids, answered again, and nothing happens.
    assert_eq!(n.stage(&r).unwrap(), first);
    n.activate("activate-1", true).unwrap();
    n.boot();
    n.activate("activate-1", true).unwrap();
    assert_eq!(n.source.opened(), fetched);
    assert_eq!(n.host.set().reboots, 0, "one reboot for one operation id");
    assert_eq!(n.disk.env().try_slot, None);
    assert_eq!(n.phase(), Phase::Idle);
    let log = n.engine().history(0).operations;
    assert_eq!(log.len(), 2, "{log:#?}");
}

#[test]
fn an_activate_whose_arming_the_power_cut_is_finished_by_the_same_request() {
    let mut n = Node::new();
    let r = n.stage_request("2", "s");
    n.stage(&r).unwrap();
    let before = n.disk.medium().env.clone();
    n.activate("a", true).unwrap();
    n.stop();
    // The state was durable, the environment was not.
    n.disk.medium().env = before;
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
    assert_eq!(n.phase(), Phase::Staged);
    let log = n.engine().history(0).operations;
    assert_eq!((log[0].kind.as_str(), log[0].finished_unix), ("activate", 0));
    n.stage(&r).unwrap();
    n.activate("a", true).unwrap();
    n.reboot_when_asked();
    n.committed();
    assert_eq!(n.disk.running(), Slot::B);
}

#[test]
fn what_was_armed_and_taken_back_is_not_armed_again_by_its_old_request() {
    let mut n = Node::new();
    let r = n.stage_request("2", "s");
    n.stage(&r).unwrap();
    n.activate("a", true).unwrap();
    let armed = n.disk.medium().state.clone();
    n.engine().cancel(&v1::CancelRequest::default(), "t").unwrap();
    n.stop();
    // The power failed between the disarm and the state.
    n.disk.medium().state = armed;
    n.boot();
    assert_eq!(n.disk.running(), Slot::A);
    n.activate("a", true).unwrap();
    assert_eq!(n.host.set().reboots, 0);
    assert_eq!(n.disk.env().try_slot, None);
}

#[test]
fn the_state_of_this_version_reads_back_as_it_was() {
    let n = Node::new();
    let r = n.stage_request("2", "s");
    n.stage(&r).unwrap();
    n.activate("a", false).unwrap();
    let text = n.disk.medium().state.clone().unwrap();
    let loaded = State::parse(Some(&text));
    assert!(loaded.problem.is_none());
    assert_eq!(loaded.state.to_json(), text);
    assert_ne!(loaded.state.armed.unwrap().gen_, 0);
}
