//! The step runner on this node: the agent's fetcher, host and configuration put under `os-steps`.

pub mod metrics;
pub mod rpc;
pub mod serve;
pub mod show;

use crate::config::Config;
use crate::error::{AgentError, Result};
use crate::fetch::{Policy, Sources};
use crate::ports::{Cancel, Location, Report, Source as _, SourceRequest};
use crate::sys::clock::SystemClock;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::v1;
use os_steps::dirs::Dirs;
use os_steps::error::StepsError;
use os_steps::kube::{Access, Cluster, KubeApi};
use os_steps::render;
use os_steps::run::{Host, Limits, Runner, Sink};
use os_steps::source::{Fetch, Loader};
use os_steps::sys::child;
use os_steps::sys::clock::Stop;
use os_steps::tick::Service;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Where the runner's own unit listens, beside the agent's socket.
pub const SOCKET: &str = "steps.sock";

/// Where things are; tests and dry runs put other places here.
#[derive(Debug, Clone)]
pub struct Place {
    /// Bundles, state, output.
    pub steps: Utf8PathBuf,
    /// A directory that stands for `/` in the paths that steps are given.
    pub root: Option<Utf8PathBuf>,
    /// Identity of the boot.
    pub boot_id: Utf8PathBuf,
    /// The service manager's program.
    pub systemctl: String,
}

impl Default for Place {
    fn default() -> Place {
        let persist = Utf8Path::new("/persist/os-agent");
        let state = if persist.is_dir() {
            persist
        } else {
            Utf8Path::new("/var/lib/os-agent")
        };
        Place {
            steps: state.join("steps"),
            root: None,
            boot_id: "/proc/sys/kernel/random/boot_id".into(),
            systemctl: "systemctl".to_owned(),
        }
    }
}

impl From<StepsError> for AgentError {
    fn from(e: StepsError) -> AgentError {
        AgentError::new(e.code, e.message)
    }
}

struct NodeHost(Place);

impl Host for NodeHost {
    fn boot_id(&self) -> String {
        std::fs::read_to_string(&self.0.boot_id)
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    fn hostname(&self) -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }

    fn reboot(&self) -> std::result::Result<(), String> {
        match child::helper(&self.0.systemctl, &["reboot"], Duration::from_secs(30)) {
            Ok((true, _)) => Ok(()),
            Ok((false, text)) => Err(format!("systemctl reboot: {text}")),
            Err(e) => Err(e),
        }
    }
}

/// The agent's fetcher as the runner's.
struct AgentFetch(Sources);

struct Quiet;

