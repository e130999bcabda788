//! A fresh node joins a cluster by the standard bundle alone: containerd, kubelet and network plug-ins come as packages of the
//! bundle, kubelet asks for its certificate with a bootstrap token through the node's API proxy, kube-controller-manager approves
//! and signs it, and the Node becomes Ready. A power cut later it is Ready again, without the token and without running a step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use anyhow::{Context, Result, bail, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::cluster::{Cluster, Options, assets};
use os_e2e::http::Reply;
use os_e2e::images::images;
use os_e2e::node::{Node, say};
use os_e2e::proc;
use os_e2e::product::sha256;
use os_e2e::vm::{Firmware, ctl};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const NAME: &str = "worker-1";
const TOKEN: (&str, &str) = ("abcdef", "0123456789abcdef");
/// kubelet's programs are large and the processor is emulated.
const PATIENCE: Duration = Duration::from_secs(900);
/// What signs and approves kubelet's requests, and what lifts the taint of a node that became ready.
const CONTROLLERS: [&str; 3] = [
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-approving-controller",
    "node-lifecycle-controller",
];
/// Stands for what a network add-on would put on the node.
const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]]}}]}"#;

/// A token, and the roles that kubeadm gives its bearers.
fn joining() -> String {
    let (id, secret) = TOKEN;
    let mut y = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: bootstrap-token-{id}, namespace: kube-system}}\n\
         type: bootstrap.kubernetes.io/token\nstringData: {{token-id: {id}, token-secret: '{secret}', \
         usage-bootstrap-authentication: 'true', auth-extra-groups: 'system:bootstrappers:workers'}}\n"
    );
    for (name, role, group) in [
        ("create", "system:node-bootstrapper", "system:bootstrappers"),
        (
            "approve",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "system:bootstrappers",
        ),
        (
            "renew",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:nodes",
        ),
    ] {
        y += &format!(
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: join-{name}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: '{role}'}}\n\
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: '{group}'}}]\n"
        );
    }
    y
}

/// Serves an archive as packages of bundles are: files, `install`, named by its digest. Gives the digest.
fn package(
    node: &Node,
    dir: &Utf8Path,
    name: &str,
    programs: &[(&str, Utf8PathBuf)],
    install: &str,
) -> Result<String> {
    let tree = dir.join(name);
    fs_err::create_dir_all(&tree)?;
    let mut script = String::from("set -e\n");
    for (to, program) in programs {
        let file = program.file_name().context("program")?;
        fs_err::copy(program, tree.join(file))?;
        script += &format!(
            "mkdir -p {to}\ninstall -m 0755 {file} {to}/{file}.new\nmv -f {to}/{file}.new {to}/{file}\n"
        );
    }
    fs_err::write(tree.join("install"), script + install)?;
    let archive = dir.join(format!("{name}.tar.gz"));
    proc::sh(&["tar", "-C", tree.as_str(), "-czf", archive.as_str(), "."])?;
    let hex = sha256(&archive)?;
    node.server
        .put(&format!("/packages/{hex}.tar.gz"), Reply::file(&archive));
    Ok(hex)
}

