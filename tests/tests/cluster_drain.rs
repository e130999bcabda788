//! The drain against a real kube-apiserver, with `kubectl drain` as oracle: two nodes with the same pods, budgets and flags,
//! one drained by kubectl, one by us. The same pods must be evicted and the same ones refused.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, ensure};
use camino::Utf8PathBuf;
use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::{Api, PostParams};
use os_e2e::cluster::players::{
    self, HANGS, admin, client, kubelets, make_budget, make_node, make_pod, owned_by, pods_of,
};
use os_e2e::cluster::server::User;
use os_e2e::cluster::sim::QUICK;
use os_e2e::cluster::{Action, Audit, Cases, Cluster, Dice, Options, Rule};
use os_proxy::api::{NodePolicy, OnDrainTimeout};
use os_proxy::drain::plan::Tuning;
use os_proxy::drain::run::{Outcome, Progress, Server, run};
use os_proxy::drain::{Policy, Reason};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

const NAMESPACE: &str = "upgrade-system";

fn states() -> u64 {
    if std::env::var_os("SLIPWAY_LONG").is_some() {
        300
    } else {
        60
    }
}

/// kubectl's of the machine, oldest first, and the server's own.
fn kubectls(cluster: &Cluster) -> Vec<Utf8PathBuf> {
    let dir = std::fs::canonicalize("/usr/bin/kubectl")
        .ok()
        .and_then(|p| p.parent().map(std::path::Path::to_path_buf));
    let mut found: Vec<Utf8PathBuf> = dir
        .iter()
        .flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten())
        .filter_map(|e| Utf8PathBuf::from_path_buf(e.path()).ok())
        .filter(|p| p.file_name().is_some_and(|n| n.starts_with("kubectl.1.")))
        .collect();
    found.sort();
    found.push(cluster.assets.kubectl.clone());
    found
}

/// A budget: app, allowed, healthy (current, desired), AlwaysAllow, how many budgets select it.
type Budget = (String, i32, (i32, i32), bool, u32);

/// What is on both nodes, and how both are drained.
#[derive(Debug)]
struct State {
    pods: Vec<(String, Value)>,
    budgets: Vec<Budget>,
    empty_dir: bool,
    force: bool,
    grace: i64,
    skip_wait: i64,
}

fn random_state(seed: u64) -> State {
    let mut d = Dice::new(seed);
    let mut s = State {
        pods: Vec::new(),
        budgets: Vec::new(),
        empty_dir: d.chance(70),
        force: d.chance(70),
        grace: [-1, -1, 0, 5][d.roll(4) as usize],
        skip_wait: if d.chance(15) { 1 } else { 0 },
    };
    let unready = || json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    for i in 0..3 + d.roll(6) {
        let app = format!("a{i}");
        let kind = |d: &mut Dice| -> Value {
            match d.roll(20) {
                0..=5 => json!({"metadata": owned_by("ReplicaSet", "rs")}),
                6 => json!({"metadata": owned_by("DaemonSet", "there")}),
                7 => {
                    json!({"metadata": owned_by("DaemonSet", "there"), "spec": {"volumes": [{"name": "e", "emptyDir": {}}]}})
                }
                8 if d.chance(30) => json!({"metadata": owned_by("DaemonSet", "gone")}),
                9 if d.chance(40) => {
                    json!({"metadata": owned_by("ReplicaSet", "rs"), "spec": {"volumes": [{"name": "e", "emptyDir": {}}]}})
                }
                10 if d.chance(40) => json!({}),
                11 => json!({"status": {"phase": "Succeeded"}}),
                12 => {
                    json!({"status": {"phase": "Failed"}, "spec": {"volumes": [{"name": "e", "emptyDir": {}}]}})
                }
                13 => json!({"metadata": owned_by("DaemonSet", "there"), "status": {"phase": "Failed"}}),
                14 => {
                    json!({"metadata": owned_by("StatefulSet", "ss"), "status": {"phase": "Pending", "conditions": []}})
                }
                15 => json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
                16 => {
                    json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs",
                    "uid": "u", "controller": true}], "annotations": {HANGS: "1", "test.invalid/delete-first": "1"}}})
                }
                _ => json!({"metadata": owned_by("Job", "job")}),
            }
        };
        let replicas = 1 + d.roll(2);
        let base = kind(&mut d);
        let is_unready = d.chance(20);
        for r in 0..replicas {
            let mut pod = base.clone();
            if is_unready && pod.get("status").is_none() {
                players::merge(&mut pod, unready());
            }
            players::merge(&mut pod, json!({"metadata": {"labels": {"app": app}}}));
            s.pods.push((format!("{app}-{r}"), pod));
        }
        if d.chance(30) {
            let allowed = d.roll(3) as i32;
            let desired = 1 + d.roll(2) as i32;
            let current = desired + d.roll(2) as i32 - d.roll(2) as i32;
            s.budgets.push((
                app,
                allowed,
                (current, desired),
                d.chance(20),
                if d.chance(15) { 2 } else { 1 },
            ));
        }
    }
    s
}

