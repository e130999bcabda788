//! Starting and stopping etcd and kube-apiserver on loopback, with RBAC, an audit log and a token per user.

use super::assets::{Assets, Found, ensure};
use super::audit::Audit;
use super::certs;
use super::front::Front;
use crate::proc;
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Starting takes seconds on a quiet machine and minutes on a busy one.
const START_LIMIT: Duration = Duration::from_secs(240);
/// Bodies of our own objects and of Node patches, which the invariants are checked on; the rest without bodies.
const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
# A watch is counted when it begins, everything else when it is answered.
- level: Metadata
  verbs: [watch]
  omitStages: [ResponseComplete]
- level: RequestResponse
  verbs: [create, update, patch, delete]
  omitStages: [ResponseStarted]
  resources:
  - {group: upgrade.openeuler.org}
  - {group: "", resources: [pods/eviction]}
- level: Request
  verbs: [patch, update, create]
  omitStages: [ResponseStarted]
  resources:
  - {group: "", resources: [nodes, events]}
- level: Metadata
  omitStages: [ResponseStarted]
"#;
const ADMIN_TOKEN: &str = "token-of-the-test-admin";

/// Users beside the admin.
#[derive(Debug, Clone)]
pub struct User {
    /// Name, such as `system:serviceaccount:upgrade-system:upgrade-proxy`.
    pub name: String,
    /// Bearer token.
    pub token: String,
}

impl User {
    /// A service account with a static token.
    pub fn account(namespace: &str, name: &str) -> User {
        User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            token: format!("token-of-{namespace}-{name}"),
        }
    }

    fn groups(&self) -> String {
        match self.name.strip_prefix("system:serviceaccount:") {
            Some(rest) => {
                let ns = rest.split(':').next().unwrap_or_default();
                format!("system:serviceaccounts,system:serviceaccounts:{ns}")
            }
            None => String::new(),
        }
    }
}

/// What is not the default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Service accounts with static tokens.
    pub users: Vec<User>,
    /// More arguments of kube-apiserver.
    pub apiserver: Vec<String>,
}

