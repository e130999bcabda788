//! The real os-operator against a real kube-apiserver, with the rights of `proxy/deploy/rbac.yaml` and no others: bad input, and
//! what it must never do about it. Nodes are played, except where the agent's own answer matters.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use os_e2e::cluster::fleet::{Fate, Fleet, OLD_DIGEST, Pace};
use os_e2e::cluster::operator::{Operator, account, proxy_account};
use os_e2e::cluster::players::{admin, client, client_at, kubelets, make_node, make_pod, owned_by, wait_for};
use os_e2e::cluster::server::User;
use os_e2e::cluster::sim::Sim;
use os_e2e::cluster::{Cases, Cluster, Options, deployed, invariants};
use os_proxy::api::{
    ANN_CORDONED_BY, FINALIZER_OS, LABEL_INSTANCE_NODE, LABEL_NODE_SELECTOR, OS, OSInstance, condition,
    is_true,
};
use os_proxy::operator::plan;
use serde_json::{Value, json};
use std::time::Duration;

const V2: &str = "Slipway 2";
const DIGEST: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
/// Generous: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(180);
/// Long enough for a storm to show itself.
const CALM: Duration = Duration::from_secs(6);

struct Bed {
    cluster: Cluster,
    admin: Client,
    fleet: Fleet,
}

/// An upgrade of one pool as JSON, which is YAML.
fn manifest(name: &str, change: Value) -> String {
    let mut os = json!({
        "apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OS", "metadata": {"name": name, "namespace": "default"},
        "spec": {"osversion": V2, "opstype": "upgrade", "imagetype": "disk", "imageurl": "https://images.example/2/update.img",
            "checksum": DIGEST, "maxunavailable": 1, "evictpodforce": true, "nodeselector": name,
            "health": {"readyseconds": 1, "timeout": "120s"}},
    });
    for (k, v) in change.as_object().into_iter().flatten() {
        match v {
            Value::Null => {
                os["spec"].as_object_mut().unwrap().remove(k);
            }
            v => os["spec"][k] = v.clone(),
        }
    }
    os.to_string()
}

/// Status, reason and message of a condition; empty where there is none yet.
fn cond(os: &OS, type_: &str) -> (bool, String, String) {
    let all = os
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
    condition(all, type_).map_or((false, String::new(), String::new()), |c| {
        (c.status == "True", c.reason.clone(), c.message.clone())
    })
}

fn done(os: &OS) -> bool {
    os.status.as_ref().is_some_and(|s| {
        is_true(&s.conditions, "Complete")
            && s.observed_generation == os.metadata.generation
            && s.grants.is_empty()
    })
}

impl Bed {
    fn os(&self) -> Api<OS> {
        Api::namespaced(self.admin.clone(), "default")
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.admin.clone())
    }

    fn instances(&self) -> Api<OSInstance> {
        Api::namespaced(self.admin.clone(), "default")
    }

    async fn operator(&self, name: &str) -> Result<Operator> {
        Operator::start(&self.cluster, name).await
    }

    async fn pool(&self, pool: &str, count: usize) -> Result<()> {
        for i in 0..count {
            self.fleet.add(&format!("{pool}-{i}"), pool).await?;
        }
        Ok(())
    }

    async fn wait(&self, name: &str, what: &str, good: impl Fn(&OS) -> bool) -> Result<OS> {
        let r = wait_for(&format!("OS {name}: {what}"), LIMIT, || async {
            Ok(self.os().get_opt(name).await?.filter(|o| good(o)))
        })
        .await;
        match r {
            Ok(os) => Ok(os),
            Err(e) => Err(e.context(format!(
                "{:#?}",
                self.os().get_opt(name).await?.and_then(|o| o.status)
            ))),
        }
    }

    /// Waits for a condition of this status and reason, and gives its message.
    async fn wait_cond(&self, name: &str, type_: &str, status: bool, reason: &str) -> Result<String> {
        let os = self
            .wait(name, &format!("{type_}={status}/{reason}"), |o| {
                let c = cond(o, type_);
                (c.0, c.1.as_str()) == (status, reason)
            })
            .await?;
        Ok(cond(&os, type_).2)
    }

    /// Reasons of the Events about an OS object.
    async fn events(&self, os: &str) -> Result<Vec<String>> {
        let all = Api::<Event>::namespaced(self.admin.clone(), "default")
            .list(&ListParams::default())
            .await?;
        let ours = all
            .into_iter()
            .filter(|e| e.involved_object.name.as_deref() == Some(os));
        Ok(ours.filter_map(|e| e.reason).collect())
    }

    /// After a while there is one Event of this reason, not none and not a storm.
    async fn one_event(&self, os: &str, reason: &str) -> Result<()> {
        tokio::time::sleep(CALM).await;
        let all = self.events(os).await?;
        let n = all.iter().filter(|r| *r == reason).count();
        ensure!(n == 1, "{os}: {n} Events {reason}: {all:?}");
        Ok(())
    }

    fn boots(&self, pool: &str) -> u32 {
        self.fleet.boots(pool).iter().sum()
    }

    /// Nothing of this pool was cordoned or rebooted.
    async fn untouched(&self, pool: &str) -> Result<()> {
        ensure!(self.boots(pool) == 0, "{pool} was rebooted");
        let of = ListParams::default().labels(&format!("{LABEL_NODE_SELECTOR}={pool}"));
        for n in self.nodes().list(&of).await? {
            let flag = n.spec.as_ref().and_then(|s| s.unschedulable);
            ensure!(
                flag != Some(true) && !n.annotations().contains_key(ANN_CORDONED_BY),
                "{} is cordoned",
                n.name_any()
            );
        }
        let cordons = self.cluster.audit()?.calls.into_iter().any(|c| {
            c.resource == "nodes"
                && c.name.starts_with(pool)
                && c.request.pointer("/spec/unschedulable").is_some()
        });
        ensure!(!cordons, "{pool}: a cordon is in the log");
        Ok(())
    }

    /// Everything of a case goes, so that it does not weigh on the next one.
    async fn clear(&self) -> Result<()> {
        let _operator = self.operator("broom").await?;
        self.cluster
            .kubectl(&["delete", "os", "--all", "-A", "--timeout=120s"])
            .await?;
        for n in self.nodes().list(&ListParams::default()).await? {
            self.fleet.remove(&n.name_any()).await?;
        }
        wait_for("the OSInstances of deleted nodes to go", LIMIT, || async {
            Ok(self
                .instances()
                .list(&ListParams::default())
                .await?
                .items
                .is_empty()
                .then_some(()))
        })
        .await
    }
}

