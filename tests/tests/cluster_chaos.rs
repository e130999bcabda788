//! Whole roll-outs with the real operator (two of them, one leads), real proxies and real agents' servers, while operators,
//! proxies and connections die at random. What must always hold is read from the server's audit log.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use os_e2e::cluster::invariants::{Players, check};
use os_e2e::cluster::players::{
    Task, admin, client, client_at, kubelets, make_node, make_pod, owned_by, wait_for,
};
use os_e2e::cluster::server::User;
use os_e2e::cluster::sim::Sim;
use os_e2e::cluster::{Action, Audit, Call, Cluster, Dice, Options, Rule};
use os_proxy::api::{ANN_CORDONED_BY, OS, OSInstance, condition_type, is_true};
use os_proxy::operator::{LeaseOptions, Options as OperatorOptions, run as run_operator};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODES: usize = 6;
const LIMIT: usize = 2;
/// Calls per node and upgrade, at most, besides evictions: of nodes that are taken over, which costs two more each, and of known
/// ones. Each node carries two pods to evict and one of a DaemonSet.
const ADOPTED: f64 = 29.0;
const KNOWN: f64 = 26.5;
/// A roll-out over six nodes takes half a minute on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(400);

fn rollouts() -> usize {
    std::env::var("SLIPWAY_ROLLOUTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(if std::env::var_os("SLIPWAY_LONG").is_some() {
            200
        } else {
            5
        })
}

struct World {
    cluster: Cluster,
    admin: kube::Client,
    operator: User,
    sims: Vec<Sim>,
    operators: Mutex<Vec<Option<Task>>>,
}

impl World {
    fn start_operator(&self, i: usize) {
        let mut lease = LeaseOptions::new(
            "upgrade-system".into(),
            format!("operator-{i}-{:?}", std::time::Instant::now()),
        );
        lease.duration = Duration::from_secs(6);
        lease.renew = Duration::from_secs(1);
        let options = OperatorOptions::new(lease);
        let c = client(&self.cluster, &self.operator.token, "os-operator").unwrap();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let task = Task::spawn(async move {
            // The sender lives as long as the task.
            let _stop = stop;
            run_operator(c, options, None, stopped).await;
        });
        let mut all = self.operators.lock().unwrap();
        while all.len() <= i {
            all.push(None);
        }
        all[i] = Some(task);
    }

    async fn want(&self, version: &str) -> Result<i64> {
        let body = json!({"apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OS", "metadata": {"name": "fleet"},
            "spec": {"osversion": format!("Slipway {version}"), "opstype": "upgrade", "imagetype": "disk",
                "imageurl": format!("http://images/{version}"), "checksum": Sim::digest(version), "flagSafe": true,
                "mtls": false, "containerimage": "", "evictpodforce": true, "maxunavailable": LIMIT,
                "health": {"readyseconds": 1, "timeout": "120s"}, "drain": {"timeout": "60s"}}});
        let api: Api<OS> = Api::namespaced(self.admin.clone(), "default");
        let os = api
            .patch("fleet", &PatchParams::apply("test").force(), &Patch::Apply(body))
            .await?;
        os.metadata.generation.context("generation")
    }

    async fn os(&self) -> Result<OS> {
        Ok(Api::<OS>::namespaced(self.admin.clone(), "default")
            .get("fleet")
            .await?)
    }

    async fn complete(&self, generation: i64) -> Result<()> {
        let r = wait_for("the end of the roll-out", PATIENCE, || async {
            let s = self.os().await?.status.unwrap_or_default();
            let done = s.observed_generation == Some(generation)
                && is_true(&s.conditions, condition_type::COMPLETE)
                && s.grants.is_empty();
            Ok(done.then_some(()))
        })
        .await;
        match r {
            Ok(()) => Ok(()),
            Err(e) => {
                let i = self
                    .cluster
                    .kubectl(&["get", "os,osinstances,nodes", "-o", "wide"])
                    .await?;
                Err(e.context(format!("{i}\n{:#?}", self.os().await?.status)))
            }
        }
    }

