//! What the templates become, and what they refuse. That the steps do it, twice, is in the agent's `tests/standard.rs`.

use super::*;
use crate::bundle::Bundle;
use crate::render::{GoTemplates, context, inputs_hash, render, to_bundle};

fn bundle(text: &str) -> Result<Bundle, String> {
    let context = context("context", text).map_err(|e| e.to_string())?;
    let all = templates();
    let rendered = render(&GoTemplates::default(), &all, &context);
    if let Some(e) = rendered.values().find_map(|t| t.as_ref().err()) {
        return Err(e.to_string());
    }
    to_bundle(&rendered, inputs_hash(&all, &context), "worker").map_err(|e| e.to_string())
}

/// Compares with the file beside this one; `SLIPWAY_SNAPSHOTS=write` writes it.
fn snapshot(name: &str, b: &Bundle) {
    let text: String = b
        .manifest
        .steps
        .iter()
        .zip(&b.steps)
        .map(|(s, t)| format!("=== {}\n{}", s.name, String::from_utf8_lossy(t)))
        .collect();
    let path = format!("{}/src/standard/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var("SLIPWAY_SNAPSHOTS").is_ok_and(|v| v == "write") {
        std::fs::write(&path, &text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some((n, (a, b))) = text
        .lines()
        .zip(want.lines())
        .enumerate()
        .find(|(_, (a, b))| a != b)
    {
        panic!("{path}:{}: expected {b:?}, found {a:?}", n + 1);
    }
    assert_eq!(text.lines().count(), want.lines().count(), "{path}");
}

#[test]
fn the_example_renders_as_before() {
    let b = bundle(EXAMPLE).unwrap();
    snapshot("example", &b);
    let again = bundle(EXAMPLE).unwrap();
    assert_eq!(b.manifest.content_hash, again.manifest.content_hash);
}

#[test]
fn an_empty_context_gives_a_bundle_that_joins_nothing() {
    let b = bundle("{}\n").unwrap();
    snapshot("empty", &b);
}

#[test]
fn every_step_is_bash() {
    let p = crate::testing::Place::new();
    for text in [EXAMPLE, "{}\n"] {
        crate::store::take(&p.dirs, &bundle(text).unwrap()).unwrap();
    }
}

#[test]
fn values_that_would_become_shell_text_or_make_no_sense_are_refused_with_their_key() {
    let ca = "-----BEGIN CERTIFICATE-----";
    for (text, want) in [
        ("nodeUsers: [{name: 'a;b', uid: 1001}]".to_owned(), "nodeUsers"),
        ("nodeUsers: [{name: a, uid: 0}]".into(), "uid must be 1001"),
        (
            "nodeUsers: [{name: a, uid: 1001, home: '/x $(id)'}]".into(),
            "is no home",
        ),
        (
            "nodeUsers: [{name: a, uid: 1001, extraGroups: ['$(id)']}]".into(),
            "extraGroups",
        ),
        ("caCertificates: {'../x': y}".into(), "is no file name"),
        ("caCertificates: {x: y}".into(), "no certificate"),
        ("packages: {install: {x: 'sha256:12'}}".into(), "no SHA-256"),
        ("packages: {dir: \"/a'b\"}".into(), "quotation mark"),
        ("registry: {hosts: {'a b': {}}}".into(), "is no host"),
        (
            "registry: {hosts: {a: {mirrors: ['ftp://x']}}}".into(),
            "is no URL",
        ),
        ("cri: Docker".into(), "expected Containerd"),
        ("clusterMasterKubeAPIEndpoints: ['a:1']".into(), "kubernetesCA"),
        (
            format!("clusterMasterKubeAPIEndpoints: ['a b:1']\nnormal: {{kubernetesCA: '{ca}'}}"),
            "expected host:port",
        ),
        (
            format!(
                "clusterMasterKubeAPIEndpoints: ['a:1']\nbootstrapToken: x\nnormal: {{kubernetesCA: '{ca}'}}"
            ),
            "bootstrapToken",
        ),
        (
            format!(
                "clusterMasterKubeAPIEndpoints: ['a:1']\nkubelet: {{labels: {{a: 'b c'}}}}\nnormal: {{kubernetesCA: '{ca}'}}"
            ),
            "kubelet.labels",
        ),
    ] {
        let e = bundle(&text).unwrap_err();
        assert!(e.contains(want), "{text}: {e}");
    }
}

#[test]
fn no_text_of_a_user_stands_in_a_step_unguarded() {
    let text = "nodeUsers: [{name: ops, uid: 1001, passwordHash: \"'$(touch /x)\", sshPublicKeys: [\"'$(touch /x)\"]}]\n\
                caCertificates: {x: \"-----BEGIN CERTIFICATE-----\\n'; touch /x\"}\n";
    let b = bundle(text).unwrap();
    for t in &b.steps {
        assert!(!String::from_utf8_lossy(t).contains("touch /x"));
    }
}
