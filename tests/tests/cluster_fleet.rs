//! The program os-operator with its defaults and the shipped rights over many simulated nodes on a real kube-apiserver: memory,
//! requests, the limit at every instant, the time it takes, and silence afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::Api;
use os_e2e::cluster::fleet::{Fleet, Pace};
use os_e2e::cluster::invariants::{Players, check};
use os_e2e::cluster::operator::{Program, account, proxy_account};
use os_e2e::cluster::players::{admin, client, wait_for};
use os_e2e::cluster::{Audit, Call, Cluster, Options};
use os_proxy::api::{OS, is_true};
use serde_json::json;
use std::time::{Duration, Instant};

/// The operator's own cap on requests, and ten Stage orders per second: what its defaults say.
const CAP: f64 = 50.0;
const PACE: Pace = Pace {
    stage: Duration::from_millis(200),
    boot: Duration::from_secs(2),
};
const MOST_KIB: u64 = 150 * 1024;

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_millisecond() - from.as_millisecond()) as f64 / 1000.0
}

/// Calls by verb and resource, with their number per node.
fn counted<'a>(calls: impl Iterator<Item = &'a Call>, nodes: usize) -> (f64, String) {
    let counts = Audit::counts(calls);
    let total: usize = counts.values().sum();
    let list: Vec<String> = counts.iter().map(|(k, n)| format!("{n} {k}")).collect();
    (total as f64 / nodes as f64, list.join(", "))
}

async fn roll_out(nodes: usize, quiet: Duration) -> Result<()> {
    let options = Options {
        users: vec![account(), proxy_account()],
        ..Options::default()
    };
    let Some(cluster) = Cluster::start(&format!("fleet{nodes}"), &options).await? else {
        return Ok(());
    };
    cluster.install().await?;
    let admin = admin(&cluster)?;
    let player = client(&cluster, &proxy_account().token, "player")?;
    let fleet = Fleet::start(admin.clone(), player, PACE);
    let begun = Instant::now();
    futures_util::stream::iter((0..nodes).map(|i| format!("n{i:04}")))
        .map(Ok)
        .try_for_each_concurrent(8, |name| {
            let fleet = &fleet;
            async move { fleet.add(&name, "fleet").await.map(drop) }
        })
        .await?;
    println!(
        "    {nodes} Nodes created in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    let limit = (nodes * 5 / 100).max(1);
    let program = Program::start(&cluster).await?;
    let idle = program.peak_kib()?;

    let from = Timestamp::now();
    cluster
        .apply(
            &json!({"apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OS",
            "metadata": {"name": "fleet", "namespace": "default"},
            "spec": {"osversion": "Slipway 2", "opstype": "upgrade", "imagetype": "disk",
                "imageurl": "https://images.example/2/update.img", "checksum": "bb".repeat(32), "maxunavailable": "5%",
                "evictpodforce": true, "nodeselector": "fleet"}})
            .to_string(),
        )
        .await?;
    let api: Api<OS> = Api::namespaced(admin.clone(), "default");
    // Staging alone takes a tenth of a second per node.
    let patience = Duration::from_secs(300 + nodes as u64);
    let end = wait_for("the end of the roll-out", patience, || async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let os = api.get("fleet").await?;
        let s = os.status.clone().unwrap_or_default();
        let done = is_true(&s.conditions, "Complete") && s.grants.is_empty();
        Ok(done.then_some(s))
    })
    .await;
    let to = Timestamp::now();
    let status = match end {
        Ok(s) => s,
        Err(e) => {
            let s = api.get("fleet").await?.status;
            return Err(e.context(format!("{s:#?}\n{}", program.log())));
        }
    };
    ensure!(
        status.progress == Some(format!("{nodes}/{nodes}")),
        "{:?}",
        status.progress
    );
    let boots = fleet.boots("n");
    ensure!(
        boots.len() == nodes && boots.iter().all(|b| *b == 1),
        "not one reboot each"
    );
    let peak = program.peak_kib()?;

    // The log: who asked for what.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let audit = cluster.audit()?;
    let (proxy, operator) = (proxy_account(), account());
    let who = Players {
        proxy: &proxy.name,
        operator: &operator.name,
    };
    let seen = check(&audit, who, limit)?;
    ensure!(seen.grants == nodes, "{} grants for {nodes} nodes", seen.grants);
    let began = from.to_string();
    let ours: Vec<&Call> = audit
        .of(&operator.name)
        .filter(|c| c.at > began && c.resource != "leases")
        .collect();
    let refused = ours.iter().filter(|c| c.code == 403).count();
    ensure!(refused == 0, "{refused} requests of the operator were refused");
    let (per_node, list) = counted(ours.into_iter(), nodes);
    let (by_player, _) = counted(audit.of(&proxy.name).filter(|c| c.at > began), nodes);
    let took = seconds(from, to);
    // What no operator could beat: rounds of nodes that go down together, and the cap on its own requests.
    let rounds = (nodes.div_ceil(limit)) as f64 * PACE.boot.as_secs_f64();
    let capped = per_node * nodes as f64 / CAP;
    println!(
        "    {nodes} nodes, limit {limit}: makespan {took:.0} s (rounds of boots alone {rounds:.0} s, {per_node:.1} calls per node \
         at {CAP:.0}/s {capped:.0} s, 10 Stage orders per second {:.0} s)",
        nodes as f64 / 10.0
    );
    println!(
        "    never more than {} of {limit} nodes down, {} writes of the ledger",
        seen.most_down, seen.ledgers
    );
    println!("    the operator's calls: {list}; the player's {by_player:.1} per node");
    println!("    os-operator: resident {idle} KiB at first, at most {peak} KiB (unoptimised build)");
    ensure!(peak <= MOST_KIB, "{peak} KiB resident, more than 150 MiB");
    ensure!(per_node <= 6.5, "{per_node} calls of the operator per node");

    // Quiet: nothing is written but the Lease.
    let before = audit.calls.len();
    tokio::time::sleep(quiet).await;
    let after = cluster.audit()?;
    let writes: Vec<&Call> = after.calls[before..]
        .iter()
        .filter(|c| c.is_write() && c.user != "test-admin" && c.resource != "leases")
        .collect();
    ensure!(writes.is_empty(), "I8: {writes:?}");
    let asked = after.calls[before..].iter().filter(|c| c.user == operator.name);
    let renewed = asked.filter(|c| c.resource == "leases" && c.is_write()).count();
    println!(
        "    {} s of quiet: {renewed} renewals of the Lease, no other write",
        quiet.as_secs()
    );
    ensure!(renewed > 0, "the log shows no renewal at all");
    let (code, metrics) = program.page("/metrics").await?;
    ensure!(
        code == 200 && metrics.contains("os_operator_leader 1"),
        "{metrics}"
    );
    program.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster` runs it"]
async fn two_hundred_nodes() {
    if os_e2e::e2e("two hundred nodes") {
        roll_out(200, Duration::from_secs(30)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster-more` runs it"]
async fn a_thousand_nodes() {
    if os_e2e::e2e("a thousand nodes") {
        // SLIPWAY_NODES=5000: the envelope.
        let nodes = std::env::var("SLIPWAY_NODES").ok().and_then(|n| n.parse().ok());
        roll_out(nodes.unwrap_or(1000), Duration::from_secs(60))
            .await
            .unwrap();
    }
}
