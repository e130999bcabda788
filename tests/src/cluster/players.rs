//! Those whom a cluster without controllers lacks: kubelets that end deleted pods and report their node, and the controller
//! that keeps budgets up to date. All of them speak to the real server.

use super::server::Cluster;
use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Pods with this annotation do not end when deleted, as if their kubelet were dead.
pub const HANGS: &str = "test.invalid/hangs";

/// A client for this bearer token, through the proxy in front, without retries of its own.
///
/// # Errors
/// The address is malformed.
pub fn client(cluster: &Cluster, token: &str, agent: &str) -> Result<Client> {
    client_at(&cluster.front.url(), token, agent)
}

/// As [`client`], for the address of the proxy in front.
///
/// # Errors
/// As [`client`].
pub fn client_at(url: &str, token: &str, agent: &str) -> Result<Client> {
    let mut config = kube::Config::new(url.parse()?);
    config.auth_info.token = Some(token.to_owned().into());
    os_proxy::connect::client(config, agent)
}

/// The admin's client.
///
/// # Errors
/// As [`client`].
pub fn admin(cluster: &Cluster) -> Result<Client> {
    client(cluster, cluster.admin_token(), "test-admin")
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Task {
    /// It ended by itself.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Runs until dropped.
    pub fn spawn(f: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(tokio::spawn(f))
    }
}

/// Kubelets: a pod with a deletion time stamp is removed, unless it hangs or has finalizers.
pub fn kubelets(client: Client) -> Task {
    Task::spawn(async move {
        loop {
            // Outages that a test makes on purpose hit kubelets too.
            let _ = end_pods(&client).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

async fn end_pods(client: &Client) -> Result<()> {
    let api: Api<Pod> = Api::all(client.clone());
    let list = api.list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.clone().unwrap_or_default();
    for p in &list.items {
        end_pod(client, p).await?;
    }
    let watch = WatchParams::default().timeout(WATCH.as_secs() as u32);
    let mut events = api.watch(&watch, &version).await?.boxed();
    // A connection that fell silent tells nothing: what the server was asked for is over by then.
    while let Some(e) = tokio::time::timeout(WATCH + SILENCE, events.try_next()).await?? {
        match e {
            WatchEvent::Added(p) | WatchEvent::Modified(p) => end_pod(client, &p).await?,
            WatchEvent::Error(_) => break,
            _ => {}
        }
    }
    Ok(())
}

/// How long a kubelet here watches before it lists again.
const WATCH: Duration = Duration::from_secs(10);
/// How much longer it waits for an answer.
const SILENCE: Duration = Duration::from_secs(3);

/// An error means that the caller must look again: nobody else ends this pod.
async fn end_pod(client: &Client, p: &Pod) -> Result<()> {
    if p.metadata.deletion_timestamp.is_none()
        || p.annotations().contains_key(HANGS)
        || !p.finalizers().is_empty()
    {
        return Ok(());
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), &p.namespace().unwrap_or_default());
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: p.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match tokio::time::timeout(SILENCE, api.delete(&p.name_any(), &params)).await? {
        Ok(_) => Ok(()),
        // Gone, or another one of the same name.
        Err(kube::Error::Api(e)) if matches!(e.code, 404 | 409) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A Node as its kubelet would register it: Ready, in boot `boot`, running `os`.
///
/// # Errors
/// The server's.
pub async fn make_node(client: &Client, name: &str, boot: &str, os: &str) -> Result<Node> {
    let api: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}}))?;
    api.create(&PostParams::default(), &node)
        .await
        .context("creating a Node")?;
    node_status(client, name, true, boot, os).await
}

/// What kubelet reports of its node.
///
/// # Errors
/// The server's.
pub async fn node_status(client: &Client, name: &str, ready: bool, boot: &str, os: &str) -> Result<Node> {
    let api: Api<Node> = Api::all(client.clone());
    let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let old = api.get(name).await?;
    let was = old
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .find(|c| c.type_ == "Ready");
    let word = if ready { "True" } else { "Unknown" };
    let since = match was {
        Some(c) if c.status == word => c.last_transition_time.as_ref().map(|t| t.0.to_string()),
        _ => None,
    };
    let body = json!({"status": {
        "conditions": [{"type": "Ready", "status": word, "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or_else(|| now.clone()), "reason": "Test", "message": ""}],
        "nodeInfo": {"bootID": boot, "machineID": MACHINE, "osImage": os, "architecture": "amd64",
            "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "v1.30.0",
            "operatingSystem": "linux", "systemUUID": ""},
    }});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(body))
        .await
        .context("kubelet's status")
}

/// Machine id of the agent's in-memory host.
pub const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// A pod bound to a node, running and ready unless `more` says otherwise (merged into the object).
///
/// # Errors
/// The server's.
pub async fn make_pod(client: &Client, namespace: &str, name: &str, node: &str, more: Value) -> Result<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none.invalid/c"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    merge(&mut pod, more);
    let status = pod.as_object_mut().and_then(|o| o.remove("status"));
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let made = api
        .create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await
        .with_context(|| format!("creating pod {namespace}/{name}"))?;
    match status {
        Some(s) if !s.is_null() => Ok(api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": s})))
            .await?),
        _ => Ok(made),
    }
}

/// Merges `b` into `a`, objects deeply, everything else as a whole.
pub fn merge(a: &mut Value, b: Value) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                merge(a.entry(k).or_insert(Value::Null), v);
            }
        }
        (_, Value::Null) => {}
        (a, b) => *a = b,
    }
}

/// An owner reference of a controller.
pub fn owned_by(kind: &str, name: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-{name}"),
        "controller": true}]})
}

/// A budget with the state its controller would have written: `allowed` more disruptions of the pods with `app=NAME`.
///
/// # Errors
/// The server's.
pub async fn make_budget(
    client: &Client,
    namespace: &str,
    name: &str,
    app: &str,
    allowed: i32,
    healthy: (i32, i32),
    always_allow: bool,
) -> Result<()> {
    let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let mut spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": app}}});
    if always_allow {
        spec["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    }
    let b = api
        .create(
            &PostParams::default(),
            &serde_json::from_value(
                json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}),
            )?,
        )
        .await?;
    let status = json!({"status": {"disruptionsAllowed": allowed, "currentHealthy": healthy.0, "desiredHealthy": healthy.1,
        "expectedPods": healthy.0.max(1), "observedGeneration": b.metadata.generation}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// The pods of a node by `namespace/name`, with whether they are terminating.
///
/// # Errors
/// The server's.
pub async fn pods_of(client: &Client, node: &str) -> Result<BTreeMap<String, bool>> {
    let api: Api<Pod> = Api::all(client.clone());
    let list = api
        .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
        .await?;
    Ok(list
        .items
        .iter()
        .map(|p| {
            (
                format!("{}/{}", p.namespace().unwrap_or_default(), p.name_any()),
                p.metadata.deletion_timestamp.is_some(),
            )
        })
        .collect())
}

/// Waits until `f` gives something; the limit is generous, because the machine may be busy.
///
/// # Errors
/// It gave nothing in time, or failed.
pub async fn wait_for<T, F, Fut>(what: &str, limit: Duration, mut f: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let start = tokio::time::Instant::now();
    loop {
        if let Some(x) = f().await? {
            return Ok(x);
        }
        if start.elapsed() > limit {
            anyhow::bail!("{what} did not come within {limit:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