/// A running control plane. Ends with its processes when dropped.
#[derive(Debug)]
pub struct Cluster {
    /// Programs it runs on.
    pub assets: Assets,
    /// The proxy in front; our own clients go through it.
    pub front: Front,
    scratch: Scratch,
    port: u16,
    children: Vec<Child>,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Cluster {
    /// Starts one, or says why there is none (no programs and no Go toolchain).
    ///
    /// # Errors
    /// Something that should have worked did not; the message holds the ends of the logs.
    pub async fn start(name: &str, options: &Options) -> Result<Option<Cluster>> {
        let assets = match tokio::task::spawn_blocking(ensure).await?? {
            Found::Assets(a) => a,
            Found::Missing(why) => {
                println!("skipped: {name}: {why}");
                return Ok(None);
            }
        };
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = Scratch::new(&format!("kube-{name}-{n}"))?;
        let (client, peer, port) = (free_port()?, free_port()?, free_port()?);
        let admin = User {
            name: "test-admin".into(),
            token: ADMIN_TOKEN.into(),
        };
        prepare(scratch.path(), &admin, &options.users, port)?;
        let mut cluster = Cluster {
            front: Front::start(
                port,
                &scratch.path().join("certs/apiserver.crt"),
                std::iter::once(admin.clone())
                    .chain(options.users.clone())
                    .collect(),
            )
            .await?,
            assets,
            scratch,
            port,
            children: Vec::new(),
        };
        cluster.spawn_etcd(client, peer)?;
        cluster.spawn_apiserver(client, &options.apiserver)?;
        cluster.wait_ready().await?;
        Ok(Some(cluster))
    }

    fn log_file(&self, name: &str) -> Result<Stdio> {
        let path = self.scratch.path().join(format!("{name}.log"));
        let f = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(f.into())
    }

    fn spawn_etcd(&mut self, client: u16, peer: u16) -> Result<()> {
        let url = |p: u16| format!("http://127.0.0.1:{p}");
        let mut c = proc::command(&self.assets.etcd);
        c.args([
            "--data-dir",
            self.scratch.path().join("etcd").as_str(),
            "--unsafe-no-fsync",
        ])
        .args([
            "--listen-client-urls",
            &url(client),
            "--advertise-client-urls",
            &url(client),
        ])
        .args([
            "--listen-peer-urls",
            &url(peer),
            "--initial-advertise-peer-urls",
            &url(peer),
        ])
        .args(["--initial-cluster", &format!("default={}", url(peer))])
        .args(["--quota-backend-bytes", "4294967296", "--log-level", "warn"])
        .stdout(self.log_file("etcd")?)
        .stderr(self.log_file("etcd")?);
        self.children.push(
            c.spawn()
                .with_context(|| format!("starting {}", self.assets.etcd))?,
        );
        Ok(())
    }

    fn spawn_apiserver(&mut self, etcd: u16, more: &[String]) -> Result<()> {
        let dir = self.scratch.path();
        let mut c = proc::command(&self.assets.apiserver);
        c.arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
            .arg(format!("--secure-port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg("--endpoint-reconciler-type=none")
            .arg(format!("--cert-dir={dir}/certs"))
            .arg(format!("--client-ca-file={dir}/certs/ca.crt"))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={dir}/sa.pub"))
            .arg(format!("--service-account-signing-key-file={dir}/sa.key"))
            .arg(format!("--token-auth-file={dir}/tokens.csv"))
            .args([
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
            ])
            // No controller makes the accounts that this plug-in would ask for.
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg(format!("--audit-log-path={}", self.audit_path()))
            .args(["--audit-log-maxsize=100000", "--audit-log-mode=blocking"])
            .arg(format!("--audit-policy-file={dir}/audit.yaml"))
            .args(["--profiling=false", "--allow-privileged=true"])
            .args(more)
            .stdout(self.log_file("apiserver")?)
            .stderr(self.log_file("apiserver")?);
        self.children.push(
            c.spawn()
                .with_context(|| format!("starting {}", self.assets.apiserver))?,
        );
        Ok(())
    }

    /// Starts kube-controller-manager with these controllers only; it signs with the cluster's authority.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_controllers(&mut self, program: &Utf8Path, names: &[&str]) -> Result<()> {
        let certs = self.scratch.path().join("certs");
        let mut c = proc::command(program);
        c.arg(format!("--kubeconfig={}", self.kubeconfig()))
            .arg(format!("--controllers={}", names.join(",")))
            .arg(format!("--cluster-signing-cert-file={certs}/ca.crt"))
            .arg(format!("--cluster-signing-key-file={certs}/ca.key"))
            .args(["--leader-elect=false", "--secure-port=0"])
            .stdout(self.log_file("controllers")?)
            .stderr(self.log_file("controllers")?);
        // Not the last one: that is the server, which can be paused.
        self.children
            .insert(0, c.spawn().with_context(|| format!("starting {program}"))?);
        Ok(())
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if start.elapsed() > START_LIMIT {
                bail!(
                    "kube-apiserver was not ready after {START_LIMIT:?}:\n{}",
                    self.logs()
                );
            }
            for c in &mut self.children {
                if let Some(status) = c.try_wait()? {
                    bail!(
                        "a part of the control plane ended with {status}:\n{}",
                        self.logs()
                    );
                }
            }
            if self
                .kubectl(&["get", "--raw=/readyz", "--request-timeout=3s"])
                .await
                .is_ok()
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    fn logs(&self) -> String {
        ["etcd", "apiserver"]
            .map(|n| {
                let text =
                    fs_err::read_to_string(self.scratch.path().join(format!("{n}.log"))).unwrap_or_default();
                format!("{n}:\n{}", proc::tail(&text, 25))
            })
            .join("\n")
    }

    /// A directory of the test's own, removed at the end when all went well.
    pub fn dir(&self) -> &Utf8Path {
        self.scratch.path()
    }

    /// kubeconfig of the admin, straight to the server.
    pub fn kubeconfig(&self) -> Utf8PathBuf {
        self.scratch.path().join("kubeconfig")
    }

    /// URL of the server itself, https.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The admin's token.
    pub fn admin_token(&self) -> &'static str {
        ADMIN_TOKEN
    }

    fn audit_path(&self) -> Utf8PathBuf {
        self.scratch.path().join("audit.log")
    }

    /// What was asked of the server so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit(&self) -> Result<Audit> {
        Audit::read(&self.audit_path())
    }

    /// kubectl as admin; gives standard output.
    ///
    /// # Errors
    /// It ended with another status than 0.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let e = self.kubectl_by(&self.assets.kubectl.clone(), args).await?;
        if e.code != 0 {
            bail!(
                "kubectl {}: status {}: {}{}",
                args.join(" "),
                e.code,
                e.out,
                e.err
            );
        }
        Ok(e.out)
    }

