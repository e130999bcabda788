//! The server side of a drain: every request that one needs, each asked once.

use super::evict::{self, Answer};
use super::filter::{self, DaemonSets};
use super::plan::{self, Facts, Plan, Step, Tries, Tuning};
use super::{Blocked, PodFact, Policy, volumes};
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, ListParams, Preconditions, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::Expression;
use std::collections::BTreeMap;
use std::time::Duration;

/// What happens to pods.
pub(super) type Events = BoxStream<'static, kube::Result<WatchEvent<Pod>>>;

/// Annotation of the bookmark behind which a streamed list is complete.
const LIST_ENDS: &str = "k8s.io/initial-events-end";

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
    /// The Node reports volumes as attached or in use, or it is not known whether it does. If not, and no pod of the drain has a
    /// volume that could be attached, nobody has to ask for all VolumeAttachments of the cluster.
    pub volumes: bool,
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

pub(super) fn asked(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
    let what = what.into();
    move |e| Error::Kube {
        what,
        source: Box::new(e),
    }
}

/// The selector as the API's query has it.
pub(super) fn label_query(policy: &Policy) -> Result<Option<String>, Error> {
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

    /// The pods as [`Server::pods`] gives them, and what happens to them from then on, by one request where the server streams
    /// lists (Kubernetes 1.32 and newer). Where it does not, or does not answer soon, a LIST, and `streaming` becomes false.
    ///
    /// # Errors
    /// As [`Server::pods`].
    pub(super) async fn begin(
        &self,
        policy: &Policy,
        streaming: &mut bool,
    ) -> Result<(Vec<PodFact>, String, Option<Events>), Error> {
        if *streaming {
            let wait = Duration::from_secs_f64(self.tuning.stream_wait_secs);
            if let Ok(Some((pods, version, events))) = tokio::time::timeout(wait, self.streamed(policy)).await
            {
                return Ok((pods, version, Some(events)));
            }
            tracing::debug!("drain: no streamed list; listing");
            *streaming = false;
        }
        let (pods, version) = self.pods(policy).await?;
        Ok((pods, version, None))
    }

    async fn streamed(&self, policy: &Policy) -> Option<(Vec<PodFact>, String, Events)> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = self.watching(policy).initial_events();
        let mut events = api.watch(&params, "").await.ok()?.boxed();
        let mut pods: BTreeMap<String, PodFact> = BTreeMap::new();
        loop {
            match events.try_next().await.ok()?? {
                WatchEvent::Added(p) | WatchEvent::Modified(p) => {
                    let fact = PodFact::from(&p);
                    pods.insert(fact.uid.clone(), fact);
                }
                WatchEvent::Deleted(p) => {
                    pods.remove(p.metadata.uid.as_deref().unwrap_or_default());
                }
                WatchEvent::Bookmark(b) => {
                    if b.metadata.annotations.get(LIST_ENDS).is_some_and(|v| v == "true") {
                        let pods = pods.into_values().collect();
                        return Some((pods, b.metadata.resource_version, events));
                    }
                }
                WatchEvent::Error(_) => return None,
            }
        }
    }

    /// A watch of the node's pods that the selector matches.
    pub(crate) fn watching(&self, policy: &Policy) -> WatchParams {
        let mut params = WatchParams::default()
            .fields(&format!("spec.nodeName={}", self.node))
            .timeout(290);
        params.label_selector = label_query(policy).ok().flatten();
        params
    }

    /// Looks up the DaemonSets of these pods that are not known yet.
    pub(super) async fn daemonsets(&self, pods: &[PodFact], known: &mut DaemonSets) -> Result<(), Error> {
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

    pub(super) async fn delete(&self, pod: &PodFact, grace_secs: i64) -> Result<(), Error> {
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
        // Whether a DaemonSet is gone decides here only where its pods would then be in the way; the drain asks in any case.
        if !policy.evict_unmanaged {
            self.daemonsets(&pods, &mut known).await?;
        }
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
    pub(super) async fn volumes(&self, staying: &[PodFact]) -> Result<Vec<volumes::Attached>, Error> {
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
