use super::*;

fn step(name: &str) -> StepEntry {
    StepEntry {
        name: name.into(),
        source: "system".into(),
        sha256: "0".repeat(64),
        bytes: 1,
        attributes: Attributes::default(),
    }
}

fn manifest(names: &[&str]) -> Manifest {
    Manifest {
        schema: SCHEMA,
        renderer: Renderer::default(),
        node_group: String::new(),
        created_at: String::new(),
        content_hash: String::new(),
        inputs_hash: String::new(),
        epoch: String::new(),
        external_checksum: String::new(),
        lib_sha256: "1".repeat(64),
        steps: names.iter().map(|n| step(n)).collect(),
    }
}

#[test]
fn attributes_come_from_the_head_of_a_step() {
    let text = "#!/bin/bash\n# agent: timeoutSec=30 retries=2\n# agent: on-failure=continue phase=late mayDisrupt=true\n# bashible: parallel-group=net\n:\n";
    let a = Attributes::from_step("x", text).unwrap();
    assert_eq!((a.timeout_sec, a.retries, a.may_disrupt), (30, 2, true));
    assert_eq!((a.on_failure, a.phase), (OnFailure::Continue, Phase::Late));
    assert_eq!(a.parallel_group.as_deref(), Some("net"));
    let below = "\n".repeat(HEADER_LINES) + "# agent: retries=nonsense\n";
    assert_eq!(Attributes::from_step("x", &below).unwrap(), Attributes::default());
}

#[test]
fn a_wrong_attribute_names_step_line_and_key() {
    for (text, part) in [
        ("# agent: retrys=1", "retrys"),
        ("# agent: retries=0", "1 to 1000"),
        ("# agent: timeoutSec=x", "expected a number"),
        ("# agent: phase=early", "pre-approval, main or late"),
        ("# agent: loud", "key=value"),
    ] {
        let e = Attributes::from_step("010_x.sh", text).unwrap_err().to_string();
        assert!(e.contains("010_x.sh, line 1") && e.contains(part), "{e}");
    }
}

#[test]
fn unsafe_names_double_names_and_disorder_are_refused() {
    for name in ["../x", "a/b", "/etc/x", "", ".hidden", "a b", "a\nb", "ü"] {
        let e = manifest(&[name]).check().unwrap_err().to_string();
        assert!(e.contains("not a safe step name"), "{name:?}: {e}");
    }
    let e = manifest(&["a", "a"]).check().unwrap_err().to_string();
    assert!(e.contains("two steps are named \"a\""), "{e}");
    assert!(manifest(&["b", "a"]).check().is_err());
    assert!(manifest(&[]).check().is_err());
    manifest(&["000_a.sh", "001_b.sh"]).check().unwrap();
}

#[test]
fn a_mixed_or_unknown_schema_is_refused() {
    let e = Manifest::parse(br#"{"schema": 2, "steps": "something else"}"#).unwrap_err();
    assert!(e.to_string().contains("schema 2: expected 1"), "{e}");
    let odd = br#"{"schema":1,"steps":[{"name":"a","sha256":"","bytes":0,"attributes":{"retires":3}}]}"#;
    assert!(Manifest::parse(odd).unwrap_err().to_string().contains("retires"));
}

#[test]
fn epoch_inputs_and_external_checksum_do_not_change_what_is_hashed() {
    let a = manifest(&["a", "b"]);
    let mut b = a.clone();
    b.epoch = "7".into();
    b.inputs_hash = "x".into();
    b.external_checksum = "y".into();
    b.created_at = "2026-01-01T00:00:00Z".into();
    assert_eq!(a.canonical(), b.canonical());
    b.steps[1].attributes.retries = 3;
    assert_ne!(a.canonical(), b.canonical());
    let text = String::from_utf8(a.canonical()).unwrap();
    assert!(
        text.starts_with(r#"{"lib":"1111"#) && !text.contains(' '),
        "{text}"
    );
}

#[test]
fn what_sorts_before_the_approval_step_is_pre_approval() {
    let mut m = manifest(&["000_users.sh", "001_waiting_approval_annotations.sh", "002_x.sh"]);
    m.mark_pre_approval();
    let phases: Vec<Phase> = m.steps.iter().map(|s| s.attributes.phase).collect();
    assert_eq!(phases, [Phase::PreApproval, Phase::Main, Phase::Main]);
    let mut plain = manifest(&["000_users.sh", "002_x.sh"]);
    plain.mark_pre_approval();
    assert_eq!(plain.steps[0].attributes.phase, Phase::Main);
}
