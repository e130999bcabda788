//! Carries a drain out: one WATCH that begins with a LIST, evictions at a bounded rate, a full LIST now and then. All decisions are
//! [`plan`]'s and [`super::filter`]'s.

use super::evict::Answer;
use super::filter::DaemonSets;
use super::plan::{self, Facts, Step, Tries};
pub use super::server::{Error, Server};
use super::server::{Events, label_query};
use super::{Blocked, PodFact, Policy, Reason};
use futures_util::{StreamExt, TryStreamExt, future};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

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

/// What the loop knows about the node's pods.
struct View {
    pods: BTreeMap<String, PodFact>,
    version: String,
    /// What happens to them, where the list came as a stream.
    events: Option<Events>,
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
        let mut volumes = server.volumes;
        match empty(server, policy, started, progress, &mut volumes).await {
            Outcome::Drained if volumes => detach(server, policy, progress).await,
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
    volumes: &mut bool,
) -> Outcome {
    let mut streaming = true;
    let mut known = DaemonSets::new();
    let mut tries = Tries::new();
    let mut errors = 0u32;
    let mut last_blocked = Vec::new();
    loop {
        // One round: LIST, then follow the watch until it breaks or the LIST is old.
        let listed = async {
            let begun = server.begin(policy, &mut streaming).await?;
            server.daemonsets(&begun.0, &mut known).await?;
            Ok::<_, Error>(begun)
        };
        let (pods, version, events) = match tokio::time::timeout(Duration::from_secs(60), listed).await {
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
            events,
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
            volumes,
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
    volumes: &mut bool,
) -> Option<Outcome> {
    let api: Api<Pod> = Api::all(server.client.clone());
    let params = server.watching(policy).disable_bookmarks();
    let mut events = view.events.take();
    let listed_at = (server.clock)();
    loop {
        let pods: Vec<PodFact> = view.pods.values().cloned().collect();
        *volumes |= pods.iter().any(|p| p.attachable);
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