/// What can be wrong in a spec: said once, in one condition and one Event; nothing is touched; the mended spec goes on.
async fn bad_specs(b: &Bed) -> Result<()> {
    let window = |w: Value| json!({"windows": [w]});
    let table = [
        ("version", json!({"osversion": "Slipway 2 "}), "osversion"),
        ("checksum", json!({"checksum": "b0gus"}), "checksum"),
        (
            "plain-http",
            json!({"imageurl": "http://images.example/2"}),
            "imageurl",
        ),
        ("percent", json!({"maxunavailable": "101%"}), "maxunavailable"),
        (
            "enum",
            json!({"drain": {"ontimeout": "explode"}}),
            "drain.ontimeout",
        ),
        (
            "equal",
            window(json!({"start": "10:00", "end": "10:00"})),
            "windows",
        ),
        (
            "old-equal",
            json!({"timewindow": {"starttime": "10:00:00", "endtime": "10:00:00"}}),
            "timewindow",
        ),
        (
            "zone",
            window(json!({"start": "10:00", "end": "11:00", "timezone": "Mars/Olympus"})),
            "windows",
        ),
    ];
    for (name, change, _) in &table {
        b.pool(name, 1).await?;
        b.cluster.apply(&manifest(name, change.clone())).await?;
    }
    // The server itself knows the words that KubeOS knew, and every field.
    b.pool("refused", 1).await?;
    for (change, hint) in [
        (json!({"opstype": "explode"}), "Unsupported value"),
        (json!({"executionmode": "sideways"}), "Unsupported value"),
        (json!({"maxunavailble": 3}), "unknown field"),
    ] {
        let path = b.cluster.dir().join("refused.yaml");
        fs_err::write(&path, manifest("refused", change))?;
        let args = ["apply", "--validate=strict", "-f", path.as_str()];
        let e = b
            .cluster
            .kubectl_by(&b.cluster.assets.kubectl.clone(), &args)
            .await?;
        ensure!(e.code != 0 && e.err.contains(hint), "{hint}: {e:?}");
    }
    let operator = b.operator("one").await?;
    for (name, _, field) in &table {
        let message = b.wait_cond(name, "Accepted", false, "InvalidSpec").await?;
        ensure!(message.contains(&format!("spec.{field}")), "{name}: {message}");
        let os = b.os().get(name).await?;
        ensure!(
            os.status.as_ref().and_then(|s| s.state.as_deref()) == Some("InvalidSpec")
                && cond(&os, "Progressing").1 == "InvalidSpec",
            "{:#?}",
            os.status
        );
    }
    // A successor tells nothing twice.
    drop(operator);
    let _operator = b.operator("two").await?;
    let touch = json!({"metadata": {"annotations": {"test.invalid/touched": "yes"}}});
    for (name, ..) in &table {
        b.os()
            .patch(name, &PatchParams::default(), &Patch::Merge(&touch))
            .await?;
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    for (name, ..) in &table {
        b.one_event_now(name, "InvalidSpec").await?;
        b.untouched(name).await?;
        let i = b.instances().get_opt(&format!("{name}-0")).await?;
        ensure!(
            i.is_none_or(|i| i.spec.opid.is_none()),
            "{name}: an order was given"
        );
    }
    // Mended, it is carried out.
    b.cluster
        .apply(&manifest("percent", json!({"maxunavailable": "100%"})))
        .await?;
    b.wait("percent", "the end", done).await?;
    ensure!(b.boots("percent-") == 1);
    Ok(())
}

impl Bed {
    async fn one_event_now(&self, os: &str, reason: &str) -> Result<()> {
        let all = self.events(os).await?;
        ensure!(all == [reason], "{os}: {all:?}");
        Ok(())
    }
}

/// KubeOS's samples, the sloppy ones too, by the real server and the real operator: accepted or refused as listed.
async fn samples(b: &Bed) -> Result<()> {
    b.cluster.kubectl(&["create", "namespace", "kubeos"]).await?;
    let _operator = b.operator("one").await?;
    let listed = [
        ("ten-keys", "os-sample", ""),
        ("pool-blue", "pool-blue", ""),
        ("containerd", "by-digest", ""),
        ("docker-old-spelling", "old-notes", ""),
        ("config", "settings", ""),
        ("rollback", "back", ""),
        ("upper-case-checksum", "shouting", ""),
        ("http-without-flagsafe", "unsafe", "imageurl"),
        ("tag-and-digest", "both", "containerimage"),
        ("equal-window", "never", "timewindow"),
        ("no-checksum", "unpinned", "checksum"),
    ];
    let dir = format!("{}/../proxy/samples", env!("CARGO_MANIFEST_DIR"));
    ensure!(
        fs_err::read_dir(&dir)?.count() == listed.len(),
        "a sample is not listed"
    );
    for (file, name, field) in listed {
        let path = format!("{dir}/{file}.yaml");
        // Strict: a field that the definition does not know would be an error.
        b.cluster
            .kubectl(&["apply", "--validate=strict", "-f", &path])
            .await?;
        let namespace = if fs_err::read_to_string(&path)?.contains("namespace: kubeos") {
            "kubeos"
        } else {
            "default"
        };
        let api: Api<OS> = Api::namespaced(b.admin.clone(), namespace);
        let os = wait_for(&format!("an answer to {file}"), LIMIT, || async {
            Ok(api
                .get_opt(name)
                .await?
                .filter(|o| !cond(o, "Accepted").1.is_empty()))
        })
        .await?;
        let (_, reason, message) = cond(&os, "Accepted");
        if field.is_empty() {
            ensure!(reason != "InvalidSpec", "{file}: {message}");
        } else {
            ensure!(
                reason == "InvalidSpec" && message.contains(field),
                "{file}: {reason}: {message}"
            );
        }
    }
    Ok(())
}

/// The image calls itself otherwise than the spec: the agent refuses it before anything is switched (KF-A4).
async fn wrong_version(b: &Bed) -> Result<()> {
    make_node(&b.admin, "wrong-0", "none", "Slipway 1").await?;
    let label = json!({"metadata": {"labels": {LABEL_NODE_SELECTOR: "wrong"}}});
    b.nodes()
        .patch("wrong-0", &PatchParams::default(), &Patch::Merge(label))
        .await?;
    let (url, token) = (b.cluster.front.url(), proxy_account().token);
    let proxy = Box::new(move || client_at(&url, &token, "os-proxy").unwrap());
    let sim = Sim::start("wrong-0", b.cluster.dir(), b.admin.clone(), proxy).await?;
    sim.start_proxy();
    let _operator = b.operator("one").await?;
    let change = json!({"osversion": "Slipway 9", "imageurl": "http://images/2", "flagSafe": true, "checksum": Sim::digest("2")});
    b.cluster.apply(&manifest("wrong", change)).await?;
    b.wait_cond("wrong", "Halted", true, "FailureBudgetExceeded")
        .await?;
    let message = b.wait_cond("wrong", "Degraded", true, "NodeFailed").await?;
    ensure!(message.contains("wrong-0"), "{message}");
    b.one_event("wrong", "NodeFailed").await?;
    let i = b.instances().get("wrong-0").await?;
    let failure = i
        .status
        .and_then(|s| s.failure)
        .context("no failure is reported")?;
    ensure!(
        failure.reason == "WrongVersion" && failure.count == 1,
        "{failure:?}"
    );
    ensure!(sim.boots() == 0);
    b.untouched("wrong").await
}

/// What runs has this digest and another version, or this version and another digest: no work, and said so.
async fn versions_and_digests_that_do_not_match(b: &Bed) -> Result<()> {
    b.pool("same", 2).await?;
    b.pool("other", 2).await?;
    let _operator = b.operator("one").await?;
    b.cluster
        .apply(&manifest("same", json!({"osversion": "Slipway 1"})))
        .await?;
    b.cluster
        .apply(&manifest("other", json!({"checksum": OLD_DIGEST})))
        .await?;
    let message = b
        .wait_cond("same", "Degraded", true, "SameVersionOtherDigest")
        .await?;
    ensure!(
        message.contains("same-0") && message.contains("reinstall"),
        "{message}"
    );
    let message = b.wait_cond("other", "Degraded", true, "WrongVersion").await?;
    ensure!(
        message.contains("other-0") && message.contains("osversion"),
        "{message}"
    );
    b.one_event("same", "SameVersionOtherDigest").await?;
    b.one_event_now("other", "WrongVersion").await?;
    b.untouched("same").await?;
    b.untouched("other").await
}

/// The younger of two OS objects that select one node says so; the older one is carried out.
async fn two_objects_one_node(b: &Bed) -> Result<()> {
    b.pool("two", 2).await?;
    let _operator = b.operator("one").await?;
    b.cluster.apply(&manifest("two", json!({}))).await?;
    // Creation times have seconds.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let other = json!({"nodeselector": "two", "osversion": "Slipway 3", "checksum": "cc".repeat(32)});
    b.cluster.apply(&manifest("younger", other)).await?;
    let message = b.wait_cond("younger", "Accepted", false, "NodeConflict").await?;
    ensure!(
        message.contains("default/two") && message.contains("two-0"),
        "{message}"
    );
    b.wait("two", "the end", done).await?;
    b.one_event("younger", "NodeConflict").await?;
    ensure!(b.boots("two-") == 2, "the younger one rebooted somebody");
    for n in ["two-0", "two-1"] {
        let info = b.nodes().get(n).await?.status.and_then(|s| s.node_info);
        ensure!(info.is_some_and(|i| i.os_image == V2), "{n}");
    }
    Ok(())
}

/// A node that is deleted under its grant frees its place, and one that comes back under its name starts afresh (report 9).
async fn deleted_node(b: &Bed) -> Result<()> {
    b.pool("gone", 3).await?;
    b.fleet.fate("gone-0", Fate::Drains);
    let _operator = b.operator("one").await?;
    b.cluster.apply(&manifest("gone", json!({}))).await?;
    let holds = |o: &OS| {
        o.status
            .as_ref()
            .is_some_and(|s| s.grants.iter().any(|g| g.node == "gone-0"))
    };
    b.wait("gone", "a grant of gone-0", holds).await?;
    wait_for("the cordon of gone-0", LIMIT, || async {
        let n = b.nodes().get("gone-0").await?;
        Ok(n.spec.and_then(|s| s.unschedulable).filter(|u| *u))
    })
    .await?;
    b.fleet.remove("gone-0").await?;
    b.wait("gone", "the end without gone-0", |o| done(o) && !holds(o))
        .await?;
    ensure!(b.boots("gone-") == 2, "{}", b.boots("gone-"));
    wait_for("the OSInstance to go", LIMIT, || async {
        Ok(b.instances().get_opt("gone-0").await?.is_none().then_some(()))
    })
    .await?;
    let node = b.fleet.add("gone-0", "gone").await?;
    b.fleet.fate("gone-0", Fate::Good);
    b.wait("gone", "the end with the new gone-0", |o| {
        done(o) && o.status.as_ref().and_then(|s| s.progress.as_deref()) == Some("3/3")
    })
    .await?;
    let i = b.instances().get("gone-0").await?;
    ensure!(
        i.spec.attempt == 1
            && i.owner_references()
                .iter()
                .all(|o| Some(&o.uid) == node.metadata.uid.as_ref())
    );
    Ok(())
}

/// Names that are no label values (report 15).
async fn long_names(b: &Bed) -> Result<()> {
    let long = |n: usize| {
        format!("{}.example", vec!["x".repeat(40); 6].join("."))
            .chars()
            .rev()
            .take(n)
            .collect::<String>()
    };
    // No name is the beginning of another.
    let names = [
        format!("a{}", long(63)),
        format!("b{}", long(252)),
        "dotted.node.example".to_owned(),
    ];
    for n in &names {
        b.fleet.add(n, "long").await?;
    }
    let _operator = b.operator("one").await?;
    b.cluster.apply(&manifest("long", json!({}))).await?;
    b.wait("long", "the end", done).await?;
    for n in &names {
        let i = b.instances().get(n).await?;
        let label = i.labels().get(LABEL_INSTANCE_NODE).map(String::as_str);
        ensure!(
            label == Some(n.as_str()).filter(|n| n.len() <= 63),
            "{n}: {label:?}"
        );
        ensure!(b.fleet.boots(n) == [1], "{n}");
    }
    Ok(())
}

/// A bad image stops the roll-out once, latched, with one Event, and every node schedulable (R6, R7).
async fn bad_image(b: &Bed) -> Result<()> {
    b.pool("halt", 5).await?;
    for i in 0..5 {
        b.fleet.fate(&format!("halt-{i}"), Fate::FallsBack);
    }
    let _operator = b.operator("one").await?;
    b.cluster
        .apply(&manifest("halt", json!({"maxunavailable": 2})))
        .await?;
    b.wait("halt", "the halt", |o| {
        cond(o, "Halted").0 && o.status.as_ref().is_some_and(|s| s.grants.is_empty())
    })
    .await?;
    b.one_event("halt", "FailureBudgetExceeded").await?;
    let os = b.os().get("halt").await?;
    let status = os.status.unwrap_or_default();
    ensure!(status.denylist.iter().any(|d| d.digest == DIGEST) && status.state.as_deref() == Some("Halted"));
    // Budget 1 and limit 2: at most three nodes were touched.
    ensure!(b.boots("halt-") <= 3, "{} reboots", b.boots("halt-"));
    for i in 0..5 {
        let n = b.nodes().get(&format!("halt-{i}")).await?;
        ensure!(
            n.spec.and_then(|s| s.unschedulable) != Some(true),
            "halt-{i} is cordoned"
        );
    }
    Ok(())
}

/// Deleting the OS object in the middle ends, and leaves neither claim nor finalizer behind (KF-R14).
async fn deleted_in_the_middle(b: &Bed) -> Result<()> {
    b.pool("mid", 4).await?;
    let _operator = b.operator("one").await?;
    b.cluster.apply(&manifest("mid", json!({}))).await?;
    b.wait("mid", "a grant", |o| {
        o.status.as_ref().is_some_and(|s| !s.grants.is_empty())
    })
    .await?;
    ensure!(
        b.os()
            .get("mid")
            .await?
            .finalizers()
            .iter()
            .any(|f| f == FINALIZER_OS)
    );
    b.cluster
        .kubectl(&["delete", "os", "mid", "--timeout=120s"])
        .await?;
    for i in b.instances().list(&ListParams::default()).await? {
        ensure!(
            i.spec.osuid.is_none() && i.finalizers().is_empty() && i.spec.grant.is_none(),
            "{:?}",
            i.spec
        );
    }
    for n in b.nodes().list(&ListParams::default()).await? {
        ensure!(
            n.spec.as_ref().and_then(|s| s.unschedulable) != Some(true),
            "{}",
            n.name_any()
        );
    }
    Ok(())
}

/// KubeOS's own definitions drop our fields: nothing is granted, readyz fails, one Event names the file; ours heal it.
async fn foreign_definitions(b: &Bed) -> Result<()> {
    b.cluster
        .kubectl(&[
            "delete",
            "crd",
            "os.upgrade.openeuler.org",
            "osinstances.upgrade.openeuler.org",
        ])
        .await?;
    b.cluster.apply(&foreign_crds()).await?;
    wait_for("the other definitions", LIMIT, || async {
        Ok(b.os().list(&ListParams::default()).await.is_ok().then_some(()))
    })
    .await?;
    b.pool("pruned", 2).await?;
    let operator = b.operator("one").await?;
    // KubeOS's server would drop the fields that it does not know as well.
    b.cluster
        .apply(&manifest("pruned", json!({"health": null})))
        .await?;
    wait_for("the Event", LIMIT, || async {
        Ok(b.events("pruned")
            .await?
            .iter()
            .any(|e| e == "CRDPruned")
            .then_some(()))
    })
    .await?;
    b.one_event("pruned", "CRDPruned").await?;
    let (code, text) = operator.page("/readyz").await?;
    ensure!(code == 503 && text.contains("crds.yaml"), "{code}: {text}");
    b.untouched("pruned").await?;
    b.cluster.apply(&deployed("crds.yaml")?).await?;
    b.wait("pruned", "the end under our definitions", done).await?;
    ensure!(operator.page("/readyz").await?.0 == 200);
    Ok(())
}

/// Definitions of the same kinds that know none of our fields, as KubeOS's do.
fn foreign_crds() -> String {
    let crd = |plural: &str, singular: &str, kind: &str, spec: Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.upgrade.openeuler.org")},
            "spec": {"group": "upgrade.openeuler.org", "scope": "Namespaced",
                "names": {"plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": spec}, "status": {"type": "object"}}}}}]},
        })
        .to_string()
    };
    let mut os = serde_json::Map::new();
    for key in [
        "osversion",
        "opstype",
        "imagetype",
        "imageurl",
        "checksum",
        "containerimage",
        "nodeselector",
    ] {
        os.insert(key.into(), json!({"type": "string"}));
    }
    for key in ["flagSafe", "mtls", "evictpodforce"] {
        os.insert(key.into(), json!({"type": "boolean"}));
    }
    os.insert("maxunavailable".into(), json!({"type": "integer"}));
    let instance = json!({"nodestatus": {"type": "string"}});
    format!(
        "{}\n---\n{}\n",
        crd("os", "os", "OS", os.into()),
        crd("osinstances", "osinstance", "OSInstance", instance)
    )
}

