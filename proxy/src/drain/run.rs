//! Carries a drain out: one LIST, one WATCH, evictions at a bounded rate, a full LIST now and then. All decisions are
//! [`plan`]'s and [`filter`]'s.

use super::evict::{self, Answer};
use super::filter::{self, DaemonSets};
use super::plan::{self, Facts, Plan, Step, Tries, Tuning};
use super::{Blocked, PodFact, Policy, Reason, volumes};
use futures_util::{StreamExt, TryStreamExt, future};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, ListParams, Preconditions, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::Expression;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// The server side of a drain: a client **without** retries of its own, which would hide what budgets answer.
#[derive(Clone)]
pub struct Server {
    /// Client without retries.
    pub client: kube::Client,
    /// The node to empty.
    pub node: String,
    /// Now.
    pub clock: fn() -> Timestamp,
    /// Spans.
    pub tuning: Tuning,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing evictable is left and volumes are gone, or need not be.
    Drained,
    /// A filter refuses; nothing was evicted.
    Refused(Vec<Blocked>),
    /// Time was up. What was in the way.
    TimedOut(Vec<Blocked>),
    /// Volumes stayed attached too long, and the policy says not to go on.
    VolumesAttached(Vec<Blocked>),
    /// A fault of ours: the server calls the request malformed.
    Fault(String),
    /// Stopped from outside; no further eviction was sent.
    Stopped,
}

/// How a drain goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Most pods there were to evict.
    pub total: usize,
    /// Pods that must still go.
    pub remaining: usize,
    /// What is in the way.
    pub blocked: Vec<Blocked>,
}

/// Why a question could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request failed.
    #[error("{what}")]
    Kube {
        /// What was asked for.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The policy's pod selector means nothing.
    #[error("drain.podselector is not a valid selector: {0}")]
    Selector(String),
}

fn asked(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
    let what = what.into();
    move |e| Error::Kube {
        what,
        source: Box::new(e),
    }
}

/// The selector as the API's query has it.
fn label_query(policy: &Policy) -> Result<Option<String>, Error> {
    let Some(s) = &policy.pod_selector else {
        return Ok(None);
    };
    let selector: kube::core::Selector = s
        .clone()
        .try_into()
        .map_err(|e: kube::core::ParseExpressionError| Error::Selector(e.to_string()))?;
    let parts: Vec<String> = selector.into_iter().map(|e: Expression| e.to_string()).collect();
    Ok(Some(parts.join(",")).filter(|q| !q.is_empty()))
}

impl Server {
    /// All pods of the node that the selector matches, by a quorum read, and the version they were read at.
    ///
    /// # Errors
    /// The request failed or the selector means nothing.
    pub async fn pods(&self, policy: &Policy) -> Result<(Vec<PodFact>, String), Error> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut params = ListParams::default()
            .fields(&format!("spec.nodeName={}", self.node))
            .limit(500);
        params.label_selector = label_query(policy)?;
        let mut all = Vec::new();
        loop {
            let page = api
                .list(&params)
                .await
                .map_err(asked(format!("listing the pods of node {}", self.node)))?;
            all.extend(page.items.iter().map(PodFact::from));
            match page.metadata.continue_.filter(|c| !c.is_empty()) {
                Some(c) => params.continue_token = Some(c),
                None => return Ok((all, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }

    /// Looks up the DaemonSets of these pods that are not known yet.
    async fn daemonsets(&self, pods: &[PodFact], known: &mut DaemonSets) -> Result<(), Error> {
        for (ns, name) in filter::daemonsets_of(pods) {
            if known.contains_key(&(ns.clone(), name.clone())) {
                continue;
            }
            let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &ns);
            let found = api
                .get_metadata_opt(&name)
                .await
                .map_err(asked(format!("looking up DaemonSet {ns}/{name}")))?;
            known.insert((ns, name), found.is_some());
        }
        Ok(())
    }

    /// Asks for one eviction.
    pub async fn evict(&self, pod: &PodFact, grace_secs: i64, dry_run: bool) -> Answer {
        let body = evict::body(pod, grace_secs).to_string().into_bytes();
        let request = http::Request::post(evict::path(pod, dry_run))
            .header("content-type", "application/json")
            .body(Body::from(body));
        let request = match request {
            Ok(r) => r,
            Err(e) => return Answer::Malformed(e.to_string()),
        };
        let response = match tokio::time::timeout(Duration::from_secs(30), self.client.send(request)).await {
            Err(_) => return Answer::Transient("no answer within 30 s".into()),
            Ok(Err(e)) => return Answer::Transient(e.to_string()),
            Ok(Ok(r)) => r,
        };
        let code = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse().ok());
        let text = response.into_body().collect_bytes().await.unwrap_or_default();
        let body = serde_json::from_slice(&text).unwrap_or_default();
        evict::answer(code, retry_after, &body)
    }

    async fn delete(&self, pod: &PodFact, grace_secs: i64) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = DeleteParams {
            grace_period_seconds: u32::try_from(grace_secs).ok(),
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(&pod.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(s)) if s.code == 404 || s.code == 409 => Ok(()),
            Err(e) => Err(asked(format!("deleting pod {}", pod.id()))(e)),
        }
    }