/// Renders the standard bundle for the cluster and serves it as an archive; its URL and digest.
fn bundle(node: &Node, cluster: &Cluster, agent: &Utf8Path) -> Result<(String, String)> {
    let dir = cluster.dir().join("join");
    let programs = assets::ensure_node()?;
    let at = |n: &str, to: &'static str| (to, programs.join(n));
    let containerd = package(
        node,
        &dir,
        "containerd",
        &[
            at("containerd", "/opt/bin"),
            at("containerd-shim-runc-v2", "/opt/bin"),
        ],
        "",
    )?;
    let kubelet = package(node, &dir, "kubelet", &[at("kubelet", "/opt/bin")], "")?;
    let plugins = ["bridge", "host-local", "loopback"].map(|n| at(n, "/opt/cni/bin"));
    let conf =
        format!("mkdir -p /etc/cni/net.d\ncat >/etc/cni/net.d/10-test.conflist <<'END'\n{NETWORK}\nEND\n");
    let network = package(node, &dir, "network", &plugins, &conf)?;
    let port = cluster.url().rsplit_once(':').context("port")?.1.to_owned();
    let ca: String = fs_err::read_to_string(cluster.dir().join("certs/ca.crt"))?
        .lines()
        .map(|l| format!("    {l}\n"))
        .collect();
    let context = format!(
        "kubernetesVersion: '{}'\ncri: ContainerdV2\npackages:\n  url: {}\n  install: {{containerd: 'sha256:{containerd}', \
         kubelet: 'sha256:{kubelet}', network: 'sha256:{network}'}}\nclusterMasterKubeAPIEndpoints: ['10.0.2.2:{port}']\n\
         apiServerName: kubernetes\nbootstrapToken: {}.{}\nnormal:\n  clusterDomain: cluster.local\n  clusterDNSAddress: 10.0.0.10\n  \
         kubernetesCA: |\n{ca}kubelet:\n  labels: {{slipway.test/joined: 'yes'}}\n",
        assets::pinned_version().trim_start_matches('v'),
        node.server.guest_url("/packages"),
        TOKEN.0,
        TOKEN.1,
    );
    let file = dir.join("context.yaml");
    fs_err::write(&file, context)?;
    let out = dir.join("bundle");
    let said = proc::run(proc::command(agent).args([
        "steps",
        "render",
        "--standard",
        "--context",
        file.as_str(),
        "--out",
        out.as_str(),
        "--node-group",
        "worker",
    ]))?;
    say(said.trim());
    let archive = dir.join("bundle.tar.gz");
    proc::sh(&["tar", "-C", out.as_str(), "-czf", archive.as_str(), "."])?;
    node.server.put("/bundle.tar.gz", Reply::file(&archive));
    Ok((node.server.guest_url("/bundle.tar.gz"), sha256(&archive)?))
}