/// A right is missing: said in the server's words with the file that grants it; no storm of refused requests.
async fn missing_right(b: &Bed) -> Result<()> {
    let role = b
        .cluster
        .kubectl(&["get", "clusterrole", "upgrade-operator", "-o", "json"])
        .await?;
    let mut role: Value = serde_json::from_str(&role)?;
    for rule in role["rules"].as_array_mut().into_iter().flatten() {
        if rule["resources"][0] == "osinstances" {
            rule["verbs"] = json!(["get", "list", "watch"]);
        }
    }
    let less = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "upgrade-operator"}, "rules": role["rules"]});
    b.cluster.apply(&less.to_string()).await?;
    b.pool("rights", 2).await?;
    let operator = b.operator("one").await?;
    let from = jiff::Timestamp::now().to_string();
    b.cluster.apply(&manifest("rights", json!({}))).await?;
    let message = b.wait_cond("rights", "Degraded", true, "Forbidden").await?;
    ensure!(
        message.contains("osinstances") && message.contains("rbac.yaml"),
        "{message}"
    );
    tokio::time::sleep(Duration::from_secs(15)).await;
    let refused = b.cluster.audit()?.calls.into_iter();
    let refused = refused
        .filter(|c| c.code == 403 && c.user == account().name && c.at > from)
        .count();
    ensure!(refused < 20, "{refused} refused requests in 15 s");
    b.one_event("rights", "Forbidden").await?;
    ensure!(operator.page("/readyz").await?.0 == 503);
    b.untouched("rights").await?;
    b.cluster.apply(&deployed("rbac.yaml")?).await?;
    b.wait("rights", "the end with all rights", done).await?;
    ensure!(operator.page("/readyz").await?.0 == 200);
    Ok(())
}