    /// What stands in the way before anything is touched: the filters, then up to `probes` evictions as dry runs.
    /// Budgets that are full now are among the answers; [`Reason::is_permanent`] tells which do not cure themselves.
    ///
    /// # Errors
    /// A question could not be answered.
    pub async fn preflight(&self, policy: &Policy, probes: usize) -> Result<Vec<Blocked>, Error> {
        let (pods, _) = self.pods(policy).await?;
        let mut known = DaemonSets::new();
        self.daemonsets(&pods, &mut known).await?;
        let now = (self.clock)();
        let first = self.plan(&pods, &known, &Tries::new(), policy, now);
        if first.step == Step::Refused {
            return Ok(first.blocked);
        }
        // Ready pods with a controller are those that budgets are made for.
        let mut going: Vec<&PodFact> = pods
            .iter()
            .filter(|p| filter::verdict(p, policy, &known, now) == filter::Verdict::Evict)
            .filter(|p| p.deletion.is_none() && !p.finished)
            .collect();
        going.sort_by_key(|p| (p.controller.is_none(), !p.ready, p.id()));
        let mut blocked = Vec::new();
        for pod in going.into_iter().take(probes) {
            let answer = self.evict(pod, policy.grace_secs, true).await;
            if let Some((reason, pdb, message)) = answer.blocks(pod) {
                blocked.push(Blocked {
                    pod: pod.id(),
                    pdb,
                    reason,
                    message,
                    since: now,
                });
            }
            self.pace().await;
        }
        Ok(blocked)
    }

    /// Whether a fresh quorum read finds nothing that the drain would still have to remove.
    ///
    /// # Errors
    /// A question could not be answered: then nobody may reboot.
    pub async fn is_empty(&self, policy: &Policy) -> Result<bool, Error> {
        let (pods, _) = self.pods(policy).await?;
        let mut known = DaemonSets::new();
        // A pod of a DaemonSet that is gone was evicted, or refused, by the drain itself.
        for owner in filter::daemonsets_of(&pods) {
            known.insert(owner, true);
        }
        let now = (self.clock)();
        Ok(self.plan(&pods, &known, &Tries::new(), policy, now).step == Step::Empty)
    }

    fn plan(
        &self,
        pods: &[PodFact],
        known: &DaemonSets,
        tries: &Tries,
        policy: &Policy,
        now: Timestamp,
    ) -> Plan {
        plan::plan(&Facts {
            pods,
            daemonsets: known,
            tries,
            policy,
            started: now,
            now,
            tuning: &self.tuning,
        })
    }

    async fn pace(&self) {
        tokio::time::sleep(Duration::from_secs_f64(1.0 / self.tuning.rate_per_sec.max(0.01))).await;
    }

    /// Volumes of this node that are attached and should not be.
    async fn volumes(&self, staying: &[PodFact]) -> Result<Vec<volumes::Attached>, Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let all = api
            .list(&ListParams::default())
            .await
            .map_err(asked("listing VolumeAttachments"))?;
        Ok(volumes::in_the_way(
            volumes::attached_to(&self.node, &all.items),
            staying,
        ))
    }
}

/// What the loop knows about the node's pods.
struct View {
    pods: BTreeMap<String, PodFact>,
    version: String,
}

/// Drains until it is over, whatever the server answers. `started` counts for the time limit and survives restarts of the
/// caller. `stop` set to true ends it before the next eviction.
///
/// # Errors
/// Only a policy that means nothing; failing requests are repeated until the time is up.
pub async fn run(
    server: &Server,
    policy: &Policy,
    started: Timestamp,
    progress: &watch::Sender<Progress>,
    mut stop: watch::Receiver<bool>,
) -> Result<Outcome, Error> {
    label_query(policy)?;
    let work = async {
        match empty(server, policy, started, progress).await {
            Outcome::Drained => detach(server, policy, progress).await,
            other => other,
        }
    };
    tokio::select! {
        out = work => Ok(out),
        _ = stop.wait_for(|s| *s) => Ok(Outcome::Stopped),
    }
}

fn give_up(policy: &Policy, started: Timestamp, now: Timestamp) -> bool {
    now.as_second() - started.as_second() >= policy.timeout_secs
}