/// One side of the comparison.
#[derive(Debug, PartialEq, Eq)]
struct Side {
    /// Pods that are left, by app.
    left: BTreeMap<String, usize>,
    /// Evictions that were accepted, by app: distinct pods.
    evicted: BTreeMap<String, usize>,
    /// Nothing was even asked for.
    refused: bool,
    /// Everything that should go went.
    drained: bool,
}

async fn build(c: &kube::Client, s: &State, ns: &str, node: &str) -> Result<()> {
    make_node(c, node, "boot", "OS 1").await?;
    let ds: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "there"}, "spec": {
        "selector": {"matchLabels": {"x": "y"}},
        "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}}))?;
    Api::<DaemonSet>::namespaced(c.clone(), ns)
        .create(&PostParams::default(), &ds)
        .await?;
    for (name, more) in &s.pods {
        let p = make_pod(c, ns, name, node, more.clone()).await?;
        if p.metadata
            .annotations
            .iter()
            .flatten()
            .any(|(k, _)| k == "test.invalid/delete-first")
        {
            Api::<k8s_openapi::api::core::v1::Pod>::namespaced(c.clone(), ns)
                .delete(name, &kube::api::DeleteParams::default().grace_period(1))
                .await?;
        }
    }
    for (app, allowed, healthy, always, count) in &s.budgets {
        for n in 0..*count {
            make_budget(c, ns, &format!("{app}-{n}"), app, *allowed, *healthy, *always).await?;
        }
    }
    Ok(())
}