/// The Node's condition Ready, as it is; `None` without a Node.
async fn ready(cluster: &Cluster) -> Result<Option<(String, Value)>> {
    let e = cluster
        .kubectl_by(&cluster.assets.kubectl, &["get", "node", NAME, "-o", "json"])
        .await?;
    if e.code != 0 {
        ensure!(e.err.contains("NotFound"), "{}", e.err);
        return Ok(None);
    }
    let node: Value = serde_json::from_str(&e.out)?;
    let conditions = node["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let word = conditions
        .iter()
        .find(|c| c["type"] == "Ready")
        .and_then(|c| c["status"].as_str())
        .unwrap_or("none");
    Ok(Some((word.to_owned(), node)))
}

/// Waits until the node is Ready in this boot.
async fn until_ready(cluster: &Cluster, node: &mut Node) -> Result<Value> {
    let start = Instant::now();
    let boot = block_in_place(|| node.vm()?.ok("cat /proc/sys/kernel/random/boot_id"))?;
    let mut last = String::new();
    loop {
        let now = ready(cluster).await?;
        if let Some((word, n)) = &now {
            if word == "True" && n["status"]["nodeInfo"]["bootID"] == boot.trim() {
                say(&format!("Ready after {:.0} s", start.elapsed().as_secs_f64()));
                return Ok(n.clone());
            }
            if *word != last {
                say(&format!(
                    "{:.0} s: the Node is there, Ready is {word}",
                    start.elapsed().as_secs_f64()
                ));
                last.clone_from(word);
            }
        }
        if start.elapsed() > PATIENCE {
            let told = block_in_place(|| {
                node.vm()?.ok(
                    "os-agent steps status; systemctl --no-pager -l status containerd kubelet os-agent-api-proxy | tail -60; \
                     journalctl -b -u kubelet -u containerd -u os-agent-steps -u os-agent-api-proxy --no-pager | tail -80; df -h",
                )
            })?;
            let csr = cluster.kubectl(&["get", "csr,nodes", "-o", "wide"]).await?;
            bail!("not Ready within {PATIENCE:?}: {now:?}\n{told}\n{csr}");
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

async fn story(cluster: &Cluster, node: &mut Node, agent: &Utf8Path) -> Result<()> {
    let (url, digest) = block_in_place(|| bundle(node, cluster, agent))?;
    let config = ctl::encode(
        format!(
            "[steps]\nsource = \"{url}\"\nsha256 = \"{digest}\"\nallow_http = true\ndisruption = \"auto\"\n"
        )
        .as_bytes(),
    );
    block_in_place(|| {
        let vm = node.vm()?;
        vm.network()?;
        vm.ok(&format!(
            "set -e; echo {NAME} >/etc/hostname; hostname {NAME}; mkdir -p /etc/os-agent; \
             echo {config} | base64 -d >/etc/os-agent/config.toml; systemctl enable --now os-agent-steps.service; sync"
        ))
    })?;
    let n = until_ready(cluster, node).await?;
    say(&cluster.kubectl(&["get", "nodes,csr", "-o", "wide"]).await?);
    let info = &n["status"]["nodeInfo"];
    ensure!(info["osImage"] == "Slipway 1", "{info:#}");
    ensure!(info["kubeletVersion"] == assets::pinned_version(), "{info:#}");
    ensure!(
        info["containerRuntimeVersion"]
            .as_str()
            .is_some_and(|v| v.starts_with("containerd://2.")),
        "{info:#}"
    );
    ensure!(n["metadata"]["labels"]["slipway.test/joined"] == "yes", "{n:#}");
    let status: Value =
        serde_json::from_str(&block_in_place(|| node.vm()?.ok("os-agent --json steps status"))?)?;
    ensure!(status["outcome"]["outcome"] == "converged", "{status:#}");

    // Another pass: the certificate is there, so the token goes; nothing is restarted.
    let told = block_in_place(|| {
        node.vm()?.ok(
            "set -e; k=$(systemctl show -p MainPID kubelet); c=$(systemctl show -p MainPID containerd); \
             os-agent --json steps run --from-start; [ \"$k $c\" = \"$(systemctl show -p MainPID kubelet) $(systemctl show -p MainPID containerd)\" ]; \
             [ ! -e /etc/kubernetes/bootstrap-kubelet.conf ]; ls -l /var/lib/kubelet/pki",
        )
    })?;
    say(told.trim());

    block_in_place(|| node.power_cycle())?;
    until_ready(cluster, node).await?;
    let status: Value =
        serde_json::from_str(&block_in_place(|| node.vm()?.ok("os-agent --json steps status"))?)?;
    ensure!(
        ["in-sync", "converged"].contains(&status["outcome"]["outcome"].as_str().unwrap_or_default()),
        "{status:#}"
    );
    say(&cluster.kubectl(&["get", "nodes,csr", "-o", "wide"]).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs root, QEMU, the fixture and a Go toolchain: tests/run whole"]
async fn a_fresh_node_joins_by_the_standard_bundle() {
    if !os_e2e::e2e("a node joins") {
        return;
    }
    let programs = block_in_place(|| assets::ensure_node().unwrap());
    let images = block_in_place(|| images().unwrap());
    let options = Options {
        apiserver: [
            "--authorization-mode=Node",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth=true",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::start("join", &options).await.unwrap() else {
        return;
    };
    cluster.apply(&joining()).await.unwrap();
    cluster
        .start_controllers(&programs.join("kube-controller-manager"), &CONTROLLERS)
        .unwrap();
    let mut node =
        block_in_place(|| Node::start_with_memory("join", &images, "1", Firmware::Bios, 2048).unwrap());
    node.keep();
    if let Err(e) = story(&cluster, &mut node, &images.product.agent).await {
        let own = fs_err::read_to_string(cluster.dir().join("controllers.log")).unwrap_or_default();
        panic!("{e:#}\ncontrollers:\n{}", proc::tail(&own, 40));
    }
}
