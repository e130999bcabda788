//! `os-agent api-proxy`: the kubelet's way to the API servers. TCP from one local address to several control-plane
//! addresses; TLS stays between kubelet and server, so the proxy holds no key and needs no privilege.
//!
//! A process of its own: whatever happens to the agent cuts no connection. `settings` and `choose` are pure.

pub mod choose;
mod health;
mod pool;
mod probe;
mod relay;
pub mod settings;

use crate::error::{AgentError, Result};
use camino::Utf8Path;
use os_proto::codes::Code;
use pool::Pool;
use probe::Prober;
use settings::Settings;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Where the settings are unless another file is named.
pub const FILE: &str = "/etc/os-agent/api-proxy.toml";
/// Connections at a time; a kubelet and its pods' agents need a few dozen.
const CONNECTIONS: usize = 1024;

fn load(file: &Utf8Path) -> Result<Settings> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| AgentError::new(Code::InvalidArgument, format!("{file}: {e}")))?;
    Settings::parse(&text).map_err(|e| AgentError::new(Code::InvalidArgument, format!("{file}: {e}")))
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|e| AgentError::new(Code::Internal, format!("{address}: cannot listen: {e}")))
}

/// Serves until `end`. The file is read again before every round of probes; one that is not valid leaves the old settings.
///
/// # Errors
/// `InvalidArgument` for a file that is not valid at the start, `Internal` when an address cannot be bound.
pub async fn serve(file: &Utf8Path, end: impl Future<Output = ()>) -> Result<()> {
    let settings = load(file)?;
    let listener = bind(settings.listen).await?;
    let health = match settings.health {
        Some(a) => Some(bind(a).await?),
        None => None,
    };
    let pool = Arc::new(Pool::new(&settings));
    // A server with a wrong certificate must not get the first connection.
    round(&pool, &settings).await;
    tracing::info!(
        "{} → {}",
        settings.listen,
        settings
            .upstreams
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    );
    crate::notify::ready();
    let probing = tokio::spawn(keep(pool.clone(), file.to_owned(), settings));
    let telling = health.map(|l| tokio::spawn(health::serve(l, pool.clone())));
    tokio::select! {
        () = accept(&listener, &pool) => {}
        () = end => {}
    }
    probing.abort();
    if let Some(t) = telling {
        t.abort();
    }
    Ok(())
}

/// Takes connections and relays each in a task of its own.
async fn accept(listener: &TcpListener, pool: &Arc<Pool>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Beyond the limit clients wait in the kernel's queue.
        let Ok(permit) = free.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((client, _)) => {
                let pool = pool.clone();
                tokio::spawn(async move {
                    relay::run(client, &pool).await;
                    drop(permit);
                });
            }
            Err(e) => {
                // Out of descriptors, most likely: some will be free in a moment.
                tracing::warn!("accept: {e}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Probes for ever, with what the file says now.
async fn keep(pool: Arc<Pool>, file: camino::Utf8PathBuf, mut settings: Settings) {
    let mut complained = String::new();
    loop {
        let jitter = os_steps::sys::clock::random(settings.probe.as_millis() as u64 / 5);
        tokio::time::sleep(settings.probe + Duration::from_millis(jitter)).await;
        match load(&file) {
            Ok(new) => {
                complained.clear();
                if new != settings {
                    if (new.listen, new.health) != (settings.listen, settings.health) {
                        tracing::warn!("{file}: other local addresses need a restart of the proxy");
                    }
                    pool.set(&new);
                    settings = new;
                    tracing::info!("{file}: {} servers", settings.upstreams.len());
                }
            }
            Err(e) if e.message != complained => {
                tracing::error!("{}; what was read before stays", e.message);
                complained = e.message;
            }
            Err(_) => {}
        }
        round(&pool, &settings).await;
    }
}

/// One look at every server, all at once.
async fn round(pool: &Arc<Pool>, settings: &Settings) {
    let prober = match Prober::new(settings) {
        Ok(p) => Arc::new(p),
        // Without a certificate to compare with nobody is known to be good, nobody to be bad.
        Err(e) => return tracing::error!("no probes: {e}"),
    };
    let all: Vec<_> = pool
        .upstreams()
        .into_iter()
        .map(|u| {
            let prober = prober.clone();
            tokio::spawn(async move {
                let found = prober.look(&u).await;
                (u, found)
            })
        })
        .collect();
    for task in all {
        if let Ok((u, found)) = task.await {
            pool.found(&u, found);
        }
    }
    pool.cut_the_dead();
}

/// A connection that notices a peer that vanished without a word.
fn watchful(s: &TcpStream) {
    use rustix::net::sockopt;
    let _ = s.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(s, true);
    let _ = sockopt::set_tcp_keepidle(s, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepintvl(s, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(s, 3);
    let _ = sockopt::set_tcp_user_timeout(s, 30_000);
}