fn by_app<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut m = BTreeMap::new();
    for n in names {
        *m.entry(n.split('-').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    m
}

fn evictions(audit: &Audit, ns: &str, user: &str) -> (BTreeMap<String, usize>, usize) {
    let all: Vec<_> = audit
        .of(user)
        .filter(|c| c.resource == "pods/eviction" && c.namespace == ns && !c.is_dry())
        .collect();
    let mut ok: Vec<&str> = all.iter().filter(|c| c.ok()).map(|c| c.name.as_str()).collect();
    ok.sort_unstable();
    ok.dedup();
    (by_app(ok.into_iter()), all.len())
}

/// Long enough that a busy machine is not taken for a blocked drain.
const LIMIT_SECS: i64 = 20;

async fn by_kubectl(cluster: &Cluster, program: &Utf8PathBuf, s: &State, node: &str) -> Result<bool> {
    let mut args = vec!["drain".to_owned(), node.to_owned(), "--ignore-daemonsets".into()];
    args.push(format!("--timeout={LIMIT_SECS}s"));
    if s.empty_dir {
        args.push("--delete-emptydir-data".into());
    }
    if s.force {
        args.push("--force".into());
    }
    if s.grace >= 0 {
        args.push(format!("--grace-period={}", s.grace));
    }
    if s.skip_wait > 0 {
        args.push(format!("--skip-wait-for-delete-timeout={}", s.skip_wait));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let e = cluster.kubectl_by(program, &args).await?;
    Ok(e.code == 0)
}

async fn by_us(c: kube::Client, s: &State, node: &str) -> Result<Outcome> {
    let policy = Policy::from(&NodePolicy {
        draintimeoutseconds: LIMIT_SECS,
        deleteemptydirdata: s.empty_dir,
        evictunmanagedpods: s.force,
        graceperiodseconds: s.grace,
        skipwaitfordeleteseconds: s.skip_wait,
        volumedetachtimeoutseconds: 0,
        ..NodePolicy::default()
    });
    let server = Server {
        client: c,
        node: node.into(),
        clock: Timestamp::now,
        tuning: Tuning {
            // kubectl asks again every five seconds.
            retry_min_secs: 2.0,
            retry_max_secs: 3.0,
            ..QUICK
        },
        volumes: true,
    };
    let (progress, _seen) = watch::channel(Progress::default());
    let (_stop, stopped) = watch::channel(false);
    Ok(run(&server, &policy, Timestamp::now(), &progress, stopped).await?)
}

/// What both sides left behind.
struct Run {
    seed: u64,
    program: Utf8PathBuf,
    state: State,
    kubectl_drained: bool,
    ours: Outcome,
    left: [BTreeMap<String, usize>; 2],
}

async fn drain_both(cluster: &Cluster, ours: &User, seed: u64, program: &Utf8PathBuf) -> Result<Run> {
    let c = admin(cluster)?;
    let state = random_state(seed);
    let names = [format!("k{seed}"), format!("o{seed}")];
    for ns in &names {
        cluster.kubectl(&["create", "namespace", ns]).await?;
        build(&c, &state, ns, ns).await?;
    }
    // A pod that was deleted first must be past the skip limit on both sides.
    if state.skip_wait > 0 {
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    let us = client(cluster, &ours.token, "os-proxy")?;
    let (k, o) = tokio::join!(
        by_kubectl(cluster, program, &state, &names[0]),
        by_us(us, &state, &names[1])
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut left = Vec::new();
    for ns in &names {
        let pods = pods_of(&c, ns).await?;
        left.push(by_app(
            pods.keys().map(|p| p.split('/').nth(1).unwrap_or_default()),
        ));
    }
    Ok(Run {
        seed,
        program: program.clone(),
        state,
        kubectl_drained: k?,
        ours: o?,
        left: left.try_into().unwrap(),
    })
}

fn compare(audit: &Audit, ours: &User, r: &Run) -> Result<&'static str> {
    let side = |ns: String, user: &str, drained: bool, left: &BTreeMap<String, usize>| {
        let (evicted, asked) = evictions(audit, &ns, user);
        Side {
            left: left.clone(),
            evicted,
            refused: asked == 0 && !drained,
            drained,
        }
    };
    let k = side(
        format!("k{}", r.seed),
        "test-admin",
        r.kubectl_drained,
        &r.left[0],
    );
    let o = side(
        format!("o{}", r.seed),
        &ours.name,
        r.ours == Outcome::Drained,
        &r.left[1],
    );
    ensure!(
        k == o,
        "state {} with {}:\nkubectl: {k:?}\nours:    {o:?} ({:?})\n{:?}",
        r.seed,
        r.program,
        r.ours,
        r.state
    );
    Ok(match r.ours {
        Outcome::Drained => "drained",
        Outcome::Refused(_) => "refused",
        Outcome::TimedOut(_) => "blocked",
        _ => "other",
    })
}

async fn oracle(cluster: &Cluster, ours: &User) -> Result<()> {
    let programs = kubectls(cluster);
    println!(
        "oracle: {}",
        programs.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(" ")
    );
    let n = states();
    let runs: Vec<Result<Run>> = futures_util::stream::iter(1..=n)
        .map(|seed| {
            let program = &programs[seed as usize % programs.len()];
            async move { drain_both(cluster, ours, seed, program).await }
        })
        .buffer_unordered(6)
        .collect()
        .await;
    // Read once, at the end: parsing it would hold up drains that have time limits.
    let audit = cluster.audit()?;
    let results: Vec<Result<&str>> = runs
        .into_iter()
        .map(|r| r.and_then(|r| compare(&audit, ours, &r)))
        .collect();
    let mut counts = BTreeMap::new();
    let mut bad = Vec::new();
    for r in results {
        match r {
            Ok(w) => *counts.entry(w).or_insert(0) += 1,
            Err(e) => bad.push(format!("{e:#}")),
        }
    }
    println!("oracle: {n} states, equal: {counts:?}, different: {}", bad.len());
    ensure!(bad.is_empty(), "{}", bad.join("\n\n"));
    ensure!(counts.len() >= 3, "all outcomes must come up: {counts:?}");
    Ok(())
}

struct Bench<'a> {
    cluster: &'a Cluster,
    ours: &'a User,
}

impl Bench<'_> {
    fn server(&self, node: &str) -> Server {
        Server {
            client: client(self.cluster, &self.ours.token, "os-proxy").unwrap(),
            node: node.into(),
            clock: Timestamp::now,
            tuning: QUICK,
            volumes: true,
        }
    }

    async fn node_with(&self, ns: &str, pods: &[(&str, Value)]) -> Result<kube::Client> {
        let c = admin(self.cluster)?;
        self.cluster.kubectl(&["create", "namespace", ns]).await?;
        make_node(&c, ns, "boot", "OS 1").await?;
        for (name, more) in pods {
            make_pod(&c, ns, name, ns, more.clone()).await?;
        }
        Ok(c)
    }

    async fn drain(&self, node: &str, secs: i64) -> Result<(Outcome, Progress)> {
        let policy = Policy::from(&NodePolicy {
            draintimeoutseconds: secs,
            volumedetachtimeoutseconds: 2,
            proceedwithvolumes: false,
            ..NodePolicy::default()
        });
        let (progress, seen) = watch::channel(Progress::default());
        let (_stop, stopped) = watch::channel(false);
        let out = run(&self.server(node), &policy, Timestamp::now(), &progress, stopped).await?;
        let p = seen.borrow().clone();
        Ok((out, p))
    }
}

fn rs() -> Value {
    json!({"metadata": owned_by("ReplicaSet", "rs")})
}

/// The server's own words for every answer, and what we make of them.
async fn answers(b: &Bench<'_>) -> Result<()> {
    let ns = "answers";
    let c = b
        .node_with(
            ns,
            &[("limit", rs()), ("two", rs()), ("fresh", rs()), ("free", rs())],
        )
        .await?;
    make_budget(&c, ns, "limit", "limit", 0, (1, 1), false).await?;
    make_budget(&c, ns, "two-a", "two", 1, (2, 1), false).await?;
    make_budget(&c, ns, "two-b", "two", 1, (2, 1), false).await?;
    b.cluster
        .apply("{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: fresh, namespace: answers}, spec: {minAvailable: 1, selector: {matchLabels: {app: fresh}}}}")
        .await?;
    let (out, _) = b.drain(ns, 6).await?;
    let Outcome::TimedOut(blocked) = out else {
        anyhow::bail!("{out:?}")
    };
    let found: BTreeMap<&str, (Reason, Option<&str>)> = blocked
        .iter()
        .map(|x| (x.pod.as_str(), (x.reason, x.pdb.as_deref())))
        .collect();
    ensure!(
        found["answers/limit"] == (Reason::PDBAtLimit, Some("answers/limit")),
        "{blocked:?}"
    );
    ensure!(found["answers/two"].0 == Reason::MultiplePDBs, "{blocked:?}");
    ensure!(found["answers/fresh"].0 == Reason::PDBNotObserved, "{blocked:?}");
    ensure!(
        found.len() == 3 && !pods_of(&c, ns).await?.contains_key("answers/free"),
        "{blocked:?}"
    );
    Ok(())
}

/// Report 20: errors at every call; nothing is called drained that is not.
async fn report_20(b: &Bench<'_>) -> Result<()> {
    let c = b.node_with("r20", &[("a", rs())]).await?;
    let front = &b.cluster.front;
    let list = front.rule(Rule::on("list", "pods", Action::error(500)).by("upgrade-proxy"));
    let watch = front.rule(Rule::on("watch", "pods", Action::error(500)).by("upgrade-proxy"));
    let (out, _) = b.drain("r20", 3).await?;
    front.unrule(watch);
    ensure!(
        matches!(out, Outcome::TimedOut(_)),
        "LIST and WATCH answer 500: {out:?}"
    );
    ensure!(
        b.server("r20")
            .is_empty(&Policy::from(&NodePolicy::default()))
            .await
            .is_err(),
        "the look before Boot is a LIST of its own"
    );
    front.unrule(list);
    ensure!(
        !b.server("r20")
            .is_empty(&Policy::from(&NodePolicy::default()))
            .await?,
        "not empty"
    );
    for code in [500, 503, 504, 403] {
        let n = front.rule(Rule::on("create", "pods/eviction", Action::error(code)).by("upgrade-proxy"));
        let (out, _) = b.drain("r20", 2).await?;
        front.unrule(n);
        ensure!(
            matches!(out, Outcome::TimedOut(_)),
            "eviction answers {code}: {out:?}"
        );
        ensure!(pods_of(&c, "r20").await?.len() == 1, "{code}");
    }
    let (out, _) = b.drain("r20", 60).await?;
    ensure!(out == Outcome::Drained, "{out:?}");
    Ok(())
}

/// Report 7: overload answers with Retry-After on every verb; the drain ends well and reports nothing.
async fn report_7(b: &Bench<'_>) -> Result<()> {
    b.node_with("r7", &[("a", rs()), ("b", rs())]).await?;
    for verb in ["list", "create", "watch"] {
        b.cluster.front.rule(
            Rule::on(verb, "", Action::overload(1))
                .by("upgrade-proxy")
                .times(2),
        );
    }
    let (out, p) = b.drain("r7", 120).await?;
    b.cluster.front.clear();
    ensure!(out == Outcome::Drained && p.blocked.is_empty(), "{out:?} {p:?}");
    Ok(())
}

/// Report 4: the delete event is lost; the resync notices.
async fn report_4(b: &Bench<'_>) -> Result<()> {
    b.node_with("r4", &[("a", rs())]).await?;
    let n = b
        .cluster
        .front
        .rule(Rule::on("watch", "pods", Action::Mute).by("upgrade-proxy"));
    let (out, _) = b.drain("r4", 120).await?;
    b.cluster.front.unrule(n);
    ensure!(out == Outcome::Drained, "{out:?}");
    Ok(())
}

/// A pod of the same name with another UID is another pod: the eviction of the old one must not hit it.
async fn another_uid(b: &Bench<'_>) -> Result<()> {
    let c = b.node_with("uid", &[("a", rs())]).await?;
    let server = b.server("uid");
    let policy = Policy::from(&NodePolicy::default());
    let (pods, _) = server.pods(&policy).await?;
    let mut old = pods[0].clone();
    old.uid = "00000000-0000-0000-0000-000000000000".into();
    let a = server.evict(&old, -1, false).await;
    ensure!(a == os_proxy::drain::evict::Answer::Conflict, "{a:?}");
    ensure!(pods_of(&c, "uid").await?.len() == 1, "it is still there");
    Ok(())
}

/// Report 26: what goes over the wire.
async fn report_26(b: &Bench<'_>) -> Result<()> {
    b.node_with("r26", &[("a", rs())]).await?;
    let server = b.server("r26");
    let (pods, _) = server.pods(&Policy::from(&NodePolicy::default())).await?;
    b.cluster.front.record(true);
    server.evict(&pods[0], 7, false).await;
    let seen = b.cluster.front.seen();
    b.cluster.front.record(false);
    let e = seen
        .iter()
        .find(|s| s.resource == "pods/eviction")
        .context("no eviction")?;
    let v: Value = serde_json::from_slice(&e.body)?;
    ensure!(v["apiVersion"] == "policy/v1" && v["kind"] == "Eviction", "{v}");
    ensure!(v["deleteOptions"]["gracePeriodSeconds"] == 7, "{v}");
    ensure!(
        v["deleteOptions"]["preconditions"]["uid"] == pods[0].uid.as_str(),
        "{v}"
    );
    // And the server took the grace period.
    let audit = b.cluster.audit()?;
    let call = audit
        .calls
        .iter()
        .rfind(|c| c.namespace == "r26" && c.resource == "pods/eviction");
    ensure!(call.is_some_and(|c| c.code == 201), "{call:?}");
    Ok(())
}

/// Report 28: a volume that stays attached is waited for, reported, and the policy decides.
async fn report_28(b: &Bench<'_>) -> Result<()> {
    b.node_with("r28", &[("a", rs())]).await?;
    b.cluster
        .apply("{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: r28}, spec: {attacher: x, nodeName: r28, source: {persistentVolumeName: pv}}}")
        .await?;
    let c = admin(b.cluster)?;
    let api: Api<k8s_openapi::api::storage::v1::VolumeAttachment> = Api::all(c);
    let attached = kube::api::Patch::Merge(json!({"status": {"attached": true}}));
    api.patch_status("r28", &Default::default(), &attached).await?;
    let (out, p) = b.drain("r28", 60).await?;
    ensure!(
        matches!(&out, Outcome::VolumesAttached(x) if x[0].reason == Reason::VolumeAttached),
        "{out:?}"
    );
    ensure!(p.blocked[0].message.contains("pv"), "{p:?}");
    api.delete("r28", &Default::default()).await?;
    let (out, _) = b.drain("r28", 60).await?;
    ensure!(out == Outcome::Drained, "{out:?}");
    Ok(())
}

/// What a drain asks for: one request for the pods where the server streams lists, LIST and WATCH where it does not; all
/// VolumeAttachments of the cluster only where the Node or a pod speaks of volumes.
async fn requests(b: &Bench<'_>) -> Result<()> {
    let claim = json!({"metadata": owned_by("ReplicaSet", "rs"),
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
    let (plain, old) = (["watch pods"], ["list pods", "watch pods"]);
    for (ns, pod, node_has_volumes, streams, pods, volumes) in [
        ("plain", rs(), false, true, &plain[..], false),
        ("oldserver", rs(), false, false, &old[..], false),
        ("claims", claim, false, true, &plain[..], true),
        ("attached", rs(), true, true, &plain[..], true),
    ] {
        b.node_with(ns, &[("a", pod)]).await?;
        // As servers before 1.32 answer to a streamed list.
        let rule = (!streams).then(|| {
            let refused = Rule::on("watch", "pods", Action::error(422));
            b.cluster.front.rule(refused.by("upgrade-proxy").times(1))
        });
        let mut server = b.server(ns);
        server.volumes = node_has_volumes;
        let policy = Policy::from(&NodePolicy {
            draintimeoutseconds: 60,
            ..NodePolicy::default()
        });
        let (progress, _seen) = watch::channel(Progress::default());
        let (_stop, stopped) = watch::channel(false);
        b.cluster.front.record(true);
        let out = run(&server, &policy, Timestamp::now(), &progress, stopped).await?;
        let seen = b.cluster.front.seen();
        b.cluster.front.record(false);
        if let Some(n) = rule {
            b.cluster.front.unrule(n);
        }
        ensure!(out == Outcome::Drained, "{ns}: {out:?}");
        let mut asked: Vec<String> = seen
            .iter()
            .filter(|s| s.user.contains("upgrade-proxy") && s.resource != "pods/eviction")
            .map(|s| format!("{} {}", s.verb, s.resource))
            .collect();
        asked.sort();
        asked.dedup();
        let mut expected: Vec<&str> = pods.to_vec();
        if volumes {
            expected.insert(0, "list volumeattachments");
            expected.sort_unstable();
        }
        ensure!(asked == expected, "{ns}: {asked:?}, not {expected:?}");
    }
    Ok(())
}

/// KF-R4, KF-R5: a pod with a finalizer: a bounded wait that names it.
async fn finalizer(b: &Bench<'_>) -> Result<()> {
    let held = json!({"metadata": {"ownerReferences": owned_by("ReplicaSet", "rs")["ownerReferences"], "finalizers": ["x.invalid/hold"]}});
    b.node_with("fin", &[("a", held)]).await?;
    let (out, _) = b.drain("fin", 40).await?;
    let Outcome::TimedOut(x) = &out else {
        anyhow::bail!("{out:?}")
    };
    ensure!(
        x[0].reason == Reason::Finalizer && x[0].message.contains("x.invalid/hold"),
        "{x:?}"
    );
    Ok(())
}

/// Preflight changes nothing, and tells what would be in the way.
async fn preflight(b: &Bench<'_>) -> Result<()> {
    let c = b
        .node_with("pre", &[("full", rs()), ("two", rs()), ("free", rs())])
        .await?;
    make_budget(&c, "pre", "full", "full", 0, (1, 1), false).await?;
    make_budget(&c, "pre", "two-a", "two", 1, (2, 1), false).await?;
    make_budget(&c, "pre", "two-b", "two", 1, (2, 1), false).await?;
    let found = b
        .server("pre")
        .preflight(&Policy::from(&NodePolicy::default()), 20)
        .await?;
    let reasons: BTreeMap<&str, bool> = found
        .iter()
        .map(|x| (x.pod.as_str(), x.reason.is_permanent()))
        .collect();
    ensure!(
        reasons == BTreeMap::from([("pre/full", false), ("pre/two", true)]),
        "{found:?}"
    );
    let pods = pods_of(&c, "pre").await?;
    ensure!(pods.len() == 3 && pods.values().all(|dying| !dying), "{pods:?}");
    Ok(())
}

/// drain.ontimeout: delete — what budgets hold is deleted at the end, by a role of its own.
async fn delete_on_timeout(b: &Bench<'_>) -> Result<()> {
    let c = b.node_with("del", &[("a", rs())]).await?;
    make_budget(&c, "del", "a", "a", 0, (1, 1), false).await?;
    let mut server = b.server("del");
    server.client = c;
    let policy = Policy {
        on_timeout: OnDrainTimeout::Delete,
        ..Policy::from(&NodePolicy {
            draintimeoutseconds: 3,
            ..NodePolicy::default()
        })
    };
    let (progress, _seen) = watch::channel(Progress::default());
    let (_stop, stopped) = watch::channel(false);
    let out = run(&server, &policy, Timestamp::now(), &progress, stopped).await?;
    ensure!(out == Outcome::Drained, "{out:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster` runs it"]
async fn drain_on_a_real_server() {
    if !os_e2e::e2e("the drain on a real server") {
        return;
    }
    let ours = User::account(NAMESPACE, "upgrade-proxy");
    let options = Options {
        users: vec![ours.clone()],
        ..Options::default()
    };
    let Some(cluster) = Cluster::start("drain", &options).await.unwrap() else {
        return;
    };
    cluster
        .apply(&os_e2e::cluster::deployed("rbac.yaml").unwrap())
        .await
        .unwrap();
    let _kubelets = kubelets(admin(&cluster).unwrap());
    let b = Bench {
        cluster: &cluster,
        ours: &ours,
    };
    let mut cases = Cases::new(&cluster.front, String::new());
    macro_rules! case {
        ($f:ident) => {
            cases.run(stringify!($f), $f(&b)).await
        };
    }
    case!(answers);
    case!(report_4);
    case!(report_7);
    case!(report_20);
    case!(report_26);
    case!(report_28);
    case!(requests);
    case!(another_uid);
    case!(finalizer);
    case!(preflight);
    case!(delete_on_timeout);
    let mut failed = cases.failures();
    if let Err(e) = oracle(&cluster, &ours).await {
        failed.push(format!("oracle: {e:#}"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
