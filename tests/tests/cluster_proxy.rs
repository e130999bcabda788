//! One node's way through updates on a real kube-apiserver: the real proxy, the real agent's server over an in-memory machine.
//! The test plays the operator by hand: it writes the ledger and the orders, in the order that the operator must keep.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use os_agent::testing::Fate;
use os_e2e::cluster::players::{
    admin, client_at, kubelets, make_budget, make_node, make_pod, owned_by, pods_of, wait_for,
};
use os_e2e::cluster::server::User;
use os_e2e::cluster::sim::Sim;
use os_e2e::cluster::{Action, Audit, Cases, Cluster, Options, Rule};
use os_proxy::api::{
    ANN_CORDONED_BY, Desired, INSTANCE_NAMESPACE, LABEL_UPGRADING, OS, OSInstance, OsInstanceStatus, Outcome,
    Phase,
};
use serde_json::{Value, json};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

struct Bench {
    cluster: Cluster,
    admin: kube::Client,
    ours: User,
}

impl Bench {
    /// The next read of this OS object takes so long.
    fn slow_os(&self, name: &str, time: Duration) {
        self.cluster
            .front
            .rule(Rule::on("get", "os", Action::Delay(time)).named(name).times(1));
    }
}

fn policy() -> Value {
    json!({"draintimeoutseconds": 60, "readyseconds": 1, "healthtimeoutseconds": 60, "volumedetachtimeoutseconds": 5,
        "deleteemptydirdata": true, "evictunmanagedpods": true})
}

/// One node and its hand-made operator.
struct Story<'a> {
    b: &'a Bench,
    node: String,
    sim: Sim,
    attempt: u32,
    policy: Value,
}

impl<'a> Story<'a> {
    async fn new(b: &'a Bench, node: &str) -> Result<Story<'a>> {
        make_node(&b.admin, node, "none", "Slipway 1").await?;
        for i in 0..3 {
            let more = json!({"metadata": owned_by("ReplicaSet", "rs")});
            make_pod(&b.admin, "default", &format!("{node}-{i}"), node, more).await?;
        }
        let os: OS = serde_json::from_value(
            json!({"apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OS",
            "metadata": {"name": node}, "spec": {"osversion": "Slipway 2", "opstype": "upgrade", "maxunavailable": 1}}),
        )?;
        Api::<OS>::namespaced(b.admin.clone(), "default")
            .create(&PostParams::default(), &os)
            .await?;
        let (config, token) = (b.cluster.front.url(), b.ours.token.clone());
        let proxy = Box::new(move || client_at(&config, &token, "os-proxy").expect("a client"));
        let sim = Sim::start(node, b.cluster.dir(), b.admin.clone(), proxy).await?;
        let s = Story {
            b,
            node: node.to_owned(),
            sim,
            attempt: 0,
            policy: policy(),
        };
        let i: OSInstance = serde_json::from_value(
            json!({"apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OSInstance",
            "metadata": {"name": node}, "spec": {"nodestatus": "idle", "desired": "Idle"}}),
        )?;
        s.instances().create(&PostParams::default(), &i).await?;
        Ok(s)
    }

    fn instances(&self) -> Api<OSInstance> {
        Api::namespaced(self.b.admin.clone(), INSTANCE_NAMESPACE)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.b.admin.clone())
    }

    async fn report(&self) -> Result<OsInstanceStatus> {
        Ok(self.instances().get(&self.node).await?.status.unwrap_or_default())
    }

    async fn order(&self, spec: Value) -> Result<()> {
        let mut body = json!({"spec": {"policy": self.policy, "namespacedname": {"name": self.node, "namespace": "default"}}});
        os_e2e::cluster::players::merge(&mut body["spec"], spec);
        let params = PatchParams::default();
        self.instances()
            .patch(&self.node, &params, &Patch::Merge(body))
            .await?;
        Ok(())
    }

    fn target(version: &str) -> Value {
        json!({"version": format!("Slipway {version}"), "digest": Sim::digest(version), "kind": "upgrade",
            "source": {"url": format!("http://images/{version}"), "allowhttp": true}})
    }

    async fn stage(&self, version: &str, op: &str) -> Result<()> {
        self.order(json!({"desired": "Stage", "opid": op, "target": Self::target(version)}))
            .await
    }

    async fn wait_phase(&self, phase: Phase) -> Result<OsInstanceStatus> {
        let what = format!("{}: phase {phase:?}", self.node);
        let r = wait_for(&what, LIMIT, || async {
            let r = self.report().await?;
            Ok((r.phase == phase).then_some(r))
        })
        .await;
        match r {
            Ok(r) => Ok(r),
            Err(e) => Err(e.context(format!("{:#?}", self.report().await?))),
        }
    }

