//! The cluster's API by plain https: bundles of the bashible API and annotations of this Node. Every request is bounded, and
//! a dead local proxy never hides the servers behind it.

use crate::approval::{Annotations, Patch};
use crate::error::{Result, StepsError};
use camino::Utf8PathBuf;
use os_proto::codes::Code;
use reqwest::{Certificate, Client, Identity, Method, StatusCode, header};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Largest answer, bytes: a bundle of 1 MiB as JSON, with room.
const MAX_ANSWER: usize = 8 << 20;

/// The part of a Node that the runner reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// metadata.annotations.
    pub annotations: Annotations,
    /// metadata.resourceVersion.
    pub resource_version: String,
}

/// What the runner asks of a cluster.
pub trait Cluster: Send + Sync {
    /// This node.
    ///
    /// # Errors
    /// `FetchFailed` when no server answers, `NotPermitted` when all refuse.
    fn node(&self) -> Result<Node>;
    /// Changes annotations of this node, if it is still at `version`.
    ///
    /// # Errors
    /// As [`Cluster::node`].
    fn patch(&self, version: &str, patch: &Patch) -> Result<()>;
    /// The NodeGroupBundle of a group as JSON text; `None` = what was answered last time still holds.
    ///
    /// # Errors
    /// As [`Cluster::node`].
    fn bundle(&self, group: &str) -> Result<Option<Vec<u8>>>;
    /// The last answer was lost: the next one comes whole.
    fn forget(&self) {}
}

/// Where the API is and who we are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// `https://host:port` of the local proxy and of the servers, in order of preference.
    pub endpoints: Vec<String>,
    /// Authority of the servers (PEM).
    pub ca: Utf8PathBuf,
    /// Client certificate and key (PEM); used where the file exists.
    pub cert: Utf8PathBuf,
    /// Its key; often the same file.
    pub key: Utf8PathBuf,
    /// File with a bearer token, for the time before there is a certificate.
    pub token: Utf8PathBuf,
    /// Name of this Node.
    pub node: String,
}

/// Limit of one connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Limit of one request.
const TOTAL: Duration = Duration::from_secs(60);

/// The real cluster.
pub struct KubeApi {
    handle: Handle,
    access: Access,
    /// The endpoint that answered last.
    good: Mutex<Option<String>>,
    /// Tag of the last bundle and the hash of its text.
    last: Mutex<(String, String)>,
    requests: AtomicU64,
}

struct Answer {
    status: StatusCode,
    tag: String,
    body: Vec<u8>,
}