    /// Another kubectl as admin, whatever its status.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn kubectl_by(&self, program: &Utf8Path, args: &[&str]) -> Result<proc::Ended> {
        let mut c = proc::command(program);
        c.args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.scratch.path());
        tokio::task::spawn_blocking(move || proc::status(&mut c)).await?
    }

    /// Applies YAML.
    ///
    /// # Errors
    /// kubectl's.
    pub async fn apply(&self, yaml: &str) -> Result<()> {
        static FILE: AtomicU32 = AtomicU32::new(0);
        let n = FILE.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.path().join(format!("apply-{n}.yaml"));
        fs_err::write(&path, yaml)?;
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", path.as_str()])
            .await?;
        Ok(())
    }

    /// A token of a service account that is bound to a pod, as kubelet would mount it: it carries the node's name.
    ///
    /// # Errors
    /// kubectl's.
    pub async fn bound_token(&self, namespace: &str, account: &str, pod: &str) -> Result<String> {
        let t = self
            .kubectl(&[
                "create",
                "token",
                account,
                "-n",
                namespace,
                "--bound-object-kind=Pod",
                "--bound-object-name",
                pod,
                "--duration=1h",
            ])
            .await?;
        Ok(t.trim().to_owned())
    }

    /// Stops the server for a while, as an outage does.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn pause(&self, stop: bool) -> Result<()> {
        let sig = if stop {
            rustix::process::Signal::STOP
        } else {
            rustix::process::Signal::CONT
        };
        if let Some(c) = self.children.last()
            && let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(c.id())?)
        {
            rustix::process::kill_process(pid, sig)?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for c in self.children.iter_mut().rev() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

/// Keys, tokens, policy and the admin's kubeconfig.
fn prepare(dir: &Utf8Path, admin: &User, users: &[User], port: u16) -> Result<()> {
    certs::make(&dir.join("certs"))?;
    let (key, public) = (dir.join("sa.key"), dir.join("sa.pub"));
    proc::sh(&["openssl", "genrsa", "-out", key.as_str(), "2048"])?;
    proc::sh(&[
        "openssl",
        "rsa",
        "-in",
        key.as_str(),
        "-pubout",
        "-out",
        public.as_str(),
    ])?;
    let mut tokens = format!("{},{},1,\"system:masters\"\n", admin.token, admin.name);
    for (i, u) in users.iter().enumerate() {
        tokens += &format!("{},{},{},\"{}\"\n", u.token, u.name, i + 2, u.groups());
    }
    fs_err::write(dir.join("tokens.csv"), tokens)?;
    fs_err::write(dir.join("audit.yaml"), AUDIT_POLICY)?;
    fs_err::write(dir.join("kubeconfig"), kubeconfig(dir, &admin.token, port))?;
    Ok(())
}

fn kubeconfig(dir: &Utf8Path, token: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: 'https://127.0.0.1:{port}', tls-server-name: kubernetes.default.svc, \
         certificate-authority: {dir}/certs/apiserver.crt}}}}]\n\
         users: [{{name: t, user: {{token: {token}}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t, namespace: default}}}}]\n"
    )
}