    /// Ledger first, then the order, as the operator must.
    async fn grant(&mut self, version: &str, op: &str, secs: i64) -> Result<()> {
        self.attempt += 1;
        let now = Timestamp::now();
        let not_after = now.checked_add(SignedDuration::from_secs(secs))?;
        let node = self.nodes().get(&self.node).await?;
        let api: Api<OS> = Api::namespaced(self.b.admin.clone(), "default");
        let grant = json!({"status": {"grants": [{"node": self.node, "nodeUID": node.metadata.uid, "kind": "upgrade",
            "attempt": self.attempt, "grantedAt": now, "notAfter": not_after, "epoch": 1}]}});
        let os = api
            .patch_status(&self.node, &PatchParams::default(), &Patch::Merge(grant))
            .await?;
        ensure!(
            os.status.is_some_and(|s| s.grants.len() == 1),
            "the ledger was pruned"
        );
        self.order(
            json!({"desired": "Boot", "opid": op, "attempt": self.attempt, "osuid": os.metadata.uid,
            "expectbootid": self.sim.boot_id(), "target": Self::target(version),
            "grant": {"epoch": 1, "grantedat": now, "notafter": not_after}}),
        )
        .await
    }

    async fn revoke(&self) -> Result<()> {
        let api: Api<OS> = Api::namespaced(self.b.admin.clone(), "default");
        let none = json!({"status": {"grants": null}});
        api.patch_status(&self.node, &PatchParams::default(), &Patch::Merge(none))
            .await?;
        Ok(())
    }

    async fn result(&self, op: &str) -> Result<OsInstanceStatus> {
        let r = wait_for(&format!("{}: the end of {op}", self.node), LIMIT, || async {
            let r = self.report().await?;
            Ok(r.last_result.as_ref().is_some_and(|x| x.op_id == op).then_some(r))
        })
        .await;
        match r {
            Ok(r) => Ok(r),
            Err(e) => Err(e.context(format!(
                "{:#?}\n{:?}",
                self.report().await?,
                self.sim.machine().status()
            ))),
        }
    }

    /// The attempt of the grant `op` was given up before the boot, and nothing is left of it; its report.
    async fn given_up(&self, op: &str) -> Result<OsInstanceStatus> {
        let r = self.result(op).await?;
        let outcome = r.last_result.as_ref().map(|x| x.outcome);
        ensure!(outcome == Some(Outcome::Aborted), "{op}: {r:#?}");
        ensure!(self.sim.boots() == 0, "{op}: {} boots", self.sim.boots());
        let cordon = self.cordon().await?;
        ensure!(cordon == (false, None), "{op}: {cordon:?}");
        Ok(r)
    }

    /// Cordoned, by whom.
    async fn cordon(&self) -> Result<(bool, Option<String>)> {
        let n = self.nodes().get(&self.node).await?;
        let by = n
            .metadata
            .annotations
            .and_then(|a| a.get(ANN_CORDONED_BY).cloned());
        Ok((n.spec.and_then(|s| s.unschedulable).unwrap_or(false), by))
    }

    async fn staged(&self, version: &str) -> Result<()> {
        self.stage(version, &format!("{}-stage-{version}", self.node))
            .await?;
        self.wait_phase(Phase::Staged).await.map(drop)
    }
}

fn own_calls<'a>(
    audit: &'a Audit,
    user: &'a str,
    node: &'a str,
    from: &'a str,
) -> impl Iterator<Item = &'a os_e2e::cluster::Call> {
    audit.of(user).filter(move |c| {
        c.at.as_str() > from
            && (c.name == node
                || c.uri.contains(node)
                || c.name.starts_with(&format!("{node}-"))
                || c.name.is_empty())
    })
}