async fn empty(
    server: &Server,
    policy: &Policy,
    started: Timestamp,
    progress: &watch::Sender<Progress>,
) -> Outcome {
    let mut known = DaemonSets::new();
    let mut tries = Tries::new();
    let mut errors = 0u32;
    let mut last_blocked = Vec::new();
    loop {
        // One round: LIST, then follow the watch until it breaks or the LIST is old.
        let listed = async {
            let (pods, version) = server.pods(policy).await?;
            server.daemonsets(&pods, &mut known).await?;
            Ok::<_, Error>((pods, version))
        };
        let (pods, version) = match tokio::time::timeout(Duration::from_secs(60), listed).await {
            Ok(Ok(x)) => {
                errors = 0;
                x
            }
            failed => {
                if let Ok(Err(e)) = &failed {
                    tracing::warn!("drain: {e}: {}", crate::chain(e));
                }
                if give_up(policy, started, (server.clock)()) {
                    return Outcome::TimedOut(last_blocked);
                }
                errors += 1;
                let wait = server.tuning.retry_min_secs * f64::from(errors.min(6));
                tokio::time::sleep(Duration::from_secs_f64(wait)).await;
                continue;
            }
        };
        let mut view = View {
            pods: pods.into_iter().map(|p| (p.uid.clone(), p)).collect(),
            version,
        };
        match follow(
            server,
            policy,
            started,
            progress,
            &mut view,
            &mut known,
            &mut tries,
            &mut last_blocked,
        )
        .await
        {
            Some(out) => return out,
            None => continue,
        }
    }
}

/// Plans and evicts while the watch holds. `None` = LIST again.
#[allow(clippy::too_many_arguments)] // the loop's whole state, borrowed
async fn follow(
    server: &Server,
    policy: &Policy,
    started: Timestamp,
    progress: &watch::Sender<Progress>,
    view: &mut View,
    known: &mut DaemonSets,
    tries: &mut Tries,
    last_blocked: &mut Vec<Blocked>,
) -> Option<Outcome> {
    let api: Api<Pod> = Api::all(server.client.clone());
    let mut params = WatchParams::default()
        .fields(&format!("spec.nodeName={}", server.node))
        .timeout(290)
        .disable_bookmarks();
    params.label_selector = label_query(policy).ok().flatten();
    let mut events = None;
    let listed_at = (server.clock)();
    loop {
        let pods: Vec<PodFact> = view.pods.values().cloned().collect();
        let now = (server.clock)();
        tries.retain(|uid, _| view.pods.contains_key(uid));
        let next = plan::plan(&Facts {
            pods: &pods,
            daemonsets: known,
            tries,
            policy,
            started,
            now,
            tuning: &server.tuning,
        });
        *last_blocked = next.blocked.clone();
        progress.send_if_modified(|p| {
            let new = Progress {
                total: p.total.max(next.remaining),
                remaining: next.remaining,
                blocked: next.blocked.clone(),
            };
            let changed = *p != new;
            *p = new;
            changed
        });
        match next.step {
            Step::Go => {}
            Step::Empty => return Some(Outcome::Drained),
            Step::Refused => return Some(Outcome::Refused(next.blocked)),
            Step::TimedOut => return Some(Outcome::TimedOut(next.blocked)),
            Step::Fault => {
                let why = tries.values().find_map(|t| match &t.last {
                    Answer::Malformed(m) => Some(m.clone()),
                    _ => None,
                });
                return Some(Outcome::Fault(why.unwrap_or_default()));
            }
        }
        if !next.evict.is_empty() || !next.delete.is_empty() {
            let batch: Vec<&PodFact> = next.evict.iter().filter_map(|i| pods.get(*i)).collect();
            evict_batch(server, policy, &batch, view, tries).await;
            for i in &next.delete {
                if let Some(pod) = pods.get(*i)
                    && let Err(e) = server.delete(pod, policy.grace_secs).await
                {
                    tracing::warn!("drain: {e}: {}", crate::chain(&e));
                }
            }
            if next.delete.is_empty() {
                continue;
            }
        }
        if events.is_none() {
            match api.watch(&params, &view.version).await {
                Ok(s) => events = Some(s.boxed()),
                Err(e) => {
                    tracing::debug!("drain: watch: {e}");
                    pause(server, next.wake, now).await;
                    return None;
                }
            }
        }
        let stale = now.duration_since(listed_at).as_secs_f64() >= server.tuning.resync_secs;
        if stale {
            return None;
        }
        let Some(stream) = events.as_mut() else { continue };
        let wait = span(next.wake, now).min(Duration::from_secs_f64(server.tuning.resync_secs));
        match tokio::time::timeout(wait, stream.try_next()).await {
            Err(_) => {}
            Ok(Ok(Some(WatchEvent::Added(p) | WatchEvent::Modified(p)))) => {
                let fact = PodFact::from(&p);
                view.pods.insert(fact.uid.clone(), fact);
                let all: Vec<PodFact> = view.pods.values().cloned().collect();
                if server.daemonsets(&all, known).await.is_err() {
                    return None;
                }
            }
            Ok(Ok(Some(WatchEvent::Deleted(p)))) => {
                view.pods.remove(p.metadata.uid.as_deref().unwrap_or_default());
            }
            Ok(Ok(Some(WatchEvent::Bookmark(_)))) => {}
            Ok(Ok(Some(WatchEvent::Error(_))) | Ok(None) | Err(_)) => {
                pause(server, next.wake, now).await;
                return None;
            }
        }
    }
}

