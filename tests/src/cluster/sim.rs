//! A node of the cluster: the real agent and its real server on a unix socket over an in-memory machine, the real proxy, and
//! the part of kubelet that tells the cluster about boots.

use super::players::{Task, node_status};
use anyhow::{Context, Result};
use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use kube::Client;
use os_agent::server::{Access, Socket, serve};
use os_agent::testing::{Fate, Node as Machine};
use os_proxy::drain::plan::Tuning;
use os_proxy::proxy::run::{Settings, run};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Spans that make an upgrade a matter of seconds.
pub const QUICK: Tuning = Tuning {
    retry_min_secs: 0.3,
    retry_max_secs: 1.0,
    stuck_secs: 3.0,
    resync_secs: 20.0,
    rate_per_sec: 100.0,
    stream_wait_secs: 5.0,
};

/// Connects a proxy to the cluster.
pub type Connect = Box<dyn Fn() -> Client + Send + Sync>;

struct Inner {
    name: String,
    machine: Mutex<Machine>,
    socket: Utf8PathBuf,
    /// The cluster, as kubelet.
    admin: Client,
    /// Makes a client for each start of the proxy: a dead proxy leaves no connections behind.
    proxy: Connect,
    /// Whether a proxy should run.
    wanted: AtomicBool,
    boots: AtomicU32,
    tuning: Tuning,
}

/// A running node. Ends when dropped.
pub struct Sim {
    inner: Arc<Inner>,
    life: Task,
    proxy: Arc<Mutex<Option<Task>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// A machine that runs version 1; its Node object must exist. Images 1 to 3 can be staged from `http://images/N`.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub async fn start(name: &str, dir: &Utf8Path, admin: Client, proxy: Connect) -> Result<Sim> {
        let machine = tokio::task::spawn_blocking(|| {
            let mut m = Machine::new();
            // Waits of the agent that the tests do not look at.
            m.config.trial.settle_secs = 1;
            m.restart();
            m
        })
        .await?;
        for v in ["1", "2", "3"] {
            machine.publish(v);
        }
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            machine: Mutex::new(machine),
            socket: dir.join(format!("{name}/os-agent.sock")),
            admin,
            proxy,
            wanted: AtomicBool::new(false),
            boots: AtomicU32::new(0),
            tuning: QUICK,
        });
        inner.tell_kubelet().await?;
        let holder = Arc::new(Mutex::new(None));
        let life = Task::spawn(live(Arc::clone(&inner), Arc::clone(&holder)));
        Ok(Sim {
            inner,
            life,
            proxy: holder,
        })
    }

    /// Starts the proxy, or kills and starts it anew.
    pub fn start_proxy(&self) {
        self.inner.wanted.store(true, Ordering::SeqCst);
        *lock(&self.proxy) = Some(self.inner.spawn_proxy());
    }

    /// Kills the proxy: at the next await it is gone.
    pub fn kill_proxy(&self) {
        self.inner.wanted.store(false, Ordering::SeqCst);
        *lock(&self.proxy) = None;
    }

    /// Whether the node's life goes on (it ends with a panic of the machine).
    pub fn is_alive(&self) -> bool {
        !self.life.is_finished()
    }

    /// How boots of a version go.
    pub fn fate(&self, version: &str, fate: Fate) {
        lock(&self.inner.machine).fate(version, fate);
    }

    /// The machine, to look at or change.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        lock(&self.inner.machine)
    }

    /// Reboots so far.
    pub fn boots(&self) -> u32 {
        self.inner.boots.load(Ordering::SeqCst)
    }

    /// Boot id as the agent has it now.
    pub fn boot_id(&self) -> String {
        self.inner.boot_id()
    }

    /// SHA-256 of an image.
    pub fn digest(version: &str) -> String {
        os_agent::testing::sha256(&os_agent::testing::image(version)).to_string()
    }
}

impl Inner {
    fn boot_id(&self) -> String {
        let m = lock(&self.machine);
        m.status().boot_id
    }

    async fn tell_kubelet(&self) -> Result<()> {
        let s = lock(&self.machine).status();
        // Boot ids of different machines differ in the field.
        node_status(&self.admin, &self.name, true, &s.boot_id, &s.os_version)
            .await
            .map(drop)
    }

    fn spawn_proxy(self: &Arc<Self>) -> Task {
        let settings = Settings {
            node: self.name.clone(),
            socket: self.socket.clone().into(),
            clock: Timestamp::now,
            tuning: self.tuning,
            backoff_min: Duration::from_millis(100),
        };
        let client = (self.proxy)();
        Task::spawn(run(client, settings, std::future::pending()))
    }
}

/// Serves the agent, keeps its clock, reboots when asked.
async fn live(inner: Arc<Inner>, proxy: Arc<Mutex<Option<Task>>>) {
    loop {
        if let Err(e) = one_boot(&inner).await {
            eprintln!("{}: {e:#}", inner.name);
            return;
        }
        // The node is down: its pods, the proxy among them, are gone.
        *lock(&proxy) = None;
        inner.boots.fetch_add(1, Ordering::SeqCst);
        let m = Arc::clone(&inner);
        if tokio::task::spawn_blocking(move || lock(&m.machine).boot())
            .await
            .is_err()
        {
            return;
        }
        // kubelet's report may meet an outage of the server: it repeats it, as kubelet does.
        while let Err(e) = inner.tell_kubelet().await {
            eprintln!("{}: kubelet: {e:#}", inner.name);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        if inner.wanted.load(Ordering::SeqCst) {
            *lock(&proxy) = Some(inner.spawn_proxy());
        }
    }
}

async fn one_boot(inner: &Arc<Inner>) -> Result<()> {
    let engine = {
        let m = lock(&inner.machine);
        m.clock.set_unix(Timestamp::now().as_second());
        m.engine().clone()
    };
    let access = Access::default();
    let socket = Socket::bind(&inner.socket, access).context("binding the agent's socket")?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serve(engine, socket, access, async {
        let _ = stopped.await;
    }));
    let mut last = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let m = lock(&inner.machine);
        let now = tokio::time::Instant::now();
        m.clock.advance(now - last);
        m.clock.set_unix(Timestamp::now().as_second());
        last = now;
        if m.host.set().reboots > 0 {
            break;
        }
    }
    let _ = stop.send(());
    // systemd stops services for a while before the machine goes down.
    let _ = tokio::time::timeout(Duration::from_secs(5), serving).await;
    Ok(())
}