/// `os-operator plan`: says what would happen to which node, and asks the server for three lists and nothing else; the same
/// text says what is wrong.
async fn plan_writes_nothing(b: &Bed) -> Result<()> {
    b.pool("plan", 3).await?;
    let operator = b.operator("one").await?;
    // The nodes' agents have to be known; an OS object that is done sees to that.
    b.cluster
        .apply(&manifest(
            "plan",
            json!({"osversion": "Slipway 1", "checksum": OLD_DIGEST}),
        ))
        .await?;
    b.wait("plan", "nothing to do", done).await?;
    drop(operator);
    let client = client(&b.cluster, &account().token, "planner")?;
    let ask = |text: String| {
        let (client, settings) = (client.clone(), os_proxy::operator::Settings::default());
        async move { plan::plan(Some(client), &text, settings, jiff::Timestamp::now()).await }
    };
    let (text, valid) = ask(manifest("plan", json!({}))).await?;
    ensure!(valid && text.contains("would be staged now: plan-"), "{text}");
    for n in ["plan-0", "plan-1", "plan-2"] {
        ensure!(text.contains(n), "{n} is missing: {text}");
    }
    let (text, valid) = ask(manifest("plan", json!({"maxunavailable": "101%", "wndows": []}))).await?;
    ensure!(
        !valid && text.contains("spec.maxunavailable") && text.contains("spec.wndows"),
        "{text}"
    );
    let calls = b.cluster.audit()?.calls.into_iter();
    let mut asked: Vec<String> = calls
        .filter(|c| c.agent.starts_with("planner"))
        .map(|c| format!("{} {}", c.verb, c.resource))
        .collect();
    asked.sort();
    ensure!(
        asked
            == [
                "list nodes",
                "list nodes",
                "list os",
                "list os",
                "list osinstances",
                "list osinstances"
            ],
        "{asked:?}"
    );
    b.untouched("plan").await
}

