//! The environment of steps: built anew, nothing inherited.

use super::Runner;
use crate::approval::{self, Answers, Gate};
use crate::bundle::Bundle;
use crate::dirs::Dirs;
use crate::store;

/// Variable by which processes of this runner's steps are told from all others, after the runner was killed.
pub(super) fn mark(dirs: &Dirs) -> (String, String) {
    let id = crate::bundle::sha256(dirs.steps.as_str().as_bytes());
    ("SLIPWAY_STEPS".to_owned(), id.get(..16).unwrap_or(&id).to_owned())
}

/// What every step of a run gets.
pub(super) fn build(
    r: &Runner,
    b: &Bundle,
    first_run: bool,
    answers: Answers,
    check: bool,
) -> Vec<(String, String)> {
    let d = &r.dirs;
    let m = &b.manifest;
    let stored = store::dir(d, &m.content_hash);
    let ws = d.base.join(".bb-workspace");
    let path = format!(
        "{}/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        d.opt
    );
    let approved = match approval::may_disrupt(&r.settings, first_run, answers) {
        Gate::Go => "approved",
        _ if answers.rolling => "rolling",
        _ => "ask",
    };
    let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
    let mut env: Vec<(String, String)> = vec![
        ("PATH".into(), path),
        ("HOME".into(), d.base.to_string()),
        ("BOOTSTRAP_DIR".into(), d.base.to_string()),
        ("BUNDLE_STEPS_DIR".into(), stored.join("steps").into_string()),
        ("TMPDIR".into(), d.opt.join("tmp").into_string()),
        ("LANG".into(), "C".into()),
        ("LC_NUMERIC".into(), "C".into()),
        ("TERM".into(), "xterm-256color".into()),
        ("CONFIGURATION_CHECKSUM".into(), m.external_checksum.clone()),
        (
            "CONFIGURATION_CHECKSUM_FILE".into(),
            d.base.join("configuration_checksum").into_string(),
        ),
        ("UPTIME_FILE".into(), d.base.join("uptime").into_string()),
        (
            "BASHIBLE_INITIALIZED_FILE".into(),
            d.base.join("bashible-fully-initialized").into_string(),
        ),
        ("FIRST_BASHIBLE_RUN".into(), yes(first_run)),
        ("NODE_GROUP".into(), group(r, b)),
        ("D8_NODE_HOSTNAME".into(), r.host.hostname()),
        ("BB_RP_INSTALLED_PACKAGES_STORE".into(), d.packages.to_string()),
        ("BB_KUBE_APISERVER_URL".into(), "https://127.0.0.1:6445".into()),
        (
            "PACKAGES_PROXY_KUBE_APISERVER_ENDPOINTS".into(),
            r.settings.api_endpoints.join(" "),
        ),
        ("BB_WORKSPACE".into(), ws.to_string()),
        ("BB_FLAGS".into(), d.flags().into_string()),
        ("BB_UNHANDLED".into(), d.unhandled().into_string()),
        ("BB_LIB".into(), stored.join("lib/bb.sh").into_string()),
        ("BB_DISRUPTION".into(), approved.into()),
        mark(d),
    ];
    if !first_run {
        env.push(("MAX_RETRIES".into(), "10".into()));
    }
    if check {
        env.push(("BB_CHECK".into(), "1".into()));
    }
    for (k, v) in &r.settings.env {
        env.retain(|(have, _)| have != k);
        env.push((k.clone(), v.clone()));
    }
    env
}

fn group(r: &Runner, b: &Bundle) -> String {
    if r.settings.node_group.is_empty() {
        b.manifest.node_group.clone()
    } else {
        r.settings.node_group.clone()
    }
}

/// Values that must not be seen in any output: those of variables that sound secret, and the bootstrap token.
pub(super) fn secrets(r: &Runner) -> Vec<String> {
    let mut all: Vec<String> = r
        .settings
        .env
        .iter()
        .filter(|(k, _)| {
            ["TOKEN", "PASSWORD", "SECRET", "AUTH", "KEY"]
                .iter()
                .any(|w| k.to_uppercase().contains(w))
        })
        .map(|(_, v)| v.clone())
        .collect();
    all.extend(std::fs::read_to_string(r.dirs.base.join("bootstrap-token")));
    let mut all: Vec<String> = all
        .into_iter()
        .map(|v| v.trim().to_owned())
        .filter(|v| v.len() >= 6)
        .collect();
    // A secret that holds another is masked first.
    all.sort_by_key(|v| std::cmp::Reverse(v.len()));
    all
}
