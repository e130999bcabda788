use super::*;
use serde_json::json;

fn full() -> Value {
    json!({
        "schema": SCHEMA + 1, "min_reader": 1, "phase": "fell-back", "from_the_future": {"a": 1},
        "staged": {"slot": "B", "digest": "02".repeat(32), "image_sha256": "03".repeat(32), "version": "2", "colour": "red"},
        "armed": {"op_id": "x", "slot": "B", "boot_id": "b1", "new": [1],
                  "tries": [{"boot_id": "b2", "left": 2, "temperature": 40}]},
        "failed_digests": [{"digest": "01".repeat(32), "cause": "panic", "count": 1, "mood": "bad"}],
        "operations": [{"op_id": "x", "kind": "stage", "started_unix": 7, "weight": 3}],
        "last_failure": {"code": "FetchFailed", "extra": true}
    })
}

#[test]
fn a_newer_schema_that_we_may_read_keeps_its_unknown_keys_at_every_level() {
    let loaded = State::parse(Some(full().to_string().as_bytes()));
    assert!(!loaded.read_only && loaded.problem.is_none(), "{loaded:?}");
    assert_eq!(loaded.state.phase, Phase::FellBack);
    let again: Value = serde_json::from_slice(&loaded.state.to_json()).unwrap();
    assert_eq!(again["from_the_future"], json!({"a": 1}));
    assert_eq!(again["staged"]["colour"], "red");
    assert_eq!(again["armed"]["new"], json!([1]));
    assert_eq!(again["armed"]["tries"][0]["temperature"], 40);
    assert_eq!(again["failed_digests"][0]["mood"], "bad");
    assert_eq!(again["operations"][0]["weight"], 3);
    assert_eq!(again["last_failure"]["extra"], true);
    assert_eq!(again["schema"], SCHEMA + 1, "a newer schema number is kept");
}

#[test]
fn a_newer_min_reader_is_read_as_far_as_possible_and_never_written() {
    let mut v = full();
    v["min_reader"] = json!(SCHEMA + 1);
    v["phase"] = json!("a-phase-of-tomorrow");
    v["operations"] =
        json!([{"op_id": "ok", "kind": "stage", "started_unix": 1}, {"op_id": "odd", "kind": "teleport"}]);
    let loaded = State::parse(Some(v.to_string().as_bytes()));
    assert!(loaded.read_only);
    assert!(
        loaded
            .problem
            .unwrap()
            .contains(&format!("state version {}", SCHEMA + 1))
    );
    assert_eq!(loaded.state.phase, Phase::Idle);
    assert_eq!(loaded.state.operations.len(), 1);
    assert_eq!(loaded.state.failed_digests.len(), 1);
}

#[test]
fn a_missing_or_damaged_file_gives_an_empty_state() {
    assert_eq!(State::parse(None).problem, None);
    for text in ["", "{", "[]", "\0\0\0\0"] {
        let l = State::parse(Some(text.as_bytes()));
        assert!(
            !l.read_only && l.problem.is_some() && l.state == State::default(),
            "{text:?}"
        );
    }
}

#[test]
fn the_log_is_bounded() {
    let mut s = State::default();
    let v = full();
    let op: Operation = serde_json::from_value(v["operations"][0].clone()).unwrap();
    for i in 0..MAX_OPERATIONS + 20 {
        s.push_operation(Operation {
            op_id: i.to_string(),
            ..op.clone()
        });
    }
    assert_eq!(s.operations.len(), MAX_OPERATIONS);
    assert!(s.operation("19").is_none() && s.operation("20").is_some());
}
