//! Every public fault report on the list, and every known roll-out fault of KubeOS, has a test that carries its number.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;

fn sources(dir: &Path, text: &mut String) {
    for e in std::fs::read_dir(dir).unwrap() {
        let path = e.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|x| x == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Numbers that stand behind `prefix` in names of functions; `kf_r9_r10_…` names two.
fn numbers(text: &str, prefix: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for name in text
        .split("fn ")
        .skip(1)
        .filter_map(|t| t.split(['(', '<']).next())
    {
        let mut rest = name;
        while let Some((_, after)) = rest.split_once(prefix) {
            rest = after;
            loop {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                found.extend(digits.parse::<u32>());
                rest = &rest[digits.len()..];
                match rest
                    .strip_prefix("_r")
                    .filter(|r| r.starts_with(|c: char| c.is_ascii_digit()))
                {
                    Some(more) => rest = more,
                    None => break,
                }
            }
        }
    }
    found
}

#[test]
fn every_report_and_every_roll_out_fault_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src"), &mut text);
    sources(&root.join("../tests/tests"), &mut text);
    let missing =
        |found: BTreeSet<u32>, last: u32| -> Vec<u32> { (1..=last).filter(|n| !found.contains(n)).collect() };
    assert_eq!(
        missing(numbers(&text, "report_"), 30),
        Vec::<u32>::new(),
        "reports without a test"
    );
    assert_eq!(
        missing(numbers(&text, "kf_r"), 17),
        Vec::<u32>::new(),
        "faults without a test"
    );
}

#[test]
fn names_are_read_as_they_are_meant() {
    let text = "fn report_03_x() {} async fn report_28(b: &B) fn report_16_kf_r14_y() fn kf_r9_r10_z() fn other_report()";
    assert_eq!(
        numbers(text, "report_").into_iter().collect::<Vec<_>>(),
        [3, 16, 28]
    );
    assert_eq!(numbers(text, "kf_r").into_iter().collect::<Vec<_>>(), [9, 10, 14]);
}
