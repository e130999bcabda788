//! The checks before Boot, all of them fresh, and Boot itself.

use super::{Actor, Error, Result, refuse};
use crate::api::{Desired, GrantKind, OsInstanceSpec, OsInstanceStatus};
use crate::drain::Policy;
use crate::proxy::facts::{AgentFact, Facts, Fail};
use crate::proxy::run::Memory;
use os_proto::v1;

/// Boot must be carried out within this many seconds of the checks.
const BOOT_VALID_SECS: i64 = 30;
/// On top of the health timeout, before the agent's own watchdog steps in.
const WATCHDOG_MARGIN_SECS: i64 = 300;

/// Whether the order that was decided on is still what the OSInstance says.
fn still_ordered(now: &OsInstanceSpec, order: &OsInstanceSpec) -> bool {
    now.opid == order.opid
        && matches!(now.desired, Desired::Boot | Desired::Rollback)
        && now.target == order.target
        && now.grant == order.grant
}

impl Actor {
    /// The boot checks, all fresh, the last of them on the answer to the status write, then Activate. `Ok(Err(_))` = refused
    /// for good.
    pub(super) async fn boot(
        &self,
        f: &Facts,
        waive_empty: bool,
        report: &OsInstanceStatus,
        mem: &mut Memory,
    ) -> Result<std::result::Result<(), Fail>> {
        let (Some(order), Some(_)) = (&f.order, &f.node) else {
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
        // What the server answers to this write is our OSInstance as it is at this moment: no read could be fresher. When the
        // order is another one by now, nothing was asked of the agent, and a phase Rebooting without that goes on before Boot.
        let stored = self.report(report, mem).await?;
        if !still_ordered(&stored.spec, order) {
            return Err(Error::Stale("the order changed"));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{GrantOrder, Target, Time};
    use jiff::Timestamp;

    /// What may happen to an order while it is being carried out; none of it leads to a boot.
    #[test]
    fn only_the_very_order_is_carried_out() {
        let t = |s| Time(Timestamp::from_second(s).unwrap());
        let order = OsInstanceSpec {
            desired: Desired::Boot,
            opid: Some("op".into()),
            target: Some(Target {
                digest: "bb".into(),
                ..Target::default()
            }),
            grant: Some(GrantOrder {
                epoch: 1,
                grantedat: t(0),
                notafter: t(600),
            }),
            ..OsInstanceSpec::default()
        };
        assert!(still_ordered(&order, &order));
        let mut denied = order.clone();
        denied.denied = vec!["cc".into()];
        assert!(still_ordered(&denied, &order), "what does not matter");
        let changes: [fn(&mut OsInstanceSpec); 6] = [
            |o| o.desired = Desired::Abort,
            |o| o.desired = Desired::Idle,
            |o| o.opid = Some("another".into()),
            |o| o.target = None,
            |o| o.grant = None,
            |o| {
                if let Some(g) = &mut o.grant {
                    g.notafter = g.grantedat.clone();
                }
            },
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut now = order.clone();
            change(&mut now);
            assert!(!still_ordered(&now, &order), "change {i}");
        }
    }
}
