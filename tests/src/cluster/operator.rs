//! The operator under test, with the shipped account: as a task of the test that can be killed, or as the program itself.

use super::players::{Task, client};
use super::server::{Cluster, User};
use crate::{proc, product};
use anyhow::{Context, Result, ensure};
use camino::Utf8PathBuf;
use os_proxy::operator::{LeaseOptions, Options, run};
use std::net::TcpListener;
use std::process::Child;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Account of the operator as `rbac.yaml` makes it.
pub fn account() -> User {
    User::account(os_proxy::api::SYSTEM_NAMESPACE, "upgrade-operator")
}

/// Account of the proxies as `rbac.yaml` makes it.
pub fn proxy_account() -> User {
    User::account(os_proxy::api::SYSTEM_NAMESPACE, "upgrade-proxy")
}

/// An operator as a task. Dropping it kills it: its Lease stays until it runs out.
#[derive(Debug)]
pub struct Operator {
    _task: Task,
    port: u16,
}

impl Operator {
    /// One that leads a few seconds after its predecessor died, and looks at trouble again every 5 s.
    ///
    /// # Errors
    /// No port, or a malformed address.
    pub async fn start(cluster: &Cluster, name: &str) -> Result<Operator> {
        let client = client(cluster, &account().token, "os-operator")?;
        let mut lease = LeaseOptions::new(os_proxy::api::SYSTEM_NAMESPACE.into(), name.into());
        lease.duration = Duration::from_secs(4);
        lease.renew = Duration::from_secs(1);
        let mut options = Options::new(lease);
        options.probe = Duration::from_secs(5);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (tell, stop) = tokio::sync::watch::channel(false);
        let task = Task::spawn(async move {
            // The sender lives as long as the task.
            let _tell = tell;
            run(client, options, Some(listener), stop).await;
        });
        Ok(Operator { _task: task, port })
    }

    /// Status and text of one of its pages.
    ///
    /// # Errors
    /// It does not answer, or not in HTTP.
    pub async fn page(&self, path: &str) -> Result<(u16, String)> {
        page(self.port, path).await
    }
}

async fn page(port: u16, path: &str) -> Result<(u16, String)> {
    let mut s = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    s.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    s.read_to_string(&mut text).await?;
    let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok());
    Ok((status.context("no status line")?, text))
}

/// The program os-operator with its defaults. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    port: u16,
    log: Utf8PathBuf,
}

impl Program {
    /// Builds and starts it, with a kubeconfig that holds the operator's token.
    ///
    /// # Errors
    /// The build fails, or it does not get ready.
    pub async fn start(cluster: &Cluster) -> Result<Program> {
        let path = tokio::task::spawn_blocking(product::cluster_programs)
            .await??
            .operator;
        let config = cluster.dir().join("operator.kubeconfig");
        fs_err::write(&config, kubeconfig(&cluster.front.url(), &account().token))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = cluster.dir().join("operator.log");
        let child = proc::command(&path)
            .args(["--http", &format!("127.0.0.1:{port}"), "--identity", "program"])
            .env("KUBECONFIG", &config)
            .env("RUST_LOG", "info")
            .stdout(fs_err::File::create(&log)?.into_parts().0)
            .stderr(fs_err::OpenOptions::new().append(true).open(&log)?.into_parts().0)
            .spawn()
            .with_context(|| format!("starting {path}"))?;
        let p = Program { child, port, log };
        super::players::wait_for("os-operator to answer", Duration::from_secs(60), || async {
            Ok(page(p.port, "/healthz").await.ok())
        })
        .await?;
        Ok(p)
    }

    /// Largest resident size so far, in KiB (`VmHWM`, proc(5)).
    ///
    /// # Errors
    /// It has ended.
    pub fn peak_kib(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs_err::read_to_string(&path)?;
        crate::proc::peak_kib(&text).with_context(|| format!("no VmHWM in {path}"))
    }

    /// One of its pages.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn page(&self, path: &str) -> Result<(u16, String)> {
        page(self.port, path).await
    }

    /// The end of what it wrote.
    pub fn log(&self) -> String {
        proc::tail(&fs_err::read_to_string(&self.log).unwrap_or_default(), 20)
    }

    /// Asks it to end, as the kubelet does, and waits.
    ///
    /// # Errors
    /// It ends with a failure.
    pub fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id())?).context("pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "os-operator ended with {status}: {}",
            self.log()
        );
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kubeconfig(server: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{{name: t, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: t, user: {{token: {token}}}}}]\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n"
    )
}
