//! One look at a server: TLS to the end, then `/readyz`.

use super::settings::{Settings, Upstream};
use os_steps::sys::clock::monotonic;
use os_steps::sys::hosts;
use reqwest::{Certificate, Client, StatusCode};
use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// It is one of ours and answers.
    Ready(Duration),
    /// It answers and must not be asked: its certificate, or it says that it is not ready.
    Refused(String),
    /// No answer in time.
    Silent(String),
}

/// Looks; made anew for every round, so that a renewed authority is seen.
pub(super) struct Prober {
    roots: Vec<Certificate>,
    name: Option<String>,
    timeout: Duration,
}

impl Prober {
    pub(super) fn new(s: &Settings) -> Result<Prober, String> {
        let pem = std::fs::read(&s.ca_file).map_err(|e| format!("{}: {e}", s.ca_file))?;
        let roots = Certificate::from_pem_bundle(&pem).map_err(|e| format!("{}: {e}", s.ca_file))?;
        if roots.is_empty() {
            return Err(format!("{}: holds no certificate", s.ca_file));
        }
        Ok(Prober {
            roots,
            name: s.server_name.clone(),
            timeout: s.timeout,
        })
    }

    pub(super) async fn look(&self, u: &Upstream) -> Found {
        let start = monotonic();
        match tokio::time::timeout(self.timeout, self.ask(u)).await {
            Err(_) => Found::Silent(format!("no answer within {} ms", self.timeout.as_millis())),
            Ok(Err(found)) => found,
            // Who asks without credentials may be turned away; that is an answer of a working server.
            Ok(Ok(s)) if s.is_success() || s == StatusCode::UNAUTHORIZED || s == StatusCode::FORBIDDEN => {
                Found::Ready(monotonic().saturating_sub(start))
            }
            Ok(Ok(s)) => Found::Refused(format!("/readyz answers {s}")),
        }
    }

    async fn ask(&self, u: &Upstream) -> Result<StatusCode, Found> {
        let silent = |e: &dyn std::fmt::Display| Found::Silent(e.to_string());
        let address: SocketAddr = hosts::addresses(&u.host)
            .await
            .map_err(|e| silent(&e))?
            .first()
            .map(|ip| SocketAddr::new(*ip, u.port))
            .ok_or_else(|| silent(&"its name has no address"))?;
        let mut b = Client::builder()
            .user_agent(concat!("os-agent/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .dns_resolver(hosts::Names)
            .pool_max_idle_per_host(0)
            .tls_certs_only(self.roots.clone());
        let url = match &self.name {
            Some(name) => {
                b = b.resolve(name, address);
                format!("https://{name}:{}/readyz", u.port)
            }
            None => format!("https://{u}/readyz"),
        };
        let client = b.build().map_err(|e| silent(&e))?;
        match client.get(url).send().await {
            Ok(r) => Ok(r.status()),
            Err(e) => Err(told(&e)),
        }
    }
}

fn told(e: &reqwest::Error) -> Found {
    let mut text = e.to_string();
    let mut certificate = false;
    let mut next = e.source();
    while let Some(cause) = next {
        text = cause.to_string();
        let io = cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        let tls = cause
            .downcast_ref::<rustls::Error>()
            .or_else(|| io.and_then(|i| i.downcast_ref::<rustls::Error>()));
        certificate |= matches!(tls, Some(rustls::Error::InvalidCertificate(_)));
        next = io
            .map(|i| i as &(dyn std::error::Error + 'static))
            .or_else(|| cause.source());
    }
    if certificate {
        Found::Refused(format!("its certificate: {text}"))
    } else {
        Found::Silent(text)
    }
}