/// A right of the proxy is missing: its Event and the OS object say so in the server's words; nothing storms, nothing is touched;
/// once it is granted the roll-out goes on by itself.
async fn missing_right_of_a_proxy(b: &Bed) -> Result<()> {
    let role = b
        .cluster
        .kubectl(&["get", "clusterrole", "upgrade-proxy", "-o", "json"])
        .await?;
    let mut role: Value = serde_json::from_str(&role)?;
    if let Some(rules) = role["rules"].as_array_mut() {
        rules.retain(|r| r["resources"][0] != "pods");
    }
    let less = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "upgrade-proxy"}, "rules": role["rules"]});
    b.cluster.apply(&less.to_string()).await?;
    make_node(&b.admin, "less-0", "none", "Slipway 1").await?;
    let label = json!({"metadata": {"labels": {LABEL_NODE_SELECTOR: "less"}}});
    b.nodes()
        .patch("less-0", &PatchParams::default(), &Patch::Merge(label))
        .await?;
    let (url, token) = (b.cluster.front.url(), proxy_account().token);
    let proxy = Box::new(move || client_at(&url, &token, "os-proxy").unwrap());
    let sim = Sim::start("less-0", b.cluster.dir(), b.admin.clone(), proxy).await?;
    sim.start_proxy();
    let _operator = b.operator("one").await?;
    let change = json!({"imageurl": "http://images/2", "flagSafe": true, "checksum": Sim::digest("2"), "nodeselector": "less"});
    b.cluster.apply(&manifest("less", change)).await?;
    let message = b.wait_cond("less", "Degraded", true, "NodeRetrying").await?;
    ensure!(
        message.contains("less-0 (Forbidden: pods is forbidden") && message.contains("rbac.yaml"),
        "{message}"
    );
    let from = jiff::Timestamp::now().to_string();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let calls = b.cluster.audit()?.calls;
    let by_proxy = |c: &&os_e2e::cluster::Call| c.user == proxy_account().name && c.at > from;
    let refused = calls.iter().filter(by_proxy).filter(|c| c.code == 403).count();
    ensure!(refused < 20, "{refused} refused requests in 15 s");
    let writes = calls.iter().filter(by_proxy).filter(|c| c.is_write()).count();
    ensure!(writes == 0, "{writes} writes in 15 s of the same trouble");
    let told = b
        .cluster
        .kubectl(&[
            "get",
            "events",
            "--field-selector",
            "involvedObject.name=less-0,reason=Forbidden",
            "-o",
            "jsonpath={.items[*].reason}",
        ])
        .await?;
    ensure!(told.trim() == "Forbidden", "Events of the node: {told:?}");
    b.untouched("less").await?;
    b.cluster.apply(&deployed("rbac.yaml")?).await?;
    b.wait("less", "the end with all rights", done).await?;
    let failure = b.instances().get("less-0").await?.status.and_then(|s| s.failure);
    ensure!(failure.is_none() && sim.boots() == 1, "{failure:?}");
    Ok(())
}