/// The whole way, with the numbers: at most 21 calls of the proxy besides evictions, none when quiet.
async fn upgrade(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "plain").await?;
    let from = Timestamp::now().to_string();
    s.sim.start_proxy();
    s.staged("2").await?;
    ensure!(s.cordon().await? == (false, None), "staging touches no cordon");
    s.grant("2", "plain-1", 120).await?;
    let r = s.result("plain-1").await?;
    ensure!(
        r.last_result.as_ref().is_some_and(|x| x.outcome == Outcome::Done),
        "{r:#?}"
    );
    ensure!(s.cordon().await? == (false, None));
    ensure!(s.sim.boots() == 1, "{} boots", s.sim.boots());
    let label = s.nodes().get("plain").await?.metadata.labels.unwrap_or_default();
    ensure!(!label.contains_key(LABEL_UPGRADING));
    ensure!(
        r.agent.as_ref().is_some_and(|a| a.runs(&Sim::digest("2"))),
        "{r:#?}"
    );
    ensure!(pods_of(&b.admin, "plain").await?.is_empty());
    // The release, then quiet.
    s.revoke().await?;
    s.order(json!({"desired": "Idle"})).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let audit = b.cluster.audit()?;
    let calls: Vec<_> = own_calls(&audit, &b.ours.name, "plain", &from).cloned().collect();
    let counted: Vec<_> = calls.iter().filter(|c| c.resource != "pods/eviction").collect();
    let counts = Audit::counts(counted.iter().copied());
    println!(
        "    calls of the proxy for one upgrade, without {} evictions: {} {counts:?}",
        calls.len() - counted.len(),
        counted.len()
    );
    ensure!(counted.len() <= 21, "{counts:?}");
    ensure!(
        calls
            .iter()
            .filter(|c| c.resource == "pods/eviction")
            .all(|c| c.ok() || c.is_dry())
    );
    let before = calls.len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let audit = b.cluster.audit()?;
    ensure!(
        own_calls(&audit, &b.ours.name, "plain", &from).count() == before,
        "quiet means no calls"
    );
    Ok(())
}

/// Broken image: the agent comes back on the old one; said, denied, uncordoned (R6).
async fn falls_back(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "bad").await?;
    s.sim.fate("2", Fate::Panics("Kernel panic - not syncing".into()));
    s.sim.start_proxy();
    s.staged("2").await?;
    s.grant("2", "bad-1", 120).await?;
    let r = s.result("bad-1").await?;
    let x = r.last_result.clone().context("result")?;
    ensure!(
        x.outcome == Outcome::RolledBack && x.reason == "RolledBack",
        "{x:?}"
    );
    ensure!(
        r.phase == Phase::Failed && s.cordon().await? == (false, None),
        "{r:#?}"
    );
    ensure!(
        s.sim.boots() == 1,
        "one reboot was asked for, {} seen",
        s.sim.boots()
    );
    Ok(())
}

/// A foreign cordon survives (R5, report 17, KF-R7), also one that comes between our read and our patch.
async fn foreign_cordon(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "foreign").await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    // The OS object is read right before the cordon: while that takes its time, a human is faster.
    b.slow_os("foreign", Duration::from_secs(3));
    s.grant("2", "foreign-1", 120).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    b.cluster.kubectl(&["cordon", "foreign"]).await?;
    let r = s.result("foreign-1").await?;
    ensure!(
        r.last_result.as_ref().is_some_and(|x| x.outcome == Outcome::Done),
        "{r:#?}"
    );
    ensure!(
        s.cordon().await? == (true, None),
        "the human's cordon is still there"
    );
    let audit = b.cluster.audit()?;
    let lifted = audit
        .of(&b.ours.name)
        .filter(|c| c.name == "foreign" && c.resource == "nodes" && c.ok())
        .any(|c| c.request.pointer("/spec/unschedulable").is_some());
    ensure!(!lifted, "the proxy never wrote unschedulable");
    Ok(())
}

/// Report 3, R9: a budget of 0 holds the drain: reported, given back at the time limit, no reboot.
async fn blocked(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "blocked").await?;
    make_budget(&b.admin, "default", "blocked", "blocked-0", 0, (1, 1), false).await?;
    s.policy["draintimeoutseconds"] = json!(6);
    s.sim.start_proxy();
    s.staged("2").await?;
    s.grant("2", "blocked-1", 120).await?;
    let r = wait_for("the report", LIMIT, || async {
        let r = s.report().await?;
        Ok(r.drain
            .as_ref()
            .is_some_and(|d| !d.blocked_by.is_empty() && r.phase == Phase::Draining)
            .then_some(r))
    })
    .await?;
    let by = &r.drain.as_ref().context("drain")?.blocked_by[0];
    ensure!(
        by.pod == "default/blocked-0"
            && by.pdb.as_deref() == Some("default/blocked")
            && by.reason == "PDBAtLimit",
        "{by:?}"
    );
    let r = s.given_up("blocked-1").await?;
    let why = r.last_result.as_ref().map(|x| x.reason.as_str());
    ensure!(why == Some("DrainTimeout") && r.next_retry.is_some(), "{r:#?}");
    let events = b
        .cluster
        .kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])
        .await?;
    ensure!(events.contains("DrainBlocked"), "{events}");
    Ok(())
}

