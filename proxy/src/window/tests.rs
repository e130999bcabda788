use super::*;

fn t(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn w(days: &[&str], start: &str, end: &str, zone: &str) -> WindowSpec {
    WindowSpec {
        days: days.iter().map(|d| (*d).to_owned()).collect(),
        start: start.into(),
        end: end.into(),
        timezone: Some(zone.into()),
    }
}

fn schedule(windows: &[WindowSpec], exclusions: &[(&str, &str)]) -> Result<Schedule, WindowError> {
    let exclusions: Vec<_> = exclusions
        .iter()
        .map(|(a, b)| ExclusionSpec {
            from: (*a).into(),
            to: (*b).into(),
        })
        .collect();
    Schedule::parse(windows, &exclusions, None, &TimeZone::UTC)
}

fn legacy(start: &str, end: &str, zone: &str) -> Result<Schedule, WindowError> {
    let w = TimeWindow {
        starttime: start.into(),
        endtime: end.into(),
    };
    Schedule::parse(&[], &[], Some(&w), &super::zone(zone).unwrap())
}

#[test]
fn agrees_with_python_zoneinfo_in_300_cases() {
    let mut n = 0;
    for line in include_str!("cases.tsv").lines() {
        let c: Vec<&str> = line.split('\t').collect();
        let days: Vec<&str> = c[1].split(',').filter(|d| !d.is_empty()).collect();
        let s = schedule(&[w(&days, c[2], c[3], c[0])], &[]).unwrap();
        let at = Timestamp::from_second(c[4].parse().unwrap()).unwrap();
        assert_eq!(s.at(at).is_open(), c[5] == "1", "{line}");
        n += 1;
    }
    assert_eq!(n, 300);
}

/// Walks a schedule second by second (coarsely) and checks that `closes` and `opens` are the true edges.
#[test]
fn closes_and_opens_are_the_edges() {
    for line in include_str!("cases.tsv").lines().step_by(3) {
        let c: Vec<&str> = line.split('\t').collect();
        let days: Vec<&str> = c[1].split(',').filter(|d| !d.is_empty()).collect();
        let s = schedule(&[w(&days, c[2], c[3], c[0])], &[]).unwrap();
        let at = Timestamp::from_second(c[4].parse().unwrap()).unwrap();
        let edge = match s.at(at) {
            WindowState::Open { closes } => closes,
            WindowState::Shut { opens } => opens,
        };
        let Some(edge) = edge else { continue };
        let before = edge - SignedDuration::from_nanos(1);
        assert_eq!(
            s.at(before).is_open(),
            s.at(at).is_open(),
            "{line}: before {edge}"
        );
        assert_ne!(s.at(edge).is_open(), s.at(at).is_open(), "{line}: at {edge}");
        let mut probe = at;
        while probe < edge {
            assert_eq!(
                s.at(probe).is_open(),
                s.at(at).is_open(),
                "{line}: {probe} before {edge}"
            );
            probe += SignedDuration::from_mins(61);
        }
    }
}

#[test]
fn without_windows_it_is_open_until_an_exclusion() {
    let none = schedule(&[], &[]).unwrap();
    assert_eq!(
        none.at(t("2026-01-01T00:00:00Z")),
        WindowState::Open { closes: None }
    );
    let x = schedule(&[], &[("2026-12-24T00:00:00Z", "2026-12-27T00:00:00+01:00")]).unwrap();
    assert_eq!(
        x.at(t("2026-12-01T00:00:00Z")).closes(),
        Some(t("2026-12-24T00:00:00Z"))
    );
    assert_eq!(
        x.at(t("2026-12-24T00:00:00Z")),
        WindowState::Shut {
            opens: Some(t("2026-12-26T23:00:00Z"))
        }
    );
    assert!(x.at(t("2026-12-26T23:00:00Z")).is_open());
}

/// https://github.com/kubereboot/kured/issues/204
#[test]
fn report_11_a_saturday_window_over_midnight_is_open_on_sunday_at_one() {
    let s = schedule(&[w(&["Sat"], "22:00", "02:00", "UTC")], &[]).unwrap();
    assert!(
        s.at(t("2026-08-02T01:00:00Z")).is_open(),
        "Sunday 01:00 belongs to Saturday's window"
    );
    assert!(
        !s.at(t("2026-08-01T01:00:00Z")).is_open(),
        "Saturday 01:00 would belong to Friday's"
    );
    assert_eq!(
        s.at(t("2026-08-02T01:00:00Z")).closes(),
        Some(t("2026-08-02T02:00:00Z"))
    );
    assert_eq!(
        s.at(t("2026-08-02T02:00:00Z")),
        WindowState::Shut {
            opens: Some(t("2026-08-08T22:00:00Z"))
        }
    );
}

#[test]
fn windows_that_touch_are_one() {
    let s = schedule(
        &[w(&[], "20:00", "24:00", "UTC"), w(&[], "00:00", "03:00", "UTC")],
        &[],
    )
    .unwrap();
    assert_eq!(
        s.at(t("2026-08-01T23:00:00Z")).closes(),
        Some(t("2026-08-02T03:00:00Z"))
    );
    let whole = schedule(&[w(&[], "00:00", "24:00", "UTC")], &[]).unwrap();
    assert_eq!(
        whole.at(t("2026-08-01T23:00:00Z")),
        WindowState::Open { closes: None }
    );
}

#[test]
fn kubeos_bounds_are_exclusive_and_cross_midnight_only_without_a_date() {
    let s = legacy("23:30:00", "04:15:00", "UTC").unwrap();
    assert!(!s.at(t("2026-08-01T23:30:00Z")).is_open());
    assert!(s.at(t("2026-08-01T23:30:01Z")).is_open());
    assert!(s.at(t("2026-08-02T04:14:59Z")).is_open());
    assert!(!s.at(t("2026-08-02T04:15:00Z")).is_open());
    let once = legacy("2026-08-01 10:00:00", "2026-08-01 11:00:00", "Asia/Shanghai").unwrap();
    assert!(!once.at(t("2026-08-01T02:00:00Z")).is_open());
    assert!(once.at(t("2026-08-01T02:00:01Z")).is_open());
    assert_eq!(
        once.at(t("2026-08-01T02:30:00Z")).closes(),
        Some(t("2026-08-01T03:00:00Z"))
    );
    assert_eq!(
        once.at(t("2026-08-01T03:00:00Z")),
        WindowState::Shut { opens: None }
    );
    assert!(legacy("2026-08-02 10:00:00", "2026-08-01 11:00:00", "UTC").is_err());
}

#[test]
fn bad_windows_are_refused_with_the_field_and_what_to_write() {
    let cases = [
        (
            schedule(&[w(&[], "10:00", "10:00", "UTC")], &[]),
            "windows[0]",
            "00:00 to 24:00",
        ),
        (
            schedule(&[w(&[], "1000", "11:00", "UTC")], &[]),
            "windows[0].start",
            "HH:MM",
        ),
        (
            schedule(&[w(&[], "24:00", "11:00", "UTC")], &[]),
            "windows[0].start",
            "23:59",
        ),
        (
            schedule(&[w(&[], "10:00", "25:00", "UTC")], &[]),
            "windows[0].end",
            "24:00",
        ),
        (
            schedule(&[w(&["Caturday"], "10:00", "11:00", "UTC")], &[]),
            "windows[0].days",
            "Sat",
        ),
        (
            schedule(&[w(&[], "10:00", "11:00", "Europe/Berln")], &[]),
            "windows[0].timezone",
            "Europe/Berlin",
        ),
        (
            schedule(&[], &[("2026-12-24", "2026-12-27T00:00:00Z")]),
            "exclusions[0].from",
            "RFC 3339",
        ),
        (
            schedule(&[], &[("2026-12-28T00:00:00Z", "2026-12-27T00:00:00Z")]),
            "exclusions[0]",
            "not after",
        ),
        (legacy("10:00:00", "10:00:00", "UTC"), "timewindow", "never opens"),
        (
            legacy("10:00:00", "2026-01-01 11:00:00", "UTC"),
            "timewindow",
            "same form",
        ),
        (
            legacy("10:00", "11:00:00", "UTC"),
            "timewindow.starttime",
            "HH:MM:SS",
        ),
        (
            legacy("10:00:00", "11:00:60", "UTC"),
            "timewindow.endtime",
            "HH:MM:SS",
        ),
        (
            Schedule::parse(
                &[w(&[], "10:00", "11:00", "UTC")],
                &[],
                Some(&TimeWindow::default()),
                &TimeZone::UTC,
            ),
            "timewindow",
            "beside windows",
        ),
    ];
    for (result, field, hint) in cases {
        let e = result.expect_err(field);
        assert_eq!(e.field, field, "{e}");
        assert!(e.to_string().contains(hint), "{e}");
    }
}
