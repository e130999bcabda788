use super::*;
use proptest::prelude::*;

fn file(name: &str, text: &str) -> PstoreFile {
    PstoreFile {
        name: name.into(),
        dir: "/sys/fs/pstore".into(),
        text: text.into(),
        at_unix: 1_670_000_000,
    }
}

/// Two parts as efi-pstore leaves them, in the wrong order, beside an oops that was survived.
fn efi() -> Vec<PstoreFile> {
    vec![
        file(
            "dmesg-efi_pstore-167000000001001",
            "Panic#1 Part1\n<0>[    2.1] Kernel panic - not syncing: sysrq triggered crash\n<4>[    2.2] CPU: 0 PID: 1\n",
        ),
        file(
            "dmesg-efi_pstore-167000000002001",
            "Panic#1 Part2\n<6>[    1.0] first\n<6>[    2.0] sysrq: Trigger a crash",
        ),
        file(
            "dmesg-efi_pstore-166000000001001",
            "Oops#1 Part1\n<6>[    9.0] BUG: survived\n",
        ),
        file(
            "console-ramoops-0",
            "Kernel panic - not syncing: not a dmesg record",
        ),
    ]
}

#[test]
fn parts_become_one_log_and_its_last_lines() {
    let r = records(efi());
    assert_eq!(r.len(), 1, "{r:?}");
    assert_eq!(r[0].files.len(), 2);
    assert!(
        r[0].log
            .starts_with("<6>[    1.0] first\n<6>[    2.0] sysrq: Trigger a crash\n<0>"),
        "{}",
        r[0].log
    );
    let p = Panic::of_log(&r[0].log, r[0].at_unix).unwrap();
    assert_eq!(p.reason, "Kernel panic - not syncing: sysrq triggered crash");
    assert_eq!(p.lines.len(), 4);
    assert_eq!(p.lines[0], "[    1.0] first");
    assert_eq!(Panic::of_log("<6>[ 1.0] all is well\n", 0), None);
}

#[test]
fn a_record_that_was_moved_away_is_the_same_record() {
    let here = records(efi());
    let moved = efi()
        .into_iter()
        .map(|f| PstoreFile {
            dir: "/var/lib/systemd/pstore/1670000000/001".into(),
            at_unix: 1_670_000_900,
            ..f
        })
        // systemd joins them as well; the parts are enough.
        .chain([PstoreFile {
            dir: "/var/lib/systemd/pstore/1670000000/001".into(),
            ..file("dmesg.txt", "Kernel panic")
        }])
        .collect();
    assert_eq!(here[0].id, records(moved)[0].id);
}

#[test]
fn two_panics_are_two_records_and_ramoops_reuses_names() {
    let mut files = efi();
    files.push(file(
        "dmesg-efi_pstore-167000010001001",
        "Panic#1 Part1\n<0>[ 7.0] Kernel panic - not syncing: second\n",
    ));
    assert_eq!(records(files).len(), 2);
    let a = records(vec![file(
        "dmesg-ramoops-0",
        "Panic#1 Part1\nKernel panic - not syncing: a\n",
    )]);
    let b = records(vec![file(
        "dmesg-ramoops-0",
        "Panic#1 Part1\nKernel panic - not syncing: b\n",
    )]);
    assert_ne!(a[0].id, b[0].id);
}

#[test]
fn only_a_little_of_a_long_log_is_kept() {
    let long: String = (0..100)
        .map(|i| format!("<6>[ {i}.0] line {i} {}\n", "x".repeat(400)))
        .collect();
    let log = format!(
        "{long}<0>[100.0] Kernel panic - not syncing: here\n{long}<0>---[ end Kernel panic - not syncing: here\n"
    );
    let p = Panic::of_log(&log, 0).unwrap();
    assert_eq!(p.lines.len(), BEFORE + 1 + AFTER);
    assert!(p.lines.iter().all(|l| l.chars().count() <= WIDTH));
    assert!(p.lines[BEFORE].contains("Kernel panic"));
}

#[test]
fn a_record_of_last_year_is_not_of_this_trial() {
    let p = |at_unix| Panic {
        at_unix,
        ..Panic::default()
    };
    let armed = 1_800_000_000;
    assert!(p(armed + 60).may_follow(armed) && p(armed - 14 * 3600).may_follow(armed));
    assert!(!p(armed - 30 * 86_400).may_follow(armed));
    assert!(p(0).may_follow(armed) && p(5).may_follow(0));
}

#[test]
fn signs_are_read_in_order_and_rubbish_is_skipped() {
    let s =
        signs("b1 4.52 initramfs\n\0\0garbage\nb1 60 deadline\nb2 4 initramfs\nb2 9 dance\nb2 x initramfs\n");
    let seen: Vec<(&str, u64, Mark)> = s.iter().map(|s| (s.boot_id.as_str(), s.secs, s.mark)).collect();
    assert_eq!(
        seen,
        [
            ("b1", 4, Mark::Initramfs),
            ("b1", 60, Mark::Deadline),
            ("b2", 4, Mark::Initramfs)
        ]
    );
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(name in "dmesg-[a-z_]{0,9}-[0-9]{0,25}", text in "\\PC{0,300}", part in any::<u32>()) {
        let _ = Panic::of_log(&text, 1);
        let _ = signs(&text);
        let _ = records(vec![file(&name, &text), file(&name, &format!("Panic#1 Part{part}\n{text}"))]);
    }

    #[test]
    fn any_order_of_parts_gives_the_same_log(order in Just((1u32..9).collect::<Vec<_>>()).prop_shuffle()) {
        let files = order
            .iter()
            .map(|p| file(&format!("dmesg-efi-1670000000{p:02}001"), &format!("Panic#1 Part{p}\nline {p}\n")))
            .collect();
        let r = records(files);
        prop_assert_eq!(r.len(), 1);
        let want: String = (1..9).rev().map(|p| format!("line {p}\n")).collect();
        prop_assert_eq!(&r[0].log, &want);
    }
}