    async fn clean(&self) -> Result<()> {
        let nodes = Api::<Node>::all(self.admin.clone())
            .list(&ListParams::default())
            .await?;
        for n in nodes {
            let name = n.metadata.name.clone().unwrap_or_default();
            ensure!(
                n.spec.and_then(|s| s.unschedulable) != Some(true),
                "{name} is still cordoned"
            );
            ensure!(
                !n.metadata
                    .annotations
                    .unwrap_or_default()
                    .contains_key(ANN_CORDONED_BY),
                "{name}: mark left"
            );
        }
        Ok(())
    }
}

/// Calls per node of one roll-out, without evictions and Leases, and a table of them: who, verb, resource.
fn count_calls(calls: &[Call], users: &[&str]) -> (String, f64) {
    let mut all = 0;
    let mut table = String::new();
    for user in users {
        let mine = calls
            .iter()
            .filter(|c| c.user == *user && c.resource != "pods/eviction" && c.resource != "leases");
        let counts = Audit::counts(mine);
        let sum: usize = counts.values().sum();
        all += sum;
        let rows: Vec<String> = counts.iter().map(|(k, n)| format!("{n} {k}")).collect();
        let name = user.rsplit(':').next().unwrap_or(user);
        table += &format!(
            "\n      {name}: {:.1} per node, {sum} in all: {}",
            sum as f64 / NODES as f64,
            rows.join(", ")
        );
    }
    // What is said how often.
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for c in calls.iter().filter(|c| c.resource == "osinstances/status") {
        let phase = c.request.pointer("/status/phase").and_then(|v| v.as_str());
        *phases.entry(phase.unwrap_or("none")).or_default() += 1;
    }
    table += &format!("\n      status of OSInstances by phase: {phases:?}");
    (table, all as f64 / NODES as f64)
}

/// What an ordinary node carries: two pods that have to go, and one of a DaemonSet, which stays.
async fn fill(w: &World, round: &str) -> Result<()> {
    for (k, _) in w.sims.iter().enumerate() {
        for p in 0..2 {
            let more = json!({"metadata": owned_by("ReplicaSet", "rs")});
            make_pod(
                &w.admin,
                "default",
                &format!("{round}-{k}-{p}"),
                &format!("n{k}"),
                more,
            )
            .await?;
        }
    }
    Ok(())
}

async fn daemonset(w: &World) -> Result<()> {
    let ds: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "net"}, "spec": {
        "selector": {"matchLabels": {"x": "y"}},
        "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}}))?;
    Api::<DaemonSet>::namespaced(w.admin.clone(), "kube-system")
        .create(&PostParams::default(), &ds)
        .await?;
    for (k, _) in w.sims.iter().enumerate() {
        let more = json!({"metadata": owned_by("DaemonSet", "net")});
        make_pod(
            &w.admin,
            "kube-system",
            &format!("net-{k}"),
            &format!("n{k}"),
            more,
        )
        .await?;
    }
    Ok(())
}

async fn chaos(w: Arc<World>, seed: u64) {
    let mut d = Dice::new(seed);
    for code in [409, 429, 500] {
        w.cluster
            .front
            .rule(Rule::on("", "", Action::error(code)).by("upgrade-").per_mille(10));
    }
    w.cluster
        .front
        .rule(Rule::on("", "", Action::CutAfter).by("upgrade-").per_mille(10));
    loop {
        tokio::time::sleep(Duration::from_millis(300 + d.roll(1500))).await;
        match d.roll(6) {
            0 | 1 => w.start_operator(d.roll(2) as usize),
            2 | 3 => w.sims[d.roll(NODES as u64) as usize].start_proxy(),
            4 => w.cluster.front.cut_all(),
            _ => {
                w.cluster.front.down(true);
                tokio::time::sleep(Duration::from_millis(500 + d.roll(2000))).await;
                w.cluster.front.down(false);
            }
        }
    }
}