/// R3, report 20: errors at every call before Boot; Boot is never called.
async fn no_boot_after_errors(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "errors").await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    // The last one lets the drain end well, by its watch: then the look before Boot fails.
    for (i, (verb, resource)) in [("create", "pods/eviction"), ("get", "os"), ("list", "pods")]
        .into_iter()
        .enumerate()
    {
        s.policy["draintimeoutseconds"] = json!(4);
        let n = b
            .cluster
            .front
            .rule(Rule::on(verb, resource, Action::error(500)).by("upgrade-proxy"));
        let op = format!("errors-{i}");
        s.grant("2", &op, 8).await?;
        let r = s.given_up(&op).await;
        b.cluster.front.unrule(n);
        r.with_context(|| format!("{verb} {resource}"))?;
    }
    Ok(())
}

/// The ledger decides: an order without a grant in it touches nothing.
async fn no_grant_no_cordon(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "nogrant").await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    b.slow_os("nogrant", Duration::from_secs(2));
    s.grant("2", "nogrant-1", 60).await?;
    s.revoke().await?;
    let r = s.result("nogrant-1").await?;
    ensure!(
        r.last_result.as_ref().is_some_and(|x| x.reason == "GrantGone"),
        "{r:#?}"
    );
    ensure!(s.cordon().await? == (false, None) && pods_of(&b.admin, "nogrant").await?.len() == 3);
    Ok(())
}

/// The order is withdrawn at the last moment, when the drain is over and all reads before Boot are done: the answer to the
/// status write shows it, and the agent is not asked.
async fn withdrawn_at_the_last_moment(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "late").await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    let slow = Rule::on(
        "patch",
        "osinstances/status",
        Action::Delay(Duration::from_secs(6)),
    );
    // The first status write of the order says Draining, the second one Rebooting.
    let n = b.cluster.front.rule(slow.named("late").after(1).times(1));
    b.cluster.front.record(true);
    s.grant("2", "late-1", 120).await?;
    wait_for("the write of phase Rebooting on its way", LIMIT, || async {
        let seen = b.cluster.front.seen();
        let writes = seen
            .iter()
            .filter(|x| x.resource == "osinstances/status" && x.name == "late");
        Ok((writes.count() >= 2).then_some(()))
    })
    .await?;
    b.cluster.front.record(false);
    s.order(json!({"desired": format!("{:?}", Desired::Abort)}))
        .await?;
    let r = s.given_up("late-1").await;
    b.cluster.front.unrule(n);
    r?;
    let audit = b.cluster.audit()?;
    let said = audit
        .of(&b.ours.name)
        .filter(|c| c.name == "late" && c.resource == "osinstances/status")
        .any(|c| c.request.pointer("/status/phase") == Some(&json!("Rebooting")));
    ensure!(said, "the case is about the write of phase Rebooting");
    Ok(())
}

/// R4: the connection breaks and the proxy dies at its n-th call, for every n: converges, one reboot, no cordon left.
async fn killed_at_every_call(b: &Bench) -> Result<()> {
    let most = if std::env::var_os("SLIPWAY_LONG").is_some() {
        40
    } else {
        12
    };
    let step = if most == 40 { 1 } else { 3 };
    let mut reached = 0;
    for n in (0..most * step).step_by(step as usize) {
        let name = format!("kill{n}");
        let mut s = Story::new(b, &name).await?;
        let action = if n % 2 == 0 { Action::Cut } else { Action::CutAfter };
        // Only this node's calls pass while it is the only one with a proxy.
        let rule = b
            .cluster
            .front
            .rule(Rule::on("", "", action).by("upgrade-proxy").after(n).times(1));
        b.cluster.front.record(true);
        s.sim.start_proxy();
        let killer = async {
            // The proxy dies soon after the broken call, wherever it is then.
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if b.cluster
                    .front
                    .seen()
                    .iter()
                    .filter(|x| x.user.contains("upgrade-proxy"))
                    .count() as u64
                    > n
                {
                    s.sim.start_proxy();
                    std::future::pending::<()>().await;
                }
            }
        };
        let name2 = name.clone();
        let told = async {
            s.stage("2", &format!("{name2}-s")).await?;
            s.wait_phase(Phase::Staged).await
        };
        tokio::select! {
            r = told => { r?; }
            () = killer => {}
        }
        s.grant("2", &name, 150).await?;
        let s = &s;
        let killer = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if b.cluster
                    .front
                    .seen()
                    .iter()
                    .filter(|x| x.user.contains("upgrade-proxy"))
                    .count() as u64
                    > n
                {
                    s.sim.start_proxy();
                    std::future::pending::<()>().await;
                }
            }
        };
        let r = tokio::select! {
            r = s.result(&name) => r?,
            () = killer => OsInstanceStatus::default(),
        };
        let total = b
            .cluster
            .front
            .seen()
            .iter()
            .filter(|x| x.user.contains("upgrade-proxy"))
            .count() as u64;
        b.cluster.front.unrule(rule);
        b.cluster.front.record(false);
        reached += u64::from(total > n);
        ensure!(
            r.last_result.as_ref().is_some_and(|x| x.outcome == Outcome::Done),
            "call {n}: {r:#?}"
        );
        ensure!(
            s.sim.boots() == 1 && s.cordon().await? == (false, None),
            "call {n}: {} boots",
            s.sim.boots()
        );
        s.sim.kill_proxy();
    }
    println!("    killed at {reached} different calls");
    ensure!(reached >= 3, "the kills came too late: {reached}");
    Ok(())
}