/// The shipped roles and the admission policy: a proxy's token, bound to its pod as kubelet mounts it, suffices for a whole
/// upgrade, and touches nobody else's Node or OSInstance (R14, KF-S1).
async fn only_ones_own(b: &Bed) -> Result<()> {
    b.cluster.apply(&deployed("admission.yaml")?).await?;
    // The DaemonSet that the proxy's pod belongs to: a drain leaves it, and with it the token.
    b.cluster.apply(&deployed("manager.yaml")?).await?;
    make_node(&b.admin, "own-0", "none", "Slipway 1").await?;
    let label = json!({"metadata": {"labels": {LABEL_NODE_SELECTOR: "own"}}});
    b.nodes()
        .patch("own-0", &PatchParams::default(), &Patch::Merge(label))
        .await?;
    b.fleet.add("own-9", "elsewhere").await?;
    let pod = json!({"metadata": owned_by("DaemonSet", "upgrade-proxy"), "spec": {"serviceAccountName": "upgrade-proxy"}});
    make_pod(&b.admin, "upgrade-system", "proxy-own-0", "own-0", pod).await?;
    let token = b
        .cluster
        .bound_token("upgrade-system", "upgrade-proxy", "proxy-own-0")
        .await?;
    let (url, bound) = (b.cluster.front.url(), token.clone());
    let proxy = Box::new(move || client_at(&url, &bound, "os-proxy").unwrap());
    let sim = Sim::start("own-0", b.cluster.dir(), b.admin.clone(), proxy).await?;
    sim.start_proxy();
    let _operator = b.operator("one").await?;
    let change = json!({"imageurl": "http://images/2", "flagSafe": true, "checksum": Sim::digest("2"), "nodeselector": "own"});
    b.cluster.apply(&manifest("own", change)).await?;
    b.wait("own", "the end", done).await?;
    ensure!(sim.boots() == 1);
    let refused: Vec<String> = b
        .cluster
        .audit()?
        .calls
        .iter()
        .filter(|c| c.code == 403 && c.agent.starts_with("os-proxy") && c.name.starts_with("own-0"))
        .map(|c| format!("{} {}", c.verb, c.resource))
        .collect();
    ensure!(
        refused.is_empty(),
        "the proxy's rights do not suffice: {refused:?}"
    );
    // The OSInstance of the other node exists, and its Node.
    let other: OSInstance = serde_json::from_value(
        json!({"apiVersion": "upgrade.openeuler.org/v1alpha1", "kind": "OSInstance",
        "metadata": {"name": "own-9"}, "spec": {"nodestatus": "idle", "desired": "Idle"}}),
    )?;
    b.instances().create(&PostParams::default(), &other).await?;
    let mine = client(&b.cluster, &token, "thief")?;
    let unbound = client(&b.cluster, &proxy_account().token, "thief")?;
    let n = forbidden(b, &mine, &unbound).await?;
    println!("    {n} requests with a proxy's token were refused, its own were not");
    Ok(())
}

