//! The checks before Boot, all of them fresh, and Boot itself.

use super::{Actor, Error, Result, kube_error, refuse};
use crate::api::{Desired, GrantKind, OsInstanceStatus};
use crate::drain::Policy;
use crate::proxy::facts::{AgentFact, Facts, Fail};
use crate::proxy::run::Memory;
use os_proto::v1;

/// Boot must be carried out within this many seconds of the checks.
const BOOT_VALID_SECS: i64 = 30;
/// On top of the health timeout, before the agent's own watchdog steps in.
const WATCHDOG_MARGIN_SECS: i64 = 300;

impl Actor {
    /// The boot checks, all fresh, then the status, then Activate. `Ok(Err(_))` = refused for good.
    pub(super) async fn boot(
        &self,
        f: &Facts,
        waive_empty: bool,
        report: &OsInstanceStatus,
        mem: &mut Memory,
    ) -> Result<std::result::Result<(), Fail>> {
        let (Some(order), Some(node)) = (&f.order, &f.node) else {
            return Err(Error::Stale("no order"));
        };
        let policy = order.policy.clone().unwrap_or_default();
        if !waive_empty && !self.server().is_empty(&Policy::from(&policy)).await? {
            mem.stop_drain().await;
            return Err(Error::Stale("pods came back"));
        }
        if !self.granted(f, order).await? {
            return Ok(Err(refuse(
                "GrantGone",
                "the ledger does not hold this node's grant (any more)",
            )));
        }
        let mine = self
            .instances()
            .get_opt(&node.name)
            .await
            .map_err(kube_error("reading our OSInstance"))?;
        let same = mine.is_some_and(|i| {
            i.spec.opid == order.opid
                && matches!(i.spec.desired, Desired::Boot | Desired::Rollback)
                && i.spec.target == order.target
        });
        if !same {
            return Err(Error::Stale("the order changed"));
        }
        let target = order.target.clone().unwrap_or_default();
        let agent: AgentFact = self.agent.status().await.map_err(Error::Agent)?;
        if target.kind != GrantKind::Reboot && !agent.report.has_staged(&target.digest) {
            return Ok(Err(refuse(
                "NotStaged",
                "the inactive slot does not hold the target (any more)",
            )));
        }
        let expected = order.expectbootid.clone().unwrap_or_default();
        if agent.report.boot_id != expected {
            return Err(Error::Stale("the node rebooted"));
        }
        let now = self.now();
        let not_after = order.grant.as_ref().map_or(now, |g| g.notafter.0);
        let valid = now.as_second() + BOOT_VALID_SECS;
        if valid >= not_after.as_second() {
            return Ok(Err(refuse(
                "GrantExpired",
                "too little of the grant's time is left to boot",
            )));
        }
        self.report(report, mem).await?;
        let deadline = policy.healthtimeoutseconds.max(0) + WATCHDOG_MARGIN_SECS;
        let request = v1::ActivateRequest {
            op_id: f.op_id().to_owned(),
            digest: target.digest,
            expect_boot_id: expected,
            valid_until_unix: valid,
            reboot: true,
            confirm: v1::Confirm::Cluster as i32,
            deadline_secs: u64::try_from(deadline).unwrap_or(0),
            on_silence: if policy.rollbackonapiunreachable {
                v1::OnSilence::Reboot as i32
            } else {
                v1::OnSilence::Keep as i32
            },
        };
        match self.agent.activate(request).await {
            Ok(()) => Ok(Ok(())),
            Err(e) if e.passing => Err(Error::Agent(e)),
            Err(e) => Ok(Err(e)),
        }
    }
}