fn span(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// A broken watch must not become a storm of LISTs.
async fn pause(server: &Server, wake: Timestamp, now: Timestamp) {
    let most = Duration::from_secs_f64(server.tuning.retry_min_secs.min(1.0));
    tokio::time::sleep(span(wake, now).min(most)).await;
}

/// Sends evictions at the allowed rate and notes their answers.
async fn evict_batch(
    server: &Server,
    policy: &Policy,
    batch: &[&PodFact],
    view: &mut View,
    tries: &mut Tries,
) {
    let gap = Duration::from_secs_f64(1.0 / server.tuning.rate_per_sec.max(0.01));
    let answers = future::join_all(batch.iter().enumerate().map(|(i, pod)| async move {
        tokio::time::sleep(gap * u32::try_from(i).unwrap_or(u32::MAX)).await;
        server.evict(pod, policy.grace_secs, false).await
    }))
    .await;
    let now = (server.clock)();
    for (pod, answer) in batch.iter().zip(answers) {
        crate::proxy::metrics::eviction(&answer);
        match answer {
            Answer::Gone => {
                view.pods.remove(&pod.uid);
            }
            Answer::Conflict => {
                // Another uid means that ours is gone; the same uid, that it changed.
                let api: Api<Pod> = Api::namespaced(server.client.clone(), &pod.namespace);
                match api.get_metadata_opt(&pod.name).await {
                    Ok(Some(m)) if m.metadata.uid.as_deref() == Some(&pod.uid) => {
                        let t = plan::note(tries.get(&pod.uid), pod, Answer::Conflict, now, &server.tuning);
                        tries.insert(pod.uid.clone(), t);
                    }
                    Ok(_) => {
                        view.pods.remove(&pod.uid);
                    }
                    Err(e) => {
                        let a = Answer::Transient(e.to_string());
                        let t = plan::note(tries.get(&pod.uid), pod, a, now, &server.tuning);
                        tries.insert(pod.uid.clone(), t);
                    }
                }
            }
            other => {
                let t = plan::note(tries.get(&pod.uid), pod, other, now, &server.tuning);
                tries.insert(pod.uid.clone(), t);
            }
        }
    }
}

/// Waits until the node's volumes are detached.
async fn detach(server: &Server, policy: &Policy, progress: &watch::Sender<Progress>) -> Outcome {
    let began = (server.clock)();
    let mut wait = server.tuning.retry_min_secs.min(2.0);
    loop {
        let now = (server.clock)();
        let over = give_up_detach(policy, began, now);
        let left = async {
            let (pods, _) = server.pods(policy).await?;
            server.volumes(&pods).await
        };
        // Attachments are one cheap LIST; pods are asked for only when there are any.
        let left = match server.volumes(&[]).await {
            Ok(v) if v.is_empty() => return Outcome::Drained,
            Ok(_) => left.await,
            Err(e) => Err(e),
        };
        let blocked: Vec<Blocked> = match left {
            Ok(v) if v.is_empty() => return Outcome::Drained,
            Ok(v) => v
                .into_iter()
                .map(|a| Blocked {
                    pod: String::new(),
                    pdb: None,
                    reason: Reason::VolumeAttached,
                    message: format!("volume {} is still attached ({})", a.volume, a.name),
                    since: began,
                })
                .collect(),
            Err(e) => {
                tracing::warn!("drain: {e}: {}", crate::chain(&e));
                Vec::new()
            }
        };
        progress.send_modify(|p| p.blocked = blocked.clone());
        if over {
            return if policy.proceed_with_volumes {
                Outcome::Drained
            } else {
                Outcome::VolumesAttached(blocked)
            };
        }
        tokio::time::sleep(Duration::from_secs_f64(wait)).await;
        wait = (wait * 1.5).min(server.tuning.retry_max_secs);
    }
}

fn give_up_detach(policy: &Policy, began: Timestamp, now: Timestamp) -> bool {
    now.as_second() - began.as_second() >= policy.detach_timeout_secs
}