/// What a proxy's token must not do. Each is tried; gives how many.
async fn forbidden(b: &Bed, mine: &Client, unbound: &Client) -> Result<usize> {
    let cordon = json!({"spec": {"unschedulable": true}});
    let ours =
        json!({"metadata": {"annotations": {ANN_CORDONED_BY: "u/1"}}, "spec": {"unschedulable": true}});
    let back = json!({"metadata": {"annotations": {ANN_CORDONED_BY: null}}, "spec": {"unschedulable": null}});
    let patch = |c: &Client, path: String, body: Value| {
        let request = http_patch(&path, &body);
        let c = c.clone();
        async move { code(c.request::<Value>(request).await) }
    };
    let node = |n: &str| format!("/api/v1/nodes/{n}");
    let instance = |n: &str, sub: &str| {
        format!("/apis/upgrade.openeuler.org/v1alpha1/namespaces/default/osinstances/{n}{sub}")
    };
    let report = json!({"status": {"phase": "Idle"}});
    // The same requests succeed where they are allowed: the refusals below are not for another reason.
    for (path, body) in [
        (node("own-0"), ours.clone()),
        (node("own-0"), back.clone()),
        (instance("own-0", "/status"), report.clone()),
    ] {
        let got = patch(mine, path.clone(), body).await;
        ensure!(got == 200, "{path}: {got}");
    }
    let mut n = 0;
    for (who, path, body) in [
        (mine, node("own-9"), cordon.clone()),
        (mine, node("own-9"), ours.clone()),
        (mine, node("own-9"), json!({"metadata": {"labels": {"a": "b"}}})),
        (mine, node("own-0"), json!({"metadata": {"labels": {"a": "b"}}})),
        (
            mine,
            node("own-0"),
            json!({"metadata": {"labels": {LABEL_NODE_SELECTOR: null}}}),
        ),
        (
            mine,
            node("own-0"),
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        ),
        (
            mine,
            node("own-0"),
            json!({"metadata": {"annotations": {"a": "b"}}}),
        ),
        (
            mine,
            node("own-0"),
            json!({"metadata": {"annotations": {"upgrade.openeuler.org/hold": "true"}}}),
        ),
        (
            mine,
            node("own-0"),
            json!({"metadata": {"finalizers": ["a.example/b"]}}),
        ),
        (
            mine,
            node("own-0"),
            json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
        ),
        (mine, node("own-0"), json!({"spec": {"providerID": "x://y"}})),
        (
            mine,
            node("own-0") + "/status",
            json!({"status": {"phase": "Running"}}),
        ),
        (
            mine,
            node("own-9") + "/status",
            json!({"status": {"phase": "Running"}}),
        ),
        (mine, instance("own-9", "/status"), report.clone()),
        (
            mine,
            instance("own-9", ""),
            json!({"spec": {"nodestatus": "idle"}}),
        ),
        (mine, instance("own-0", ""), json!({"spec": {"desired": "Boot"}})),
        (
            mine,
            "/apis/upgrade.openeuler.org/v1alpha1/namespaces/default/os/own".into(),
            json!({"spec": {"paused": true}}),
        ),
        (
            mine,
            "/apis/upgrade.openeuler.org/v1alpha1/namespaces/default/os/own/status".into(),
            json!({"status": {"grants": []}}),
        ),
        (unbound, node("own-0"), ours.clone()),
        (unbound, instance("own-0", "/status"), report.clone()),
    ] {
        let got = patch(who, path.clone(), body.clone()).await;
        ensure!(got == 403, "{path} {body}: {got}");
        n += 1;
    }
    let denied = |r: kube::Result<()>, what: &str| -> Result<()> {
        let got = code(r);
        ensure!(got == 403, "{what}: {got}");
        Ok(())
    };
    let d = DeleteParams::default();
    denied(
        Api::<Node>::all(mine.clone()).delete("own-9", &d).await.map(drop),
        "deleting a Node",
    )?;
    denied(
        Api::<OSInstance>::namespaced(mine.clone(), "default")
            .delete("own-0", &d)
            .await
            .map(drop),
        "deleting an OSInstance",
    )?;
    denied(
        Api::<OS>::namespaced(mine.clone(), "default")
            .delete("own", &d)
            .await
            .map(drop),
        "deleting an OS",
    )?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(mine.clone(), "upgrade-system");
    denied(pods.delete("proxy-own-0", &d).await.map(drop), "deleting a pod")?;
    let sets: Api<k8s_openapi::api::apps::v1::DaemonSet> = Api::namespaced(mine.clone(), "upgrade-system");
    denied(
        sets.delete("upgrade-proxy", &d).await.map(drop),
        "deleting a DaemonSet",
    )?;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::all(mine.clone());
    denied(
        secrets.list(&ListParams::default()).await.map(drop),
        "reading Secrets",
    )?;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::all(mine.clone());
    denied(
        maps.list(&ListParams::default()).await.map(drop),
        "reading ConfigMaps",
    )?;
    denied(
        Api::<OS>::all(mine.clone())
            .list(&ListParams::default())
            .await
            .map(drop),
        "listing OS objects",
    )?;
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(mine.clone(), "upgrade-system");
    denied(leases.get("os-operator").await.map(drop), "reading the Lease")?;
    n += 9;
    // And the operator's account is no admin either.
    let operator = client(&b.cluster, &account().token, "thief")?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(operator.clone(), "upgrade-system");
    denied(
        pods.delete("proxy-own-0", &d).await.map(drop),
        "the operator deleting a pod",
    )?;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::all(operator.clone());
    denied(
        secrets.list(&ListParams::default()).await.map(drop),
        "the operator reading Secrets",
    )?;
    denied(
        Api::<Node>::all(operator).delete("own-9", &d).await.map(drop),
        "the operator deleting a Node",
    )?;
    Ok(n + 3)
}

