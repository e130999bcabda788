//! The loop: observe, decide, act, wait for a change or the next timer.

use super::act::{Actor, Error};
use super::agent::Agent;
use super::decide::{Decision, decide};
use super::facts::{AgentFact, Facts, Fail, NodeFact, Preflight, Step, Work};
use super::observe::{Seen, follow};
use crate::api::{Desired, INSTANCE_NAMESPACE, OSInstance, OsInstanceSpec, OsInstanceStatus};
use crate::drain::plan::Tuning;
use crate::drain::run::{Outcome, Progress};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// After a failed round, at most this long.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// What a proxy is told at start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the own Node.
    pub node: String,
    /// The agent's socket.
    pub socket: PathBuf,
    /// Now.
    pub clock: fn() -> Timestamp,
    /// Spans of the drain.
    pub tuning: Tuning,
    /// After the first failed round; doubles.
    pub backoff_min: Duration,
}

/// How the running Stage goes.
pub type StageResult = watch::Receiver<Work<Result<(), Fail>>>;

/// What is kept between rounds. All of it can be lost: it is read, asked for or done again.
#[derive(Default)]
pub struct Memory {
    /// UID of the OSInstance that all this is about.
    uid: Option<String>,
    op: String,
    target: String,
    /// What was reported last.
    pub report: OsInstanceStatus,
    /// Results of calls for the current operation.
    pub done: BTreeMap<Step, Result<(), Fail>>,
    /// Result of the preflight for the current target.
    pub preflight: Work<Preflight>,
    /// Pods of DaemonSets that are not Ready.
    pub unready: Option<Vec<String>>,
    pods: Option<PodWatch>,
    node: Option<NodeFact>,
    stage: Option<(StageResult, JoinHandle<()>)>,
    drain: Option<Drain>,
    silent_since: Option<Timestamp>,
    pruned: bool,
    refollow: bool,
    /// A right that was missing when something was tried last.
    forbidden: Option<String>,
}

