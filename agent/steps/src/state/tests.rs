use super::journal::{Line, What, replay};
use super::*;

fn dir() -> (tempfile::TempDir, camino::Utf8PathBuf) {
    let t = tempfile::tempdir().unwrap();
    let p = Utf8Path::from_path(t.path()).unwrap().to_owned();
    (t, p)
}

#[test]
fn unknown_keys_survive_and_newer_formats_are_left_alone() {
    let (_t, d) = dir();
    let text = br#"{"schema":1,"min_reader":1,"failures":3,"later":{"x":1}}"#;
    std::fs::write(d.join("state.json"), text).unwrap();
    let s = State::load(&d).unwrap();
    assert_eq!(s.failures, 3);
    s.save(&d).unwrap();
    let again: serde_json::Value =
        serde_json::from_slice(&std::fs::read(d.join("state.json")).unwrap()).unwrap();
    assert_eq!(again["later"]["x"], 1);
    std::fs::write(d.join("state.json"), br#"{"schema":9,"min_reader":9}"#).unwrap();
    assert_eq!(State::load(&d).unwrap_err().code, Code::StateTooNew);
}

/// Fault 8: an empty or cut file after a power loss.
#[test]
fn fault_08_a_cut_state_at_every_length_never_stops_the_node() {
    let (_t, d) = dir();
    let s = State {
        bundle: "abc".into(),
        ..State::default()
    };
    s.save(&d).unwrap();
    let whole = std::fs::read(d.join("state.json")).unwrap();
    for n in 0..whole.len() {
        std::fs::write(d.join("state.json"), &whole[..n]).unwrap();
        let got = State::load(&d).unwrap();
        assert!(got.bundle.is_empty() || got == s, "cut at {n}");
    }
}

fn line(step: &str, attempt: u32, what: What) -> Line {
    Line {
        step: step.into(),
        sha256: "h".into(),
        attempt,
        what,
        changed: false,
        took_ms: 0,
        how: String::new(),
        at_unix: 0,
    }
}

#[test]
fn a_journal_replays_and_a_torn_line_is_ignored() {
    let mut text = String::new();
    for l in [
        line("a", 1, What::Begin),
        line("a", 1, What::Failed),
        line("a", 2, What::Begin),
        line("a", 2, What::Done),
        line("b", 1, What::Begin),
    ] {
        text += &serde_json::to_string(&l).unwrap();
        text.push('\n');
    }
    text += r#"{"step":"b","sha2"#;
    let p = replay(&text);
    assert!(p["a"].done && p["a"].failures == 1 && p["a"].begun == 2 && p["a"].interrupted == 0);
    assert!(!p["b"].done && p["b"].interrupted == 1 && p["b"].begun == 1);
    // A step that was given up says after how many deaths of the runner.
    let mut last = line("b", 1, What::Failed);
    last.how = super::journal::KILLED.into();
    let given_up = format!(
        "{}\n{}\n",
        text.trim_end_matches(r#"{"step":"b","sha2"#),
        serde_json::to_string(&last).unwrap()
    );
    let b = &replay(&given_up)["b"];
    assert_eq!((b.interrupted, b.gave_up, b.deaths()), (0, 1, 1));
}

#[test]
fn waiting_does_not_use_up_an_attempt_and_new_content_starts_anew() {
    let mut text = String::new();
    let mut changed = line("a", 1, What::Begin);
    changed.sha256 = "other".into();
    for l in [
        line("a", 1, What::Begin),
        line("a", 1, What::Waits),
        line("a", 1, What::Begin),
        line("a", 1, What::Done),
        changed,
    ] {
        text += &serde_json::to_string(&l).unwrap();
        text.push('\n');
    }
    let p = replay(&text);
    assert!(!p["a"].done && p["a"].failures == 0 && p["a"].sha256 == "other");
}
