use super::*;
use kube::{CustomResourceExt, Resource};

#[test]
fn kinds_and_plurals_are_those_of_kubeos() {
    assert_eq!((OS::kind(&()).as_ref(), OS::plural(&()).as_ref()), ("OS", "os"));
    assert_eq!(OSInstance::plural(&()), "osinstances");
    assert_eq!(
        OS::crd().spec.names.list_kind.as_deref().unwrap_or("OSList"),
        "OSList"
    );
    assert_eq!(OSInstance::api_version(&()), "upgrade.openeuler.org/v1alpha1");
}

#[test]
fn label_values() {
    assert!(is_label_value("node-1.example"));
    assert!(is_label_value(""));
    assert!(!is_label_value(&"n".repeat(64)));
    assert!(!is_label_value("-n"));
    assert!(!is_label_value("a+b"));
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let t = |s| jiff::Timestamp::from_second(s).unwrap();
    let mut list = Vec::new();
    assert!(set_condition(&mut list, "Accepted", true, "Valid", "", 1, t(1)));
    assert!(!set_condition(
        &mut list,
        "Accepted",
        true,
        "Valid",
        "more",
        2,
        t(2)
    ));
    assert_eq!(
        (list[0].last_transition_time.0, list[0].observed_generation),
        (t(1), Some(2))
    );
    assert!(set_condition(
        &mut list,
        "Accepted",
        false,
        "InvalidSpec",
        "",
        2,
        t(3)
    ));
    assert_eq!(list[0].last_transition_time.0, t(3));
}

#[test]
fn odd_objects_still_decode() {
    let os: OS = serde_json::from_value(serde_json::json!({
        "apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OS", "metadata": {"name": "x"},
        "spec": {"opstype": "explode", "maxunavailable": "250%", "unknown": 1}
    }))
    .unwrap();
    assert_eq!(os.spec.opstype, "explode");
    assert_eq!(os.spec.maxunavailable, Some(IntOrString::String("250%".into())));
}