impl Report for Quiet {
    fn step(&self, _: &'static str, _: Option<u64>) {}
    fn done(&self, _: u64) {}
    fn waiting(&self, _: Option<String>) {}
}

impl Fetch for AgentFetch {
    fn get(&self, url: &str, allow_http: bool, max_bytes: u64) -> os_steps::error::Result<Vec<u8>> {
        let request = SourceRequest {
            location: Location::Url(url.to_owned()),
            allow_http,
            cacert: None,
            client: None,
            rate_bytes_per_sec: None,
            max_bytes,
            known: None,
        };
        let fail = |e: AgentError| StepsError::new(e.code, e.message);
        let cancel = Cancel::default();
        let mut d = self.0.open(&request, &cancel, Arc::new(Quiet)).map_err(fail)?;
        let mut all = Vec::new();
        while let Some(piece) = d.next().map_err(fail)? {
            all.extend_from_slice(&piece);
            if all.len() as u64 > max_bytes {
                return Err(StepsError::new(
                    Code::SizeMismatch,
                    format!("{url}: more than {max_bytes} bytes"),
                ));
            }
        }
        Ok(all)
    }
}

/// Kubelet's certificate, the bootstrap token before there is one, the local proxy and the servers behind it.
fn cluster(handle: &Handle, config: &Config, dirs: &Dirs) -> Option<Arc<dyn Cluster>> {
    let s = &config.steps;
    if s.node_group.is_empty() && s.api_endpoints.is_empty() {
        return None;
    }
    let name = std::fs::read_to_string(dirs.base.join("discovered-node-name"))
        .map(|t| t.trim().to_owned())
        .ok()
        .filter(|t| !t.is_empty())
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let cert: Utf8PathBuf = "/var/lib/kubelet/pki/kubelet-client-current.pem".into();
    let ca = ["/etc/kubernetes/pki/ca.crt".into(), dirs.base.join("ca.crt")]
        .into_iter()
        .find(|p: &Utf8PathBuf| p.exists())
        .unwrap_or_default();
    let mut endpoints = vec!["https://127.0.0.1:6445".to_owned()];
    endpoints.extend(s.api_endpoints.iter().cloned());
    Some(Arc::new(KubeApi::new(
        handle.clone(),
        Access {
            endpoints,
            ca,
            key: cert.clone(),
            cert,
            token: dirs.base.join("bootstrap-token"),
            node: name,
        },
    )))
}

/// Runner and loader for this node.
pub fn service(
    handle: &Handle,
    config: &Config,
    policy: Policy,
    place: &Place,
    sink: Sink,
    stop: Stop,
) -> Service {
    let dirs = Dirs::new(&place.steps, place.root.as_deref());
    let mut settings = config.steps.clone();
    settings.require_signature = config.require_signature;
    let cluster = cluster(handle, config, &dirs);
    let fetch = AgentFetch(Sources::new(handle.clone(), Arc::new(SystemClock), policy));
    Service {
        loader: Loader {
            dirs: dirs.clone(),
            settings: settings.clone(),
            fetch: Some(Arc::new(fetch)),
            cluster: cluster.clone(),
            verify: None,
        },
        runner: Runner {
            dirs,
            settings,
            host: Arc::new(NodeHost(place.clone())),
            cluster,
            sink,
            stop,
            limits: Limits::default(),
        },
    }
}

/// Renders templates of this node (a directory; empty or `standard` = the standard bundle) over a context given as JSON, into the
/// store.
///
/// # Errors
/// `InvalidArgument` for a context that is none, `BundleInvalid` with every template that failed; the store keeps what it has.
pub fn render(dirs: &Dirs, q: &v1::StepsRenderRequest) -> Result<v1::StepsRenderReply> {
    let all = match q.source.as_str() {
        "" | "standard" => os_steps::standard::templates(),
        dir => render::templates(Utf8Path::new(dir))?,
    };
    let context = render::context("values_json", &q.values_json)?;
    let rendered = render::render(&render::GoTemplates::default(), &all, &context);
    let (faults, warnings) = render::faults(&rendered);
    if !faults.is_empty() {
        return Err(AgentError::new(Code::BundleInvalid, faults.join("\n")));
    }
    dirs.make_own()?;
    let b = render::to_bundle(&rendered, render::inputs_hash(&all, &context), &q.node_group)
        .and_then(|b| os_steps::store::take(dirs, &b))
        .map_err(|e| with_warnings(e.into(), &warnings))?;
    for w in &warnings {
        tracing::warn!("{w}");
    }
    Ok(v1::StepsRenderReply {
        bundle_dir: os_steps::store::dir(dirs, &b.manifest.content_hash).into_string(),
        content_hash: b.manifest.content_hash,
    })
}

/// What the renderer warned about is often why the steps then are not bash.
#[must_use]
pub fn with_warnings(mut e: AgentError, warnings: &[String]) -> AgentError {
    for w in warnings {
        e.message.push('\n');
        e.message.push_str(w);
    }
    e
}

/// Why the runner wants the boot `boot_id` to end, if it does; read from its state, as it may be asleep.
pub fn wants_reboot(steps: &Utf8Path, boot_id: &str) -> Option<String> {
    let text = std::fs::read(steps.join("state.json")).ok()?;
    let state = os_steps::state::State::parse(&text).ok()?;
    state.reboot.filter(|r| r.boot_id == boot_id).map(|r| r.reason)
}

/// Answers what a node waits for: good for the content that it asked about and for no other. With `hash` (12 digits or more)
/// only if it asked about that. Gives the content's hash.
///
/// # Errors
/// `NothingToDo` when nothing waits, or something else; `InvalidArgument` for what is no hash; `StateWriteFailed`.
pub fn approve(dirs: &Dirs, what: &str, hash: Option<&str>) -> Result<String> {
    let asked = os_steps::state::State::load(&dirs.steps)?.ask;
    let Some(ask) = asked else {
        return Err(AgentError::new(
            Code::NothingToDo,
            format!(
                "nothing waits for an approval of {what}; \"steps run --approve\" approves the bundle of that run"
            ),
        ));
    };
    if let Some(h) = hash
        && !os_steps::store::names(h, &ask.content_hash)?
    {
        return Err(AgentError::new(
            Code::NothingToDo,
            format!(
                "content {h} waits for nothing; what waits is {}",
                ask.content_hash
            ),
        ));
    }
    os_steps::run::approve(dirs, what, &ask.content_hash)?;
    Ok(ask.content_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_of_this_boot_counts() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(tmp.path()).unwrap();
        assert_eq!(wants_reboot(dir, "b1"), None);
        let state = os_steps::state::State {
            reboot: Some(os_steps::state::Reboot {
                reason: "kernel".into(),
                step: String::new(),
                boot_id: "b1".into(),
                since_unix: 0,
                asked: 0,
                error: String::new(),
            }),
            ..Default::default()
        };
        state.save(dir).unwrap();
        assert_eq!(wants_reboot(dir, "b1").as_deref(), Some("kernel"));
        assert_eq!(wants_reboot(dir, "b2"), None);
    }
}
