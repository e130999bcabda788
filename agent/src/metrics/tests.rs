use super::*;
use crate::testing::Node;

/// Name, labels and value of every sample; panics on anything that is not the exposition format.
fn samples(text: &str) -> Vec<(String, String)> {
    let mut typed = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(kind, "gauge");
            assert!(typed.insert(name.to_owned()), "{name} is typed twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        assert!(typed.contains(name), "{name} has no type before it");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(
            name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
            "{line}"
        );
        out.push((series.to_owned(), value.to_owned()));
    }
    assert!(text.ends_with('\n'));
    out
}

#[test]
fn the_file_is_in_prometheus_format_and_says_what_status_says() {
    let mut n = Node::new();
    let of = |n: &Node| samples(&text(&n.status()));
    let has = |all: &[(String, String)], series: &str, value: &str| {
        assert!(
            all.iter().any(|(s, v)| s == series && v == value),
            "{series} {value}: {all:#?}"
        );
    };
    let all = of(&n);
    has(&all, "os_agent_phase{phase=\"idle\"}", "1");
    has(&all, "os_agent_phase{phase=\"trial\"}", "0");
    has(&all, "os_agent_env_valid{copy=\"env1\"}", "1");
    n.update("2").unwrap();
    let all = of(&n);
    has(&all, "os_agent_phase{phase=\"trial\"}", "1");
    has(&all, "os_agent_tries_left", "2");
}

#[test]
fn labels_are_escaped() {
    let s = v1::StatusReply {
        os_version: "a \"b\" \\ c\nd".into(),
        ..Default::default()
    };
    let t = text(&s);
    assert!(t.contains(r#"os_version="a \"b\" \\ c\nd""#), "{t}");
    samples(&t);
}

#[test]
fn the_file_is_replaced_whole() {
    let d = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(d.path()).unwrap().join("os-agent.prom");
    let n = Node::new();
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let engine = n.engine().clone();
    rt.block_on(async {
        let keeper = tokio::spawn(keep(engine, path.clone()));
        for _ in 0..1000 {
            if path.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        keeper.abort();
    });
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(!samples(&found).is_empty());
    assert_eq!(
        std::fs::read_dir(d.path()).unwrap().count(),
        1,
        "nothing half-written"
    );
}
