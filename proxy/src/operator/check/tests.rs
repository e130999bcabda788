use serde_json::json;

use super::duration::seconds;
use super::*;

fn spec(v: serde_json::Value) -> OsSpec {
    serde_json::from_value(v).unwrap()
}

fn base() -> serde_json::Value {
    json!({
        "osversion": "KubeOS 2", "opstype": "upgrade", "imagetype": "disk", "imageurl": "https://h/x", "maxunavailable": 1,
        "checksum": "ab".repeat(32),
    })
}

fn with(change: serde_json::Value) -> OsSpec {
    let mut v = base();
    for (k, x) in change.as_object().unwrap() {
        v[k] = x.clone();
    }
    spec(v)
}

fn fields(s: &OsSpec) -> Vec<String> {
    check(s, &Settings::default())
        .err()
        .unwrap_or_default()
        .into_iter()
        .map(|p| p.field)
        .collect()
}

/// The YAML samples that KubeOS users have, the sloppy ones too: `(file, accepted)`.
#[test]
fn kubeos_samples_are_accepted_or_refused_as_listed() {
    let listed = [
        ("ten-keys.yaml", ""),
        ("pool-blue.yaml", ""),
        ("containerd.yaml", ""),
        ("docker-old-spelling.yaml", ""),
        ("config.yaml", ""),
        ("rollback.yaml", ""),
        ("upper-case-checksum.yaml", ""),
        ("http-without-flagsafe.yaml", "imageurl"),
        ("tag-and-digest.yaml", "containerimage"),
        ("equal-window.yaml", "timewindow"),
        ("no-checksum.yaml", "checksum"),
    ];
    for (file, field) in listed {
        let path = format!("{}/samples/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let os: crate::api::OS = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let result = check(&os.spec, &Settings::default());
        match (field, &result) {
            ("", Ok(_)) => {}
            ("", Err(p)) => panic!("{file}: {p:?}"),
            (f, Err(p)) => assert!(p.iter().any(|p| p.field == f), "{file}: {p:?}"),
            (f, Ok(_)) => panic!("{file}: {f} should have been refused"),
        }
    }
}

#[test]
fn checksums_in_any_case_with_or_without_prefix() {
    for text in [
        "AB".repeat(32),
        format!("sha256:{}", "ab".repeat(32)),
        format!("SHA256:{}", "aB".repeat(32)),
    ] {
        let wish = check(&with(json!({"checksum": text})), &Settings::default()).unwrap();
        assert_eq!(wish.key, "ab".repeat(32));
    }
    for text in ["ab", "zz", "md5:abcd"] {
        assert_eq!(fields(&with(json!({"checksum": text}))), ["checksum"]);
    }
}

#[test]
fn image_references() {
    let image = |i: &str| with(json!({"imagetype": "containerd", "imageurl": "", "containerimage": i}));
    assert!(fields(&image("reg.lab.example:5000/os/blue:7.3")).is_empty());
    assert!(fields(&image(&format!("reg/os@sha256:{}", "ab".repeat(32)))).is_empty());
    for bad in [
        "",
        "reg.lab.example:5000/os/blue",
        "os:",
        "os:1@sha256:00",
        "o s:1",
        "os:1;reboot",
    ] {
        assert_eq!(fields(&image(bad)), ["containerimage"], "{bad}");
    }
    let other = fields(&image(&format!("reg/os@sha256:{}", "cd".repeat(32))));
    assert_eq!(other, ["checksum"], "two digests");
    let pinned = with(
        json!({"imagetype": "docker", "checksum": "", "containerimage": format!("os@sha256:{}", "cd".repeat(32))}),
    );
    assert_eq!(check(&pinned, &Settings::default()).unwrap().key, "cd".repeat(32));
}

#[test]
fn all_problems_are_told_at_once() {
    let s = with(
        json!({"opstype": "x", "maxunavailable": "300%", "checksum": "q", "drain": {"timeout": "soon"}, "reboottimeout": "5m"}),
    );
    assert_eq!(
        fields(&s),
        [
            "opstype",
            "checksum",
            "maxunavailable",
            "reboottimeout",
            "drain.timeout"
        ]
    );
}

#[test]
fn certificates_are_plain_names_and_mtls_needs_both() {
    assert_eq!(fields(&with(json!({"cacert": "../../shadow"}))), ["cacert"]);
    assert_eq!(
        fields(&with(json!({"mtls": true, "clientcert": "a.pem"}))),
        ["mtls"]
    );
    assert!(
        fields(&with(
            json!({"mtls": true, "clientcert": "a.pem", "clientkey": "a.key"})
        ))
        .is_empty()
    );
}

#[test]
fn evictpodforce_is_a_default_of_the_drain_options() {
    let of = |v| check(&with(v), &Settings::default()).unwrap().policy;
    let p = of(json!({"evictpodforce": true}));
    assert!(p.deleteemptydirdata && p.evictunmanagedpods);
    let p = of(json!({}));
    assert!(!p.deleteemptydirdata && !p.evictunmanagedpods);
    let p =
        of(json!({"evictpodforce": true, "drain": {"unmanagedpods": "error", "deleteemptydirdata": false}}));
    assert!(!p.deleteemptydirdata && !p.evictunmanagedpods);
}

#[test]
fn reboottimeout_holds_three_boots() {
    assert_eq!(
        check(&with(json!({})), &Settings::default())
            .unwrap()
            .policy
            .reboottimeoutseconds,
        3600
    );
    assert_eq!(fields(&with(json!({"reboottimeout": "59m"}))), ["reboottimeout"]);
    assert!(
        fields(&with(
            json!({"reboottimeout": "30m", "health": {"timeout": "5m"}})
        ))
        .is_empty()
    );
    let longer = with(json!({"health": {"timeout": "1h"}}));
    assert_eq!(
        check(&longer, &Settings::default())
            .unwrap()
            .policy
            .reboottimeoutseconds,
        3 * (3600 + 300)
    );
}

#[test]
fn the_default_failure_budget_grows_with_the_fleet() {
    let w = check(&with(json!({})), &Settings::default()).unwrap();
    assert_eq!(
        [
            w.budget_of(3),
            w.budget_of(10),
            w.budget_of(11),
            w.budget_of(1000)
        ],
        [1, 1, 1, 50]
    );
    let w = check(&with(json!({"failurebudget": "10%"})), &Settings::default()).unwrap();
    assert_eq!([w.budget_of(5), w.budget_of(100)], [1, 10]);
    assert_eq!(fields(&with(json!({"failurebudget": 0}))), ["failurebudget"]);
}

#[test]
fn selections_are_those_of_kubeos_plus_label_selectors() {
    let labels = |l: &[(&str, &str)]| {
        l.iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    };
    let none = labels(&[]);
    let blue = labels(&[(crate::api::LABEL_NODE_SELECTOR, "blue")]);
    let empty = labels(&[(crate::api::LABEL_NODE_SELECTOR, "")]);
    let sel = |v| select(&with(v)).unwrap();
    let hits = |s: &Select| [s.matches(&none), s.matches(&blue), s.matches(&empty)];
    assert_eq!(hits(&sel(json!({}))), [true, false, false]);
    assert_eq!(
        hits(&sel(json!({"nodeselector": "no-label"}))),
        [true, false, false]
    );
    assert_eq!(
        hits(&sel(json!({"nodeselector": "all-label"}))),
        [true, true, true]
    );
    assert_eq!(hits(&sel(json!({"nodeselector": "blue"}))), [false, true, false]);
    assert_eq!(hits(&sel(json!({"nodeselector": ""}))), [false, false, true]);
    let not = json!({"selector": {"matchExpressions": [{"key": crate::api::LABEL_NODE_SELECTOR, "operator": "NotIn", "values": ["blue"]}]}});
    assert_eq!(hits(&sel(not)), [true, false, true]);
    assert!(
        select(&with(
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}})
        ))
        .is_err()
    );
}

#[test]
fn durations() {
    let good = [
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("0", 0),
        (" 5m ", 300),
    ];
    for (text, secs) in good {
        assert_eq!(seconds(text), Some(secs), "{text}");
    }
    for text in [
        "",
        "5",
        "m",
        "5x",
        "5m5m",
        "5s1h",
        "-5m",
        "1.5h",
        "99999999999999999d",
        "５m",
    ] {
        assert_eq!(seconds(text), None, "{text}");
    }
}

#[test]
fn amounts() {
    assert_eq!(
        [
            Amount::Percent(33).of(10),
            Amount::Percent(1).of(10),
            Amount::Percent(0).of(10)
        ],
        [3, 1, 0]
    );
    assert_eq!(
        [Amount::Percent(33).of_rounded_up(10), Amount::Count(7).of(2)],
        [4, 7]
    );
    let w = check(&with(json!({"maxunavailable": "3"})), &Settings::default()).unwrap();
    assert_eq!((w.limit, w.warnings.len()), (Amount::Count(3), 1));
}
