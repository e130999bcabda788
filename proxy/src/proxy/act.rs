//! Carries actions out. Every write of the Node carries the version that the decision was made on; every read before Boot is
//! a live one.

mod boot;
mod node;
mod pods;
mod work;

use super::agent::Agent;
use super::decide::Action;
use super::facts::{AgentFact, Facts, Fail, Step, Work};
use super::run::{Memory, Settings};
use crate::api::{
    self, Configs, INSTANCE_NAMESPACE, LABEL_CONFIGURING, OSInstance, OsInstanceStatus, PROXY_MANAGER,
};
use crate::drain;
use crate::drain::run::Server;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
pub use pods::not_ready;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

/// The interpreter: clients, the agent, and where changes are announced.
#[derive(Clone)]
pub struct Actor {
    /// Client without retries of its own.
    pub client: kube::Client,
    /// The agent.
    pub agent: Agent,
    /// Names and spans.
    pub settings: Settings,
    /// Told when work beside the loop ends.
    pub changed: Arc<Notify>,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("{what}")]
    Kube {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A question about pods could not be answered.
    #[error("{0}")]
    Drain(#[from] drain::run::Error),
    /// What was reported is not in the answer.
    #[error(
        "the cluster has other definitions of OSInstance (KubeOS's own?), which drop what is reported; apply proxy/deploy/crds.yaml"
    )]
    Pruned,
    /// The agent said no, or nothing.
    #[error("os-agent: {}: {}", .0.reason, .0.message)]
    Agent(Fail),
    /// What was decided on is not so any more.
    #[error("{0}: looking again")]
    Stale(&'static str),
}

impl Error {
    /// The server's words, where a right is missing.
    pub fn forbidden(&self) -> Option<String> {
        match self {
            Error::Kube { source, .. } | Error::Drain(drain::run::Error::Kube { source, .. }) => {
                super::observe::forbidden(source)
            }
            _ => None,
        }
    }
}

fn kube_error(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |e| Error::Kube {
        what,
        source: Box::new(e),
    }
}

fn refuse(reason: &str, message: &str) -> Fail {
    Fail {
        reason: reason.into(),
        message: message.into(),
        passing: false,
    }
}

type Result<T> = std::result::Result<T, Error>;

impl Actor {
    fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    fn server(&self) -> Server {
        Server {
            client: self.client.clone(),
            node: self.settings.node.clone(),
            clock: self.settings.clock,
            tuning: self.settings.tuning,
            volumes: true,
        }
    }

    fn instances(&self) -> Api<OSInstance> {
        Api::namespaced(self.client.clone(), INSTANCE_NAMESPACE)
    }

