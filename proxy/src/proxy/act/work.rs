//! Work that runs beside the loop or before anything is touched: preflight, staging, the drain.

use super::{Actor, Error, Result};
use crate::drain::run::{Progress, Server};
use crate::drain::{self, Policy};
use crate::proxy::agent;
use crate::proxy::facts::{Facts, Fail, Preflight, Work};
use crate::proxy::metrics;
use crate::proxy::run::Memory;
use jiff::Timestamp;
use os_proto::v1;
use std::sync::Arc;
use tokio::sync::watch;

/// Evictions tried as dry runs before staging.
const PROBES: usize = 20;

impl Actor {
    pub(super) async fn preflight(&self, f: &Facts, mem: &mut Memory) -> Result<()> {
        let Some(order) = &f.order else { return Ok(()) };
        let mut rejected = None;
        for (configs, name) in [(&order.upgradeconfigs, "pre"), (&order.sysconfigs, "post")] {
            let Some(c) = configs.as_ref().filter(|c| !c.configs.is_empty()) else {
                continue;
            };
            let op = format!("{}.dry-{name}", f.op_id());
            match self.agent.configure(&op, c, true).await {
                Err(e) if e.passing => return Err(Error::Agent(e)),
                Err(e) => rejected = Some(e),
                Ok(()) => {}
            }
        }
        let policy = Policy::from(&order.policy.clone().unwrap_or_default());
        let blocked = self.server().preflight(&policy, PROBES).await?;
        mem.preflight = Work::Ended(Preflight { blocked, rejected });
        Ok(())
    }

    pub(super) fn stage(&self, f: &Facts, op_id: String, force: bool, mem: &mut Memory) {
        let Some(order) = &f.order else { return };
        let target = order.target.clone().unwrap_or_default();
        let other = match f.agent.as_ref().map(|a| a.report.slot.as_str()) {
            Some("A") => v1::Slot::B,
            Some("B") => v1::Slot::A,
            _ => v1::Slot::Unspecified,
        };
        let request = v1::StageRequest {
            op_id,
            source: target.source.as_ref().map(|s| agent::wire_source(s, other)),
            checksum: target.digest.clone(),
            // KubeOS users write PRETTY_NAME or VERSION_ID; the agent accepts both.
            os_image: target.version.clone(),
            // Ordering an older version is the general way back.
            allow_older: true,
            force,
            ..Default::default()
        };
        let (agent, changed) = (self.agent.clone(), Arc::clone(&self.changed));
        let wanted = target.digest.clone();
        let (tx, rx) = watch::channel(Work::Running);
        mem.start_stage(
            rx,
            tokio::spawn(async move {
                let mut r = agent
                    .stage(request)
                    .await
                    .map(|x| metrics::staged(x.written_bytes));
                // Proven by what the agent says of the slot, not by the answer alone.
                if r.is_ok() {
                    r = match agent.status().await {
                        Ok(a) if a.report.has_staged(&wanted) => Ok(()),
                        Ok(_) => Err(Fail {
                            reason: "NotStaged".into(),
                            message: "the agent staged it and the slot does not hold it".into(),
                            passing: true,
                        }),
                        Err(e) => Err(e),
                    };
                }
                let _ = tx.send(Work::Ended(r));
                changed.notify_one();
            }),
        );
    }

    pub(super) fn drain(&self, f: &Facts, since: Timestamp, mem: &mut Memory) {
        let policy = f
            .order
            .as_ref()
            .and_then(|o| o.policy.clone())
            .unwrap_or_default();
        let policy = Policy::from(&policy);
        let server = Server {
            // As the cordon's answer said, or the watch of the Node after a restart.
            volumes: mem.last_node().or(f.node.as_ref()).is_none_or(|n| n.volumes),
            ..self.server()
        };
        let changed = Arc::clone(&self.changed);
        let (progress, shown) = watch::channel(Progress::default());
        let (outcome, over) = watch::channel(Work::Running);
        let (stop, stopped) = watch::channel(false);
        let told = Arc::clone(&self.changed);
        let mut follow = shown.clone();
        let began = self.now();
        let task = tokio::spawn(async move {
            let telling = async {
                while follow.changed().await.is_ok() {
                    told.notify_one();
                }
                std::future::pending::<()>().await
            };
            let r = tokio::select! {
                r = drain::run::run(&server, &policy, since, &progress, stopped) => r,
                () = telling => return,
            };
            let ms = (server.clock)().as_millisecond() - began.as_millisecond();
            metrics::drained(u64::try_from(ms).unwrap_or(0));
            let out = r.unwrap_or_else(|e| drain::run::Outcome::Fault(e.to_string()));
            let _ = outcome.send(Work::Ended(out));
            changed.notify_one();
        });
        mem.start_drain(shown, over, stop, task);
    }
}
