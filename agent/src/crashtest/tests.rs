use super::*;

#[test]
fn t27_no_power_cut_of_an_update_leaves_a_node_that_does_not_boot() {
    let r = run(
        Plan {
            quick: true,
            sabotage: None,
        },
        |_| {},
    )
    .unwrap();
    println!("{}", r.text());
    assert_eq!(r.total().bad, 0, "{:#?}", r.violations);
    for name in [
        "full update",
        "resumed after the agent was killed",
        "resumed after a power cut",
        "bad image, falls back",
    ] {
        let row = r.rows.iter().find(|x| x.name == name).unwrap();
        assert!(row.points() > 1000 && row.rerun >= 40, "{row:?}");
    }
}

fn found(sabotage: Sabotage) -> Report {
    let r = run(
        Plan {
            quick: true,
            sabotage: Some(sabotage),
        },
        |_| {},
    )
    .unwrap();
    assert!(
        r.total().bad > 0 && r.text().contains("was found"),
        "{}",
        r.text()
    );
    r
}

#[test]
fn a_slot_that_is_not_flushed_is_found() {
    let r = found(Sabotage::NoFlush);
    assert!(r.violations.iter().any(|v| v.why.contains("slot B starts")));
}

#[test]
fn arming_before_verifying_is_found() {
    let r = found(Sabotage::ArmBeforeVerify);
    assert!(r.violations.iter().any(|v| v.why.contains("slot B starts")));
}

#[test]
fn arming_the_second_copy_only_is_found() {
    found(Sabotage::ArmEnv2Only);
}

#[test]
fn a_read_back_that_reads_nothing_back_is_found() {
    let r = found(Sabotage::SkipReadback);
    assert!(r.violations.iter().any(|v| v.why.contains("slot B starts")));
}

#[test]
fn samples_show_every_decision_and_are_the_same_each_time() {
    let a = samples(50).unwrap();
    assert_eq!(a.len(), 50);
    let lines: std::collections::BTreeSet<String> = a.iter().map(|s| s.wanted.line.to_string()).collect();
    assert!(lines.len() >= 5, "{lines:#?}");
}
