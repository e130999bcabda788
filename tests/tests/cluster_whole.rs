//! The whole system: a node in QEMU with an image of imgbuild, os-agent and os-proxy running in it, kube-apiserver and the real
//! os-operator on the host. `kubectl apply` of the `os.yaml` that imgbuild wrote takes the node to version 2; a broken version 3
//! falls back, is not rolled out again, and leaves the node schedulable. The test plays kubelet: it reports the node's boot id.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, Patch, PatchParams};
use os_e2e::cluster::players::{admin, kubelets, make_node, make_pod, owned_by, pods_of};
use os_e2e::cluster::server::User;
use os_e2e::cluster::{Cluster, Options};
use os_e2e::images::{Broken, Images, images};
use os_e2e::node::{Node, say};
use os_e2e::product::{cluster_programs, sha256};
use os_e2e::vm::{Firmware, ctl};
use os_proxy::api::{ANN_CORDONED_BY, INSTANCE_NAMESPACE, OS, OSInstance, condition_type, is_true};
use serde_json::{Value, json};
use std::process::Child;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const NODE: &str = "worker-0";
/// An update takes four minutes on a quiet machine: staging, a drain, a boot, half a minute of being Ready.
const PATIENCE: Duration = Duration::from_secs(1500);

struct World {
    cluster: Cluster,
    admin: kube::Client,
    node: Node,
    /// Console line from which the next boot is looked for.
    from: usize,
    /// What the last table showed.
    shown: String,
    operator: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.operator.kill();
        let _ = self.operator.wait();
    }
}