    /// Carries one action out.
    ///
    /// # Errors
    /// The round ends; everything is looked at again.
    pub async fn act(&self, action: Action, f: &Facts, mem: &mut Memory) -> Result<()> {
        match action {
            Action::Report(status) => self.report(&status, mem).await.map(drop),
            Action::Event {
                reason,
                message,
                warning,
            } => {
                self.event(f, &reason, &message, warning).await;
                Ok(())
            }
            Action::Preflight => self.preflight(f, mem).await,
            Action::Forget(digest) => self.agent.forget(&digest).await.map_err(Error::Agent),
            Action::Stage { op_id, force } => {
                self.stage(f, op_id, force, mem);
                Ok(())
            }
            Action::Cordon { owner } => self.cordon(f, owner.as_deref(), mem).await,
            Action::Drain { since } => {
                self.drain(f, since, mem);
                Ok(())
            }
            Action::StopDrain => {
                mem.stop_drain().await;
                Ok(())
            }
            Action::Configure { step, op_id, configs } => self.configure(step, &op_id, &configs, mem).await,
            Action::Boot { waive_empty, report } => {
                let checked = self.boot(f, waive_empty, &report, mem).await;
                match checked {
                    Ok(r) => {
                        mem.done.insert(Step::Boot, r);
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            }
            Action::LookAtPods => self.look_at_pods(f, mem).await,
            Action::Commit => {
                let (agent, digest) = (f.agent.clone().unwrap_or_default(), target_digest(f));
                let op = op_of(f, &agent);
                let digest = if agent.report.runs(&digest) {
                    digest
                } else {
                    String::new()
                };
                // A refusal (not healthy any more) is asked for again until the health timeout ends it.
                self.agent
                    .commit(&format!("{op}.commit"), &digest, &agent.report.boot_id)
                    .await
                    .map_err(Error::Agent)?;
                mem.done.insert(Step::Commit, Ok(()));
                Ok(())
            }
            Action::RollBack => {
                let agent = f.agent.clone().unwrap_or_default();
                let op = op_of(f, &agent);
                let r = self
                    .agent
                    .rollback(&format!("{op}.rollback"), &agent.report.boot_id)
                    .await;
                self.keep(Step::Rollback, r, mem)
            }
            Action::Cancel => {
                let boot = f
                    .agent
                    .as_ref()
                    .map(|a| a.report.boot_id.clone())
                    .unwrap_or_default();
                let r = self.agent.cancel(&format!("{}.cancel", f.op_id()), &boot).await;
                self.keep(Step::Cancel, r, mem)
            }
            Action::Release { uncordon } => self.release(f, uncordon, mem).await,
            Action::LabelConfiguring(on) => {
                let value = if on { json!("") } else { Value::Null };
                let body = json!({"metadata": {"labels": {LABEL_CONFIGURING: value}}});
                self.patch_node(f, body, mem).await
            }
            Action::StartOver => {
                mem.preflight = Work::Idle;
                mem.clear_stage();
                Ok(())
            }
        }
    }

    /// Results that may come out better are errors of this round; others are facts for the next decision.
    fn keep(&self, step: Step, r: std::result::Result<(), Fail>, mem: &mut Memory) -> Result<()> {
        if let Err(e) = &r
            && e.passing
        {
            return Err(Error::Agent(e.clone()));
        }
        mem.done.insert(step, r);
        Ok(())
    }

    /// Writes the status; gives the OSInstance as it is after that.
    async fn report(&self, status: &OsInstanceStatus, mem: &mut Memory) -> Result<OSInstance> {
        let body = json!({
            "apiVersion": "upgrade.openeuler.org/v1alpha1",
            "kind": "OSInstance",
            "metadata": {"name": self.settings.node},
            "status": status,
        });
        let params = PatchParams::apply(PROXY_MANAGER).force();
        let stored = self
            .instances()
            .patch_status(&self.settings.node, &params, &Patch::Apply(body))
            .await
            .map_err(kube_error("writing the status of our OSInstance"))?;
        let found = stored.status.as_ref();
        // Said again later: once the definitions are mended nothing else would change, and nobody would ask.
        let kept = found.is_some_and(|s| s.agent.is_some()) || status.agent.is_none();
        mem.kept(kept);
        if !kept {
            mem.report = stored.status.unwrap_or_default();
            return Err(Error::Pruned);
        }
        mem.report = status.clone();
        Ok(stored)
    }

    /// Said once: the name is made of what is said, so a second one exists already. Never holds anything up.
    async fn event(&self, f: &Facts, reason: &str, message: &str, warning: bool) {
        let node = &self.settings.node;
        let seed = format!("{}/{reason}/{message}", f.op_id());
        let name = format!("{:.200}.{:08x}", node, (drain::jitter(&seed, 0) * 1e9) as u64);
        let now = self.now();
        let event: std::result::Result<Event, _> = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": INSTANCE_NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": reason,
            "message": format!("{message:.1000}"),
            "type": if warning { "Warning" } else { "Normal" },
            "source": {"component": PROXY_MANAGER},
            "firstTimestamp": api::Time(now),
            "lastTimestamp": api::Time(now),
            "count": 1,
        }));
        let Ok(event) = event else { return };
        let api: Api<Event> = Api::namespaced(self.client.clone(), INSTANCE_NAMESPACE);
        if let Err(e) = api.create(&PostParams::default(), &event).await
            && !matches!(&e, kube::Error::Api(s) if s.code == 409)
        {
            tracing::warn!("event {reason}: {e}");
        }
    }

    async fn configure(&self, step: Step, op_id: &str, configs: &Configs, mem: &mut Memory) -> Result<()> {
        let r = self.agent.configure(op_id, configs, false).await;
        self.keep(step, r, mem)
    }
}

fn target_digest(f: &Facts) -> String {
    f.order
        .as_ref()
        .and_then(|o| o.target.as_ref())
        .map(|t| t.digest.clone())
        .unwrap_or_default()
}

/// The operation that the trial belongs to: the order's, or, when the order is gone, the agent's own.
fn op_of(f: &Facts, agent: &AgentFact) -> String {
    if agent.boot_op.is_empty() {
        f.op_id().to_owned()
    } else {
        agent.boot_op.clone()
    }
}