/// Pods that are not Ready yet, followed while a health gate waits for them.
struct PodWatch {
    unready: watch::Receiver<Vec<String>>,
    task: JoinHandle<()>,
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Drain {
    shown: watch::Receiver<Progress>,
    over: watch::Receiver<Work<Outcome>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Memory {
    /// The Node as a write of ours left it.
    pub fn node_written(&mut self, n: NodeFact) {
        self.node = Some(n);
    }

    /// The Node as a write of ours left it, if there was one since it is followed.
    pub fn last_node(&self) -> Option<&NodeFact> {
        self.node.as_ref()
    }

    /// Whether the server kept what was reported. Once it does again, orders are read anew: a watch that began under other
    /// definitions still delivers them cut down, and does not deliver again what it delivered.
    pub fn kept(&mut self, kept: bool) {
        self.refollow |= kept && self.pruned;
        self.pruned = !kept;
    }

    /// Remembers the task that follows pods which are not Ready.
    pub fn follow_pods(&mut self, unready: watch::Receiver<Vec<String>>, task: JoinHandle<()>) {
        self.pods = Some(PodWatch { unready, task });
    }

    /// Remembers the task that stages.
    pub fn start_stage(&mut self, rx: StageResult, task: JoinHandle<()>) {
        self.stage = Some((rx, task));
    }

    /// Forgets it; the agent goes on.
    pub fn clear_stage(&mut self) {
        if let Some((_, task)) = self.stage.take() {
            task.abort();
        }
    }

    /// Remembers the task that drains.
    pub fn start_drain(
        &mut self,
        shown: watch::Receiver<Progress>,
        over: watch::Receiver<Work<Outcome>>,
        stop: watch::Sender<bool>,
        task: JoinHandle<()>,
    ) {
        self.drain = Some(Drain {
            shown,
            over,
            stop,
            task,
        });
    }

    /// Ends it and waits: afterwards no eviction is sent.
    pub async fn stop_drain(&mut self) {
        if let Some(d) = self.drain.take() {
            let _ = d.stop.send(true);
            d.task.abort();
            let _ = d.task.await;
        }
    }

    /// Another object, order or target: what was found for the old one means nothing.
    async fn turn_to(&mut self, instance: Option<&OSInstance>) {
        let uid = instance.and_then(|i| i.metadata.uid.clone());
        if uid != self.uid {
            self.report = instance.and_then(|i| i.status.clone()).unwrap_or_default();
            self.uid = uid;
        }
        let empty = OsInstanceSpec::default();
        let spec = instance.map_or(&empty, |i| &i.spec);
        let op = spec.opid.clone().unwrap_or_default();
        if op != self.op {
            self.done.clear();
            (self.unready, self.pods) = (None, None);
            self.stop_drain().await;
            self.op = op;
        }
        let target =
            serde_json::to_string(&(&spec.target, &spec.policy, &spec.sysconfigs, &spec.upgradeconfigs))
                .unwrap_or_default();
        if target != self.target {
            self.preflight = Work::Idle;
            self.clear_stage();
            self.target = target;
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.clear_stage();
        if let Some(d) = self.drain.take() {
            d.task.abort();
        }
    }
}

/// Whether the Node has to be followed: an order that touches it is in force, or something of ours may be on it.
fn node_matters(spec: Option<&OsInstanceSpec>, report: &OsInstanceStatus, node: Option<&NodeFact>) -> bool {
    let ordered = spec.is_some_and(|s| {
        !matches!(s.desired, Desired::Idle | Desired::Stage)
            && report.last_result.as_ref().map(|r| Some(&r.op_id)) != Some(s.opid.as_ref())
    });
    let ours = node.is_none_or(|n| n.cordoned_by.is_some() || n.upgrading || n.configuring || n.serial);
    ordered || ours || report.phase.past_boot()
}

/// A stream that ends when the sender does.
struct Follower<K> {
    rx: watch::Receiver<Seen<K>>,
    task: JoinHandle<()>,
}

impl<K> Drop for Follower<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn spawn_follow<K>(api: Api<K>, name: &str, changed: &Arc<Notify>) -> Follower<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (tx, rx) = watch::channel(Seen::Unknown);
    let task = tokio::spawn(follow(api, name.to_owned(), tx, Arc::clone(changed)));
    Follower { rx, task }
}

/// Follows the agent; a silent one is asked again every few seconds.
async fn follow_agent(agent: Agent, tx: watch::Sender<Option<AgentFact>>, changed: Arc<Notify>) {
    let mut pause = Duration::from_millis(200);
    loop {
        if let Ok(mut stream) = agent.watch().await {
            pause = Duration::from_millis(200);
            while let Ok(Some(m)) = stream.message().await {
                let fact = AgentFact::from(&m);
                let new = tx.send_if_modified(|old| {
                    let differs = old.as_ref() != Some(&fact);
                    *old = Some(fact);
                    differs
                });
                if new {
                    changed.notify_one();
                }
            }
        }
        if tx.is_closed() {
            return;
        }
        if tx.send_replace(None).is_some() {
            changed.notify_one();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Runs until `stop` is ready. What is under way is left as it is: the next start goes on from the same facts.
pub async fn run(client: kube::Client, settings: Settings, stop: impl Future<Output = ()>) {
    let changed = Arc::new(Notify::new());
    let agent = Agent::new(&settings.socket);
    let (agent_tx, agent_rx) = watch::channel(None);
    let following = tokio::spawn(follow_agent(agent.clone(), agent_tx, Arc::clone(&changed)));
    let actor = Actor {
        client: client.clone(),
        agent,
        settings: settings.clone(),
        changed: Arc::clone(&changed),
    };
    let looping = work(&actor, &agent_rx);
    tokio::select! {
        () = looping => {}
        () = stop => tracing::info!("stopping; whatever is under way goes on at the next start"),
    }
    following.abort();
}

async fn work(actor: &Actor, agent: &watch::Receiver<Option<AgentFact>>) {
    let settings = &actor.settings;
    let follow_instance = || {
        let api = Api::<OSInstance>::namespaced(actor.client.clone(), INSTANCE_NAMESPACE);
        spawn_follow(api, &settings.node, &actor.changed)
    };
    let mut instance = follow_instance();
    let mut seen = Seen::Unknown;
    let mut mem = Memory::default();
    let mut node: Option<Follower<Node>> = None;
    let mut failures = 0u32;
    let mut last_reason = String::new();
    loop {
        if std::mem::take(&mut mem.refollow) {
            tracing::info!("the server keeps what is reported again; reading orders anew");
            instance = follow_instance();
        }
        // A watch that has said nothing yet takes nothing back of what is known.
        let said = instance.rx.borrow().clone();
        if !matches!(said, Seen::Unknown | Seen::Refused(_)) {
            seen = said;
        }
        mem.turn_to(seen.object()).await;
        let spec = seen.object().map(|i| i.spec.clone());
        let known = known_node(&node, &mem);
        if node_matters(spec.as_ref(), &mem.report, known.as_ref()) {
            if node.is_none() {
                mem.node = None;
                node = Some(spawn_follow(
                    Api::all(actor.client.clone()),
                    &settings.node,
                    &actor.changed,
                ));
            }
        } else if node.is_some() {
            mem.node = known.clone();
            node = None;
        }
        if let Some(Seen::Refused(words)) = node.as_ref().map(|n| n.rx.borrow().clone()) {
            mem.forbidden = Some(words);
        }
        let facts = facts(settings, spec, agent, &mut mem, known);
        let decision = decide(&facts);
        if decision.reason != last_reason {
            tracing::info!(phase = ?facts.report.phase, op = facts.op_id(), "{}", decision.reason);
            last_reason.clone_from(&decision.reason);
        }
        let blocked = facts.progress.blocked.len();
        super::metrics::state(mem.report.phase, facts.agent.is_some(), blocked);
        // What was seen of pods is good for one decision, unless they are followed; outside a trial nobody wants to know.
        mem.unready = None;
        if !facts.agent.as_ref().is_some_and(|a| a.trial) {
            mem.pods = None;
        }
        let acted = !decision.actions.is_empty();
        let complains = decision.tells_of_a_missing_right();
        match carry_out(actor, decision.clone(), &facts, &mut mem).await {
            Ok(()) if complains => {}
            Ok(()) => {
                failures = 0;
                // What was refused was tried again and done.
                if acted {
                    mem.forbidden = None;
                }
            }
            Err(Error::Stale(why)) => {
                tracing::debug!("{why}");
                failures += 1;
                pause(settings, failures).await;
                continue;
            }
            Err(e) => {
                failures += 1;
                if let Some(words) = e.forbidden() {
                    mem.forbidden = Some(words);
                }
                tracing::warn!("{e}: {}", crate::chain(&e));
                pause(settings, failures).await;
                continue;
            }
        }
        if acted && progresses(&decision) {
            continue;
        }
        let wait = decision
            .wake
            .map(|w| Duration::try_from(w.duration_since((settings.clock)())).unwrap_or(Duration::ZERO));
        match wait {
            Some(w) => {
                let _ =
                    tokio::time::timeout(w.max(Duration::from_millis(20)), actor.changed.notified()).await;
            }
            None => actor.changed.notified().await,
        }
    }
}

/// Whether the next decision can differ because of what was just done; else only events and timers matter.
fn progresses(d: &Decision) -> bool {
    use super::decide::Action as A;
    let waits_for_events = |a: &A| {
        matches!(
            a,
            A::Event { .. } | A::Stage { .. } | A::Drain { .. } | A::Forget(_) | A::Commit | A::RollBack
        )
    };
    !d.actions.iter().all(waits_for_events)
}

async fn pause(settings: &Settings, failures: u32) {
    let span = settings
        .backoff_min
        .saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(BACKOFF_MAX);
    tokio::time::sleep(span.mul_f64(crate::drain::jitter(&settings.node, failures))).await;
}

/// The Node as last seen by the watch or left by a write of ours, whichever is newer.
fn known_node(node: &Option<Follower<Node>>, mem: &Memory) -> Option<NodeFact> {
    let seen = node.as_ref().map(|n| n.rx.borrow().clone());
    match seen {
        Some(Seen::Object(o)) => {
            let fact = NodeFact::from(&*o);
            let version = |n: &NodeFact| n.resource_version.parse::<u64>().unwrap_or(0);
            match &mem.node {
                // Versions of one object grow; until the watch caught up, our own write counts.
                Some(own) if own.uid == fact.uid && version(own) > version(&fact) => Some(own.clone()),
                _ => Some(fact),
            }
        }
        Some(Seen::Absent) => None,
        Some(Seen::Unknown | Seen::Refused(_)) | None => mem.node.clone(),
    }
}

fn facts(
    settings: &Settings,
    order: Option<OsInstanceSpec>,
    agent: &watch::Receiver<Option<AgentFact>>,
    mem: &mut Memory,
    node: Option<NodeFact>,
) -> Facts {
    let now = (settings.clock)();
    let agent = agent.borrow().clone();
    mem.silent_since = match (&agent, mem.silent_since) {
        (Some(_), _) => None,
        (None, since) => Some(since.unwrap_or(now)),
    };
    Facts {
        now,
        node,
        order,
        report: mem.report.clone(),
        agent,
        silent_since: mem.silent_since,
        drain: mem.drain.as_ref().map_or(Work::Idle, |d| d.over.borrow().clone()),
        progress: mem
            .drain
            .as_ref()
            .map(|d| d.shown.borrow().clone())
            .unwrap_or_default(),
        stage: mem
            .stage
            .as_ref()
            .map_or(Work::Idle, |(rx, _)| rx.borrow().clone()),
        preflight: mem.preflight.clone(),
        unready: match &mem.pods {
            Some(p) => Some(p.unready.borrow().clone()),
            None => mem.unready.clone(),
        },
        done: mem.done.clone(),
        forbidden: mem.forbidden.clone(),
    }
}

async fn carry_out(actor: &Actor, d: Decision, f: &Facts, mem: &mut Memory) -> Result<(), Error> {
    for a in d.actions {
        tracing::debug!(?a, "acting");
        actor.act(a, f, mem).await?;
    }
    Ok(())
}