/// kubeconfig with everything in it, as a node can use it.
fn kubeconfig(cluster: &Cluster, host: &str, token: &str) -> Result<String> {
    let ca = ctl::encode(&fs_err::read(cluster.dir().join("certs/apiserver.crt"))?);
    let url = cluster.url().replace("127.0.0.1", host);
    Ok(format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: '{url}', tls-server-name: kubernetes.default.svc, \
         certificate-authority-data: {ca}}}}}]\nusers: [{{name: t, user: {{token: {token}}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n"
    ))
}

/// os-proxy as a service of the guest, where a DaemonSet's pod would be; it lies on PERSIST, so both slots have it.
fn install_proxy(node: &mut Node, program: &camino::Utf8Path, config: &str) -> Result<()> {
    use os_e2e::http::Reply;
    node.server.put("/os-proxy", Reply::file(program));
    let url = node.server.guest_url("/os-proxy");
    let config = ctl::encode(config.as_bytes());
    let unit = ctl::encode(
        format!(
            "[Unit]\nAfter=os-agent.service network-online.target\nWants=network-online.target\n\
             [Service]\nEnvironment=NODE_NAME={NODE} KUBECONFIG=/persist/test/kubeconfig RUST_LOG=info\n\
             ExecStart=/persist/test/os-proxy --http 127.0.0.1:8080\nRestart=always\nRestartSec=2\n\
             [Install]\nWantedBy=multi-user.target\n"
        )
        .as_bytes(),
    );
    let vm = node.vm()?;
    vm.network()?;
    vm.ok(&format!(
        "set -e; mkdir -p /persist/test; curl -sSf -o /persist/test/os-proxy {url}; chmod 755 /persist/test/os-proxy; \
         echo {config} | base64 -d >/persist/test/kubeconfig; chmod 600 /persist/test/kubeconfig; \
         echo {unit} | base64 -d >/etc/systemd/system/os-proxy.service; \
         systemctl daemon-reload; systemctl enable --now os-proxy.service; sync"
    ))?;
    Ok(())
}

impl World {
    fn nodes(&self) -> Api<KubeNode> {
        Api::all(self.admin.clone())
    }

    async fn os(&self) -> Result<OS> {
        Ok(Api::<OS>::namespaced(self.admin.clone(), "default")
            .get("slipway")
            .await?)
    }

    async fn report(&self, ready: bool, boot: &str, machine: &str, os: &str) -> Result<()> {
        let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let old = self.nodes().get(NODE).await?;
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
        let mut body = json!({"status": {"conditions": [{"type": "Ready", "status": word, "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or_else(|| now.clone()), "reason": "Test", "message": ""}]}});
        if ready {
            body["status"]["nodeInfo"] = json!({"bootID": boot, "machineID": machine, "osImage": os});
        }
        self.nodes()
            .patch_status(NODE, &PatchParams::default(), &Patch::Strategic(body))
            .await
            .context("kubelet's status")?;
        Ok(())
    }

    /// What a kubelet would do now: report the system that runs, or be silent while none does.
    async fn beat(&mut self) -> Result<()> {
        let script = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; . /usr/lib/os-release; echo \"$PRETTY_NAME\"";
        let (node, from) = (&mut self.node, self.from);
        let facts = block_in_place(|| node.vm()?.exec(script, Duration::from_secs(20)));
        if let Ok((0, text)) = facts {
            let l: Vec<&str> = text.lines().collect();
            ensure!(l.len() == 3, "{text}");
            return self.report(true, l[0], l[1], l[2]).await;
        }
        if self.node.vm()?.boots(from).is_empty() {
            return Ok(());
        }
        self.report(false, "", "", "").await?;
        let node = &mut self.node;
        let f = block_in_place(|| node.next_system(from))?;
        self.from = f.ready.index + 1;
        Ok(())
    }

    /// Prints the tables when something in them changed.
    async fn show(&mut self) -> Result<()> {
        let os = self.os().await?.status.unwrap_or_default();
        let i = Api::<OSInstance>::namespaced(self.admin.clone(), INSTANCE_NAMESPACE)
            .get_opt(NODE)
            .await?;
        let cordoned = self.cordoned().await?.is_some();
        let phase = i.as_ref().and_then(|i| i.status.as_ref()).map(|s| s.phase);
        let now = format!(
            "{:?} {:?} {:?} cordoned {cordoned}",
            os.state,
            phase,
            i.map(|i| i.spec.nodestatus)
        );
        if now != self.shown {
            let table = self
                .cluster
                .kubectl(&["get", "nodes,os,osinstances", "-o", "wide"])
                .await?;
            say(&format!("{now}\n{table}"));
            self.shown = now;
        }
        Ok(())
    }

    /// Who cordoned the node, if it is.
    async fn cordoned(&self) -> Result<Option<String>> {
        let n = self.nodes().get(NODE).await?;
        if n.spec.and_then(|s| s.unschedulable) != Some(true) {
            return Ok(None);
        }
        let mark = n
            .metadata
            .annotations
            .and_then(|a| a.get(ANN_CORDONED_BY).cloned());
        Ok(Some(mark.unwrap_or_default()))
    }

    /// Lives on until `done` holds.
    async fn until(&mut self, what: &str, done: impl Fn(&OS) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            self.beat().await?;
            self.show().await?;
            if done(&self.os().await?) {
                self.show().await?;
                say(&format!("{what} after {:.0} s", start.elapsed().as_secs_f64()));
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let log = self
                    .node
                    .vm()?
                    .ok("journalctl -b -u os-proxy -u os-agent --no-pager | tail -60")?;
                let mut own = fs_err::read_to_string(self.cluster.dir().join("operator.log"))?;
                own = os_e2e::proc::tail(&own, 40);
                bail!(
                    "{what} did not come within {PATIENCE:?}: {:#?}\n{log}\noperator:\n{own}",
                    self.os().await?.status
                );
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }

    /// What a user does: edits imgbuild's os.yaml and applies it. Gives the generation.
    async fn want(&self, version: &str, image: &camino::Utf8Path, images: &Images) -> Result<i64> {
        let path = format!("/{}", image.file_name().context("image file")?);
        self.node.server.put(&path, os_e2e::http::Reply::file(image));
        let text = fs_err::read_to_string(images.dir.join("2/os.yaml"))?;
        let digest = sha256(image)?;
        let yaml: String = text
            .lines()
            .map(|l| match l.trim().split(':').next().unwrap_or_default() {
                "imageurl" => format!("  imageurl: \"{}\"\n", self.node.server.guest_url(&path)),
                "flagSafe" => "  flagSafe: true\n".to_owned(),
                "checksum" => format!("  checksum: {digest}\n"),
                "osversion" => format!("  osversion: \"Slipway {version}\"\n"),
                _ => format!("{l}\n"),
            })
            .collect();
        say(&format!("kubectl apply -f os.yaml\n{yaml}"));
        self.cluster.apply(&yaml).await?;
        self.os().await?.metadata.generation.context("generation")
    }

    async fn pods(&self, round: usize) -> Result<()> {
        for i in 0..3 {
            let more = json!({"metadata": owned_by("ReplicaSet", "rs")});
            make_pod(&self.admin, "default", &format!("web-{round}-{i}"), NODE, more).await?;
        }
        Ok(())
    }
}

fn observed(os: &OS, generation: i64) -> bool {
    os.status
        .as_ref()
        .is_some_and(|s| s.observed_generation == Some(generation) && s.grants.is_empty())
}

fn holds(os: &OS, condition: &str) -> bool {
    os.status
        .as_ref()
        .is_some_and(|s| is_true(&s.conditions, condition))
}

/// From the audit log: each attempt cordons, then evicts, then uncordons; the operator never touches a pod.
fn check_order(w: &World, proxy: &str, attempts: usize) -> Result<()> {
    let audit = w.cluster.audit()?;
    let mut steps = String::new();
    for c in audit.calls.iter().filter(|c| c.changed() && c.user == proxy) {
        let word = match (c.resource.as_str(), c.request.pointer("/spec/unschedulable")) {
            ("nodes", Some(Value::Bool(true))) => 'C',
            ("nodes", Some(_)) => 'U',
            ("pods/eviction", _) => 'e',
            _ => continue,
        };
        if !(word == 'e' && steps.ends_with('e')) {
            steps.push(word);
        }
    }
    ensure!(
        steps == "CeU".repeat(attempts),
        "cordon, evictions, uncordon: {steps}"
    );
    Ok(())
}

async fn story(w: &mut World, images: &Images, proxy: &str) -> Result<()> {
    w.beat().await?;
    w.pods(1).await?;
    let g = w.want("2", &images.update("2"), images).await?;
    w.until("version 2 is complete", |os| {
        observed(os, g) && holds(os, condition_type::COMPLETE)
    })
    .await?;
    ensure!(w.cordoned().await?.is_none(), "still cordoned");
    ensure!(pods_of(&w.admin, NODE).await?.is_empty(), "pods were left");
    ensure!(
        (w.node.ready.slot.as_str(), w.node.ready.version.as_str()) == ("B", "2"),
        "{:?}",
        w.node.ready
    );
    let s = block_in_place(|| w.node.vm()?.committed("B"))?;
    ensure!(s["phase"] == "idle", "{s:#}");
    w.cluster
        .kubectl(&["wait", "--for=condition=Complete", "--timeout=5s", "os/slipway"])
        .await?;
    check_order(w, proxy, 1)?;

    w.pods(2).await?;
    let broken = images.broken(Broken::Hook)?;
    let g = w.want("3", &broken, images).await?;
    w.until("version 3 has failed", |os| {
        observed(os, g)
            && os
                .status
                .as_ref()
                .is_some_and(|s| !s.denylist.is_empty() && !s.failures.is_empty())
            && holds(os, condition_type::HALTED)
    })
    .await?;
    let status = w.os().await?.status.unwrap_or_default();
    ensure!(
        status.denylist[0].digest.contains(&sha256(&broken)?),
        "{status:#?}"
    );
    say(&format!(
        "failure: {} {}: {}",
        status.failures[0].node, status.failures[0].reason, status.failures[0].message
    ));
    ensure!(w.cordoned().await?.is_none(), "still cordoned");
    ensure!(
        (w.node.ready.slot.as_str(), w.node.ready.version.as_str()) == ("B", "2"),
        "{:?}",
        w.node.ready
    );
    let s = block_in_place(|| w.node.vm()?.committed("B"))?;
    ensure!(s["last_failure"]["cause"] == "health_failed", "{s:#}");
    check_order(w, proxy, 2)?;
    let events = w
        .cluster
        .kubectl(&["get", "events", "-A", "--sort-by=.lastTimestamp"])
        .await?;
    say(&format!("events\n{events}"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs root, QEMU, the fixture and kube-apiserver: tests/run whole"]
async fn an_update_and_a_broken_one_by_kubectl_apply() {
    if !os_e2e::e2e("the whole system") {
        return;
    }
    let proxy = User::account("upgrade-system", "upgrade-proxy");
    let operator = User::account("upgrade-system", "upgrade-operator");
    let options = Options {
        users: vec![proxy.clone(), operator.clone()],
        ..Options::default()
    };
    let images = block_in_place(|| images().unwrap());
    let programs = block_in_place(|| cluster_programs().unwrap());
    let mut node = block_in_place(|| Node::start("whole", &images, "1", Firmware::Bios).unwrap());
    node.keep();
    let Some(cluster) = Cluster::start("whole", &options).await.unwrap() else {
        return;
    };
    cluster.install().await.unwrap();
    let admin = admin(&cluster).unwrap();
    let _kubelets = kubelets(admin.clone());
    make_node(&admin, NODE, "none", "Slipway 1").await.unwrap();
    let config = kubeconfig(&cluster, "10.0.2.2", &proxy.token).unwrap();
    block_in_place(|| install_proxy(&mut node, &programs.proxy, &config).unwrap());
    let own = cluster.dir().join("operator.kubeconfig");
    fs_err::write(&own, kubeconfig(&cluster, "127.0.0.1", &operator.token).unwrap()).unwrap();
    let log = fs_err::File::create(cluster.dir().join("operator.log")).unwrap();
    let mut child = os_e2e::proc::command(&programs.operator);
    child
        .args(["--http", "127.0.0.1:0"])
        .env("KUBECONFIG", &own)
        .stderr(log.into_file())
        .stdout(std::process::Stdio::null());
    let from = node.ready.index + 1;
    let mut w = World {
        operator: child.spawn().unwrap(),
        cluster,
        admin,
        node,
        from,
        shown: String::new(),
    };
    if let Err(e) = story(&mut w, &images, &proxy.name).await {
        let own = fs_err::read_to_string(w.cluster.dir().join("operator.log")).unwrap_or_default();
        panic!("{e:#}\noperator:\n{}", os_e2e::proc::tail(&own, 60));
    }
}