async fn story(w: &Arc<World>, proxy: &str) -> Result<()> {
    // Two calm roll-outs first, counted: one that takes the nodes over, one over nodes that are known.
    let users = [proxy, w.operator.name.as_str()];
    daemonset(w).await?;
    for (story, version, most) in [("taken over", "2", ADOPTED), ("known", "3", KNOWN)] {
        fill(w, &format!("calm{version}")).await?;
        let before = w.cluster.audit()?.calls.len();
        let g = w.want(version).await?;
        w.complete(g).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let audit = w.cluster.audit()?;
        let (table, per_node) = count_calls(&audit.calls[before..], &users);
        println!("    calm, nodes {story}: {per_node:.1} calls per node and upgrade{table}");
        w.clean().await?;
        ensure!(per_node <= most, "{per_node:.1} calls, more than {most}{table}");
    }
    let audit = w.cluster.audit()?;
    // Quiet: nothing but Leases is written.
    let quiet = audit.calls.len();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let audit = w.cluster.audit()?;
    let writes: Vec<&Call> = audit.calls[quiet..]
        .iter()
        .filter(|c| users.contains(&c.user.as_str()) && c.is_write() && c.resource != "leases")
        .collect();
    ensure!(writes.is_empty(), "I8: {writes:?}");

    let n = rollouts();
    for i in 1..=n {
        let version = ["2", "3"][(i - 1) % 2];
        fill(w, &format!("r{i}")).await?;
        let boots: Vec<u32> = w.sims.iter().map(Sim::boots).collect();
        let g = w.want(version).await?;
        {
            let _storm = Task::spawn(chaos(Arc::clone(w), i as u64));
            tokio::time::sleep(Duration::from_secs(25)).await;
        }
        w.cluster.front.clear();
        for k in 0..2 {
            w.start_operator(k);
        }
        for s in &w.sims {
            s.start_proxy();
        }
        w.complete(g).await?;
        w.clean().await?;
        let rebooted: Vec<u32> = w.sims.iter().zip(&boots).map(|(s, b)| s.boots() - b).collect();
        let who = Players {
            proxy,
            operator: &w.operator.name,
        };
        let seen = check(&w.cluster.audit()?, who, LIMIT)?;
        let (grants, most) = (seen.grants, seen.most_down);
        println!(
            "    roll-out {i} to {version}: reboots {rebooted:?}, {grants} grants so far, at most {most} of {LIMIT} nodes down at once"
        );
        ensure!(rebooted.iter().all(|r| *r >= 1), "every node was updated");
        let total: u32 = w.sims.iter().map(Sim::boots).sum();
        ensure!(
            total as usize <= grants,
            "I9: {total} reboots under {grants} grants"
        );
    }
    for i in Api::<OSInstance>::namespaced(w.admin.clone(), "default")
        .list(&ListParams::default())
        .await?
    {
        ensure!(
            i.metadata.finalizers.unwrap_or_default().is_empty(),
            "a finalizer is left"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster-more` runs it"]
async fn rollouts_while_everything_dies() {
    if !os_e2e::e2e("roll-outs while everything dies") {
        return;
    }
    let proxy = User::account("upgrade-system", "upgrade-proxy");
    let operator = User::account("upgrade-system", "upgrade-operator");
    let options = Options {
        users: vec![proxy.clone(), operator.clone()],
        ..Options::default()
    };
    let Some(cluster) = Cluster::start("chaos", &options).await.unwrap() else {
        return;
    };
    cluster.install().await.unwrap();
    let admin = admin(&cluster).unwrap();
    let _kubelets = kubelets(admin.clone());
    let mut sims = Vec::new();
    for i in 0..NODES {
        let name = format!("n{i}");
        make_node(&admin, &name, "none", "Slipway 1").await.unwrap();
        let (url, token) = (cluster.front.url(), proxy.token.clone());
        let c = Box::new(move || client_at(&url, &token, "os-proxy").unwrap());
        let sim = Sim::start(&name, cluster.dir(), admin.clone(), c).await.unwrap();
        sim.start_proxy();
        sims.push(sim);
    }
    let w = Arc::new(World {
        cluster,
        admin,
        operator,
        sims,
        operators: Mutex::default(),
    });
    for i in 0..2 {
        w.start_operator(i);
    }
    if let Err(e) = story(&w, &proxy.name).await {
        panic!("{e:#}");
    }
}
