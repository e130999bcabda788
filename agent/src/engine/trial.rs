//! The probe thread of a trial: observes the gates, asks the judge, tells the machine.

use super::{Engine, HealthView};
use crate::config::Kubelet;
use crate::gates::{Judge, Limits, Ruling, Seen};
use crate::machine::Event;
use crate::state::Phase;
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(2);
/// The early timer is stopped this long before it fires, when the order grants a longer deadline.
const TIMER_MARGIN: Duration = Duration::from_secs(15);

impl Engine {
    pub(super) fn watch_trial(self: &Arc<Self>) {
        let trial = self.options.config.trial.clone();
        let default = Duration::from_secs(trial.deadline_secs);
        let mut judge = Judge::default();
        let mut timer_stopped = false;
        while !self.stop.is_cancelled() {
            let (asked, kept) = {
                let inner = self.lock();
                let node = &inner.node;
                if node.phase != Phase::Trial || node.leaving {
                    break;
                }
                let armed = node.state.armed.as_ref();
                let kept =
                    armed.is_some_and(|a| a.tries.iter().any(|t| t.kept && t.boot_id == node.boot.boot_id));
                (armed.map_or(0, |a| a.deadline_secs), kept)
            };
            let deadline = match asked {
                0 => default,
                s => Duration::from_secs(s),
            };
            // Our own verdict comes before the early timer's reboot, so that the cause is stored.
            let limits = Limits {
                deadline: if kept {
                    Duration::MAX
                } else {
                    deadline.saturating_sub((deadline / 10).min(Duration::from_secs(10)))
                },
                settle: Duration::from_secs(trial.settle_secs),
            };
            let left = limits.deadline.saturating_sub(self.ports.clock.monotonic());
            let hook_limit = Duration::from_secs(trial.hook_timeout_secs)
                .min(left)
                .max(Duration::from_secs(1));
            if let Some(why) = self.ports.host.trial_obstacle() {
                let mut inner = self.lock();
                if let Err(e) = self.apply(&mut inner, Event::Obstructed(why)) {
                    tracing::error!(%e, "trial");
                }
                break;
            }
            let seen = self.observe(hook_limit);
            let now = self.ports.clock.monotonic();
            if !timer_stopped && deadline > default && now + TIMER_MARGIN >= default {
                // The agent is alive and the order grants more time than the unit that watches over it.
                self.ports.host.stop_trial_timer();
                timer_stopped = true;
            }
            let ruling = judge.rule(&seen, now, &limits);
            self.obey(&seen, &judge, now, ruling);
            self.ports.clock.sleep(ROUND, &self.stop);
        }
        self.lock().trial_running = false;
    }

    fn observe(&self, hook_limit: Duration) -> Seen {
        let host = &self.ports.host;
        let boot_complete = host.boot_complete();
        Seen {
            boot_complete,
            hooks: if boot_complete {
                host.run_hooks(hook_limit)
            } else {
                Vec::new()
            },
            kubelet: match self.options.config.kubelet {
                Kubelet::Auto if boot_complete => host.kubelet_healthy(),
                _ => None,
            },
        }
    }

    fn obey(self: &Arc<Self>, seen: &Seen, judge: &Judge, now: Duration, ruling: Ruling) {
        let secs = now.as_secs();
        let events = match ruling {
            Ruling::Wait(why) => vec![Event::NotHealthy, Event::Sign(why, secs)],
            Ruling::Settling => vec![Event::NotHealthy, Event::Sign("all gates hold".to_owned(), secs)],
            Ruling::Healthy => vec![Event::Healthy],
            Ruling::Bad(why) => vec![Event::Bad(why)],
            Ruling::Deadline(why) => vec![Event::Deadline(why)],
        };
        let mut inner = self.lock();
        if inner.node.phase != Phase::Trial || inner.node.leaving {
            return;
        }
        // A healthy node that only waits for Commit meets its deadline here, not in the judge.
        let silent = matches!(events.as_slice(), [Event::Healthy]) && self.silence(&inner, now);
        for event in events {
            if let Err(e) = self.apply(&mut inner, event) {
                tracing::error!(%e, "trial");
            }
        }
        if silent && inner.node.phase == Phase::Trial {
            let why = "all gates hold, but nobody confirmed".to_owned();
            if let Err(e) = self.apply(&mut inner, Event::Deadline(why)) {
                tracing::error!(%e, "trial");
            }
        }
        let healthy = inner.node.healthy || inner.node.phase == Phase::Idle;
        inner.health = Some(HealthView {
            seen: seen.clone(),
            good_since_unix: judge
                .good_since()
                .map(|s| self.now() - i64::try_from(now.saturating_sub(s).as_secs()).unwrap_or(0))
                .unwrap_or(0),
            healthy,
        });
        drop(inner);
        self.touch();
    }

    /// Whether the deadline passed for a trial that waits for `Commit`.
    fn silence(&self, inner: &super::Inner, now: Duration) -> bool {
        let Some(armed) = &inner.node.state.armed else {
            return false;
        };
        let secs = match armed.deadline_secs {
            0 => self.options.config.trial.deadline_secs,
            s => s,
        };
        let deadline = Duration::from_secs(secs);
        let limit = deadline.saturating_sub((deadline / 10).min(Duration::from_secs(10)));
        let kept = armed
            .tries
            .iter()
            .any(|t| t.kept && t.boot_id == inner.node.boot.boot_id);
        now >= limit && !kept
    }
}