fn http_patch(path: &str, body: &Value) -> hyper::Request<Vec<u8>> {
    hyper::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(body.to_string().into_bytes())
        .unwrap()
}

fn code<T>(r: kube::Result<T>) -> u16 {
    match r {
        Ok(_) => 200,
        Err(kube::Error::Api(s)) => s.code,
        Err(e) => panic!("{e}"),
    }
}

/// Pairs of operators that both want to lead and are killed every second: never more grants than allowed, one reboot per node.
async fn killed_operators(b: &Bed) -> Result<()> {
    b.pool("kill", 10).await?;
    b.cluster
        .apply(&manifest("kill", json!({"maxunavailable": 3})))
        .await?;
    let mut kills = 0u64;
    let begun = std::time::Instant::now();
    while !done(&b.os().get("kill").await?) && begun.elapsed() < LIMIT && kills < 12 {
        let pair = (
            b.operator(&format!("a{kills}")).await?,
            b.operator(&format!("b{kills}")).await?,
        );
        tokio::time::sleep(Duration::from_millis(4500 + 700 * (kills % 5))).await;
        drop(pair);
        kills += 1;
    }
    let _last = b.operator("last").await?;
    b.wait("kill", "the end", done).await?;
    let mut most = 0;
    for c in b.cluster.audit()?.calls.iter().filter(|c| c.changed()) {
        if c.resource == "os/status" && c.name == "kill" {
            most = most.max(invariants::grants(c).len());
        }
    }
    println!("    {kills} pairs of operators were killed, at most {most} grants of 3");
    ensure!((1..=3).contains(&most), "{most} grants");
    ensure!(b.fleet.boots("kill-") == [1; 10], "{:?}", b.fleet.boots("kill-"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs kube-apiserver and etcd; `tests/run cluster` runs it"]
async fn the_operator_and_bad_input() {
    if !os_e2e::e2e("the operator and bad input") {
        return;
    }
    let users: Vec<User> = vec![account(), proxy_account()];
    let options = Options {
        users,
        ..Options::default()
    };
    let Some(cluster) = Cluster::start("operator", &options).await.unwrap() else {
        return;
    };
    cluster.install().await.unwrap();
    let admin = admin(&cluster).unwrap();
    let proxy = client(&cluster, &proxy_account().token, "player").unwrap();
    let pace = Pace {
        stage: Duration::from_millis(50),
        boot: Duration::from_millis(300),
    };
    let b = Bed {
        fleet: Fleet::start(admin.clone(), proxy, pace),
        admin,
        cluster,
    };
    let _kubelets = kubelets(b.admin.clone());
    let only = std::env::var("SLIPWAY_CASE").unwrap_or_default();
    let mut cases = Cases::new(&b.cluster.front, only);
    macro_rules! case {
        ($f:ident) => {
            cases
                .run(stringify!($f), async {
                    // The next case must not suffer for this one.
                    let r = $f(&b).await;
                    let cleared = b.clear().await.context("clearing up");
                    r.and(cleared)
                })
                .await
        };
    }
    case!(bad_specs);
    case!(samples);
    case!(plan_writes_nothing);
    case!(wrong_version);
    case!(versions_and_digests_that_do_not_match);
    case!(two_objects_one_node);
    case!(deleted_node);
    case!(long_names);
    case!(bad_image);
    case!(deleted_in_the_middle);
    case!(killed_operators);
    case!(missing_right);
    case!(missing_right_of_a_proxy);
    case!(foreign_definitions);
    case!(only_ones_own);
    let failed = cases.failures();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
