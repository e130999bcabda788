//! Row 14 of the step runner's acceptance ladder: steps and runner against a real kube-apiserver, with a kubelet's client
//! certificate, the Node authorizer and its restrictions. Annotations, labels, the approval of an update, and what a tick costs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::cluster::{Cluster, Options};
use os_e2e::proc;
use os_steps::bundle::{Bundle, Files};
use os_steps::dirs::Dirs;
use os_steps::kube::{Access, KubeApi};
use os_steps::run::{Host, Limits, Options as RunOptions, Runner};
use os_steps::settings::{Approval, Settings};
use os_steps::state::Outcome;
use os_steps::sys::clock::Stop;
use serde_json::Value;
use std::sync::{Arc, Mutex};

const NODE: &str = "steps-1";

#[derive(Default)]
struct Machine(Mutex<u32>);

impl Host for Machine {
    fn boot_id(&self) -> String {
        format!("boot-{}", self.0.lock().unwrap())
    }
    fn hostname(&self) -> String {
        NODE.to_owned()
    }
    fn reboot(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// An authority for clients, and a kubelet's certificate of it.
fn certificates(dir: &Utf8Path) -> Result<()> {
    let at = |n: &str| dir.join(n).into_string();
    proc::sh(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "30",
        "-subj",
        "/CN=clients",
        "-keyout",
        &at("client-ca.key"),
        "-out",
        &at("client-ca.crt"),
    ])?;
    proc::sh(&[
        "openssl",
        "req",
        "-new",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        &format!("/O=system:nodes/CN=system:node:{NODE}"),
        "-keyout",
        &at("kubelet.key"),
        "-out",
        &at("kubelet.csr"),
    ])?;
    // With an extension it is of version 3; version 1 is not taken by rustls.
    std::fs::write(dir.join("ext"), "extendedKeyUsage=clientAuth\n")?;
    proc::sh(&[
        "openssl",
        "x509",
        "-req",
        "-days",
        "30",
        "-in",
        &at("kubelet.csr"),
        "-CA",
        &at("client-ca.crt"),
        "-CAkey",
        &at("client-ca.key"),
        "-CAcreateserial",
        "-extfile",
        &at("ext"),
        "-out",
        &at("kubelet.crt"),
    ])?;
    Ok(())
}

fn bundle(steps: &[(&str, &str)], checksum: &str) -> Bundle {
    let mut f = Files::default();
    for (name, text) in steps {
        f.add(&format!("steps/{name}"), text.as_bytes().to_vec()).unwrap();
    }
    let mut b = f.check(None).unwrap();
    checksum.clone_into(&mut b.manifest.external_checksum);
    b
}

/// Look-alikes of our own: the polling step that runs once the update is approved, the cgroup's type, labels from files.
const STEPS: [(&str, &str); 3] = [
    (
        "001_waiting_approval_annotations.sh",
        "# agent: retries=1\nnode=$(bb-curl-kube \"/api/v1/nodes/$(bb-d8-node-name)\")\n\
         jq -e '.metadata.annotations | has(\"update.node.deckhouse.io/approved\")' <<<\"$node\" >/dev/null\n",
    ),
    (
        "092_set_cgroup_type.sh",
        "# agent: retries=2\nname=$(bb-d8-node-name)\nwant=cgroup2fs\n\
         have=$(bb-curl-kube \"/api/v1/nodes/$name\" | jq -r '.metadata.annotations[\"node.deckhouse.io/cgroup\"] // empty')\n\
         [[ $have == \"$want\" ]] || bb-curl-helper-patch-node-metadata \"$name\" annotations node.deckhouse.io/cgroup=$want old-\n",
    ),
    (
        "098_update_node_labels.sh",
        "# agent: retries=2\nname=$(bb-d8-node-name)\n\
         labels=$(bb-curl-kube \"/api/v1/nodes/$name\" | jq -r '.metadata.labels[\"example.com/zone\"] // empty')\n\
         [[ $labels == a-1 ]] || bb-curl-helper-patch-node-metadata \"$name\" labels example.com/zone=a-1\n\
         # Not a node's to set: the server says so, and the helper passes it on.\n\
         ! bb-curl-helper-patch-node-metadata other labels example.com/zone=a-1\n",
    ),
];

struct World {
    cluster: Cluster,
    runner: Arc<Runner>,
    api: Arc<KubeApi>,
    machine: Arc<Machine>,
}

impl World {
    fn new(cluster: Cluster, dir: &Utf8Path) -> World {
        let root: Utf8PathBuf = cluster.dir().join("node");
        std::fs::create_dir_all(&root).unwrap();
        let dirs = Dirs::new(&root.join("steps"), Some(&root));
        let ca = cluster.dir().join("certs/apiserver.crt");
        let (cert, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
        let api = Arc::new(KubeApi::new(
            tokio::runtime::Handle::current(),
            Access {
                // Nobody listens on the first: a dead local proxy hides nothing.
                endpoints: vec!["https://127.0.0.1:1".into(), cluster.url()],
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
                token: root.join("none"),
                node: NODE.into(),
            },
        ));
        let machine = Arc::new(Machine::default());
        let env = [
            ("BB_KUBE_APISERVER_URL", cluster.url()),
            ("BB_KUBE_CA", ca.to_string()),
            ("BB_KUBE_CERT", cert.to_string()),
            ("BB_KUBE_KEY", key.to_string()),
        ];
        let runner = Runner {
            dirs,
            settings: Settings {
                approval: Approval::Deckhouse,
                env: env.map(|(k, v)| (k.to_owned(), v)).into(),
                ..Settings::default()
            },
            host: machine.clone(),
            cluster: Some(api.clone()),
            sink: Arc::new(|_| {}),
            stop: Stop::default(),
            limits: Limits {
                backoff_first_ms: 50,
                ..Limits::default()
            },
        };
        World {
            cluster,
            runner: Arc::new(runner),
            api,
            machine,
        }
    }

    async fn run(&self, b: &Bundle) -> Result<Outcome> {
        let (runner, b) = (self.runner.clone(), b.clone());
        let e = tokio::task::spawn_blocking(move || runner.run(&b, &RunOptions::default())).await??;
        Ok(e.outcome)
    }

    async fn node(&self) -> Result<Value> {
        let text = self.cluster.kubectl(&["get", "node", NODE, "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    async fn annotation(&self, key: &str) -> Result<Option<String>> {
        let node = self.node().await?;
        Ok(node["metadata"]["annotations"][key].as_str().map(str::to_owned))
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a kube-apiserver: tests/run cluster"]
async fn row_14_annotations_labels_and_approval_on_a_real_server() -> Result<()> {
    let tmp = tempfile::tempdir()?;
    let dir = Utf8Path::from_path(tmp.path()).context("path")?;
    certificates(dir)?;
    let options = Options {
        apiserver: vec![
            format!("--client-ca-file={dir}/client-ca.crt"),
            "--authorization-mode=Node".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
        ],
        ..Options::default()
    };
    let Some(cluster) = Cluster::start("steps", &options).await? else {
        return Ok(());
    };
    for name in [NODE, "other"] {
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  annotations: {{old: x, node.deckhouse.io/configuration-checksum: before}}\n"
            ))
            .await?;
    }
    let w = World::new(cluster, dir);
    const CHECKSUM: &str = "node.deckhouse.io/configuration-checksum";
    const WAITING: &str = "update.node.deckhouse.io/waiting-for-approval";
    let b = bundle(&STEPS, "after");

    // Unapproved: the request is on the Node, the old checksum is gone, no step ran.
    ensure!(w.run(&b).await? == Outcome::WaitingApproval);
    ensure!(w.annotation(WAITING).await?.is_some() && w.annotation(CHECKSUM).await?.is_none());
    ensure!(w.annotation("node.deckhouse.io/cgroup").await?.is_none());
    let before = w.node().await?["metadata"]["resourceVersion"].clone();
    ensure!(w.run(&b).await? == Outcome::WaitingApproval);
    ensure!(
        w.node().await?["metadata"]["resourceVersion"] == before,
        "a request that stands is not written again"
    );

    // The controller approves.
    w.cluster
        .kubectl(&["annotate", "node", NODE, "update.node.deckhouse.io/approved="])
        .await?;
    let done = w.run(&b).await?;
    ensure!(
        matches!(&done, Outcome::Converged { degraded, .. } if degraded.is_empty()),
        "{done:?}"
    );
    let node = w.node().await?;
    let notes = &node["metadata"]["annotations"];
    ensure!(
        notes["node.deckhouse.io/cgroup"] == "cgroup2fs" && notes[CHECKSUM] == "after",
        "{notes}"
    );
    ensure!(notes.get("old").is_none(), "key- deletes: {notes}");
    ensure!(node["metadata"]["labels"]["example.com/zone"] == "a-1");

    // A second pass, in another boot, changes nothing on the server.
    let before = node["metadata"]["resourceVersion"].clone();
    *w.machine.0.lock().unwrap() += 1;
    let again = w.run(&b).await?;
    ensure!(
        matches!(again, Outcome::Converged { changed: 0, .. }),
        "{again:?}"
    );
    ensure!(w.node().await?["metadata"]["resourceVersion"] == before);

    // What a look costs that finds nothing to do.
    let sent = w.api.requests();
    for _ in 0..20 {
        ensure!(w.run(&b).await? == Outcome::InSync);
    }
    let cost = w.api.requests() - sent;
    ensure!(cost == 0, "{cost} requests by 20 looks that found nothing");
    println!("approval, annotations, labels: as asked; 20 looks that find nothing: {cost} requests");
    Ok(())
}