impl KubeApi {
    /// `handle` must be of a multi-threaded runtime: calls block on it from other threads.
    pub fn new(handle: Handle, access: Access) -> KubeApi {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        KubeApi {
            handle,
            access,
            good: Mutex::default(),
            last: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    /// Requests that were sent so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn client(&self) -> std::result::Result<Client, String> {
        let mut b = Client::builder()
            .user_agent(concat!("os-agent/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(crate::sys::hosts::Names)
            .connect_timeout(CONNECT)
            .timeout(TOTAL);
        let a = &self.access;
        let read = |p: &Utf8PathBuf| std::fs::read(p).map_err(|e| format!("{p}: {e}"));
        if a.ca.exists() {
            let roots = Certificate::from_pem_bundle(&read(&a.ca)?).map_err(|e| format!("{}: {e}", a.ca))?;
            b = b.tls_certs_only(roots);
        } else {
            b = b.tls_certs_only([]);
        }
        if a.cert.exists() {
            let mut pem = read(&a.cert)?;
            if a.key != a.cert {
                pem.push(b'\n');
                pem.extend(read(&a.key)?);
            }
            b = b.identity(Identity::from_pem(&pem).map_err(|e| format!("{}: {}", a.cert, chain(&e)))?);
        }
        b.build().map_err(|e| format!("TLS set-up: {}", chain(&e)))
    }

    fn call(&self, method: &Method, path: &str, tag: &str, body: Option<String>) -> Result<Answer> {
        let client = self
            .client()
            .map_err(|e| StepsError::new(Code::FetchFailed, format!("the cluster's API: {e}")))?;
        let token = if self.access.cert.exists() {
            None
        } else {
            std::fs::read_to_string(&self.access.token).ok()
        };
        let mut order: Vec<String> = self.access.endpoints.clone();
        if let Some(good) = self.good.lock().ok().and_then(|g| g.clone()) {
            order.retain(|e| *e != good);
            order.insert(0, good);
        }
        let mut faults = Vec::new();
        for endpoint in &order {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let mut r = client.request(
                method.clone(),
                format!("{}{path}", endpoint.trim_end_matches('/')),
            );
            if !tag.is_empty() {
                r = r.header(header::IF_NONE_MATCH, tag);
            }
            if let Some(t) = &token {
                r = r.bearer_auth(t.trim());
            }
            if let Some(b) = &body {
                r = r
                    .header(header::CONTENT_TYPE, "application/strategic-merge-patch+json")
                    .body(b.clone());
            }
            match self.handle.block_on(answer(r)) {
                Ok(a) if a.status.is_server_error() => faults.push(format!("{endpoint}: {}", a.status)),
                Ok(a) => {
                    if let Ok(mut g) = self.good.lock() {
                        *g = Some(endpoint.clone());
                    }
                    return Ok(a);
                }
                Err(e) => faults.push(format!("{endpoint}: {e}")),
            }
        }
        if let Ok(mut g) = self.good.lock() {
            *g = None;
        }
        Err(StepsError::new(
            Code::FetchFailed,
            format!("{method} {path}: no server answered: {}", faults.join("; ")),
        ))
    }

    fn good(&self, method: &Method, path: &str, a: Answer) -> Result<Answer> {
        if a.status.is_success() || a.status == StatusCode::NOT_MODIFIED {
            return Ok(a);
        }
        let code = match a.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Code::NotPermitted,
            _ => Code::FetchFailed,
        };
        let text: String = String::from_utf8_lossy(&a.body).chars().take(300).collect();
        Err(StepsError::new(
            code,
            format!("{method} {path}: the server answered {}: {text}", a.status),
        ))
    }

    fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.access.node)
    }
}

async fn answer(r: reqwest::RequestBuilder) -> std::result::Result<Answer, String> {
    let mut response = r.send().await.map_err(|e| chain(&e))?;
    let status = response.status();
    let tag = response
        .headers()
        .get(header::ETAG)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|e| chain(&e))? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(format!("the answer is larger than {MAX_ANSWER} bytes"));
        }
    }
    Ok(Answer { status, tag, body })
}

fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(c) = next {
        let text = c.to_string();
        if !out.contains(&text) {
            out = format!("{out}: {text}");
        }
        next = c.source();
    }
    out
}

impl Cluster for KubeApi {
    fn node(&self) -> Result<Node> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            annotations: Annotations,
            #[serde(default)]
            resource_version: String,
        }
        #[derive(serde::Deserialize)]
        struct Object {
            metadata: Meta,
        }
        let path = self.node_path();
        let a = self.good(&Method::GET, &path, self.call(&Method::GET, &path, "", None)?)?;
        let o: Object = serde_json::from_slice(&a.body)
            .map_err(|e| StepsError::new(Code::FetchFailed, format!("GET {path}: not a Node: {e}")))?;
        Ok(Node {
            annotations: o.metadata.annotations,
            resource_version: o.metadata.resource_version,
        })
    }

    fn patch(&self, version: &str, patch: &Patch) -> Result<()> {
        let path = self.node_path();
        let body = serde_json::json!({"metadata": {"resourceVersion": version, "annotations": patch}});
        let a = self.call(&Method::PATCH, &path, "", Some(body.to_string()))?;
        self.good(&Method::PATCH, &path, a).map(drop)
    }

    fn bundle(&self, group: &str) -> Result<Option<Vec<u8>>> {
        let path = format!("/apis/bashible.deckhouse.io/v1alpha1/nodegroupbundles/{group}");
        let (tag, hash) = self.last.lock().map(|l| l.clone()).unwrap_or_default();
        let a = self.good(&Method::GET, &path, self.call(&Method::GET, &path, &tag, None)?)?;
        if a.status == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let now = crate::bundle::sha256(&a.body);
        let same = now == hash;
        if let Ok(mut l) = self.last.lock() {
            *l = (a.tag, now);
        }
        Ok((!same).then_some(a.body))
    }

    fn forget(&self) {
        if let Ok(mut l) = self.last.lock() {
            *l = Default::default();
        }
    }
}

#[cfg(test)]
mod tests;