/// The API is away after the boot: nothing is rolled back, the gate waits (invariant of `onapiunreachable: keep`).
async fn api_away_after_the_boot(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "away").await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    s.grant("2", "away-1", 120).await?;
    wait_for("the boot", LIMIT, || async {
        Ok((s.sim.boots() == 1).then_some(()))
    })
    .await?;
    b.cluster.front.down(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    b.cluster.front.down(false);
    let r = s.result("away-1").await?;
    ensure!(
        r.last_result.as_ref().is_some_and(|x| x.outcome == Outcome::Done),
        "{r:#?}"
    );
    ensure!(s.sim.boots() == 1);
    Ok(())
}

/// Report 21: the grant's time ends during the drain.
async fn window_closes(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "window").await?;
    make_budget(&b.admin, "default", "window", "window-0", 0, (1, 1), false).await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    s.grant("2", "window-1", 5).await?;
    let r = s.result("window-1").await?;
    ensure!(
        r.last_result.as_ref().is_some_and(|x| x.reason == "GrantExpired"),
        "{r:#?}"
    );
    ensure!(s.sim.boots() == 0 && s.cordon().await? == (false, None));
    Ok(())
}

/// KF-R14: the order is withdrawn while the node drains.
async fn withdrawn(b: &Bench) -> Result<()> {
    let mut s = Story::new(b, "withdrawn").await?;
    make_budget(&b.admin, "default", "withdrawn", "withdrawn-0", 0, (1, 1), false).await?;
    s.sim.start_proxy();
    s.staged("2").await?;
    s.grant("2", "withdrawn-1", 100).await?;
    s.wait_phase(Phase::Draining).await?;
    s.order(json!({"desired": format!("{:?}", Desired::Abort)}))
        .await?;
    s.given_up("withdrawn-1").await?;
    Ok(())
}

/// KF-R11: a wrong checksum: visible, terminal, no cordon (R2).
async fn wrong_checksum(b: &Bench) -> Result<()> {
    let s = Story::new(b, "sum").await?;
    s.sim.start_proxy();
    let mut t = Story::target("2");
    t["digest"] = json!("00".repeat(32));
    s.order(json!({"desired": "Stage", "opid": "sum-1", "target": t}))
        .await?;
    let r = s.wait_phase(Phase::Failed).await?;
    ensure!(
        r.failure.as_ref().is_some_and(|x| x.reason == "DigestMismatch"),
        "{r:#?}"
    );
    ensure!(s.cordon().await? == (false, None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster` runs it"]
async fn a_nodes_way_through_updates() {
    if !os_e2e::e2e("a node's way through updates") {
        return;
    }
    let ours = User::account("upgrade-system", "upgrade-proxy");
    let options = Options {
        users: vec![ours.clone()],
        ..Options::default()
    };
    let Some(cluster) = Cluster::start("proxy", &options).await.unwrap() else {
        return;
    };
    cluster.install().await.unwrap();
    let b = Bench {
        admin: admin(&cluster).unwrap(),
        cluster,
        ours,
    };
    let _kubelets = kubelets(b.admin.clone());
    let only = std::env::var("SLIPWAY_CASE").unwrap_or_default();
    let mut cases = Cases::new(&b.cluster.front, only);
    macro_rules! case {
        ($f:ident) => {
            cases.run(stringify!($f), $f(&b)).await
        };
    }
    case!(upgrade);
    case!(falls_back);
    case!(foreign_cordon);
    case!(blocked);
    case!(no_grant_no_cordon);
    case!(no_boot_after_errors);
    case!(api_away_after_the_boot);
    case!(window_closes);
    case!(withdrawn);
    case!(withdrawn_at_the_last_moment);
    case!(wrong_checksum);
    case!(killed_at_every_call);
    let failed = cases.failures();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
