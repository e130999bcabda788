//! One step: attempts with pauses between them, each recorded before and after.

use super::report::Report;
use super::{Going, attempt};
use crate::approval::{self, Gate};
use crate::error::Result;
use crate::plan;
use crate::state::journal::{KILLED, Line, What};
use crate::state::{Failure, Wanted};
use crate::sys::clock;
use os_proto::bundle::StepEntry;
use std::time::Duration;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepEnd {
    /// How.
    pub(super) how: How,
    /// Whether bash was started.
    pub(super) ran: bool,
    /// It set flag `reboot`.
    pub(super) flagged_reboot: bool,
    /// What it told us for people.
    pub(super) notes: Vec<String>,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum How {
    /// Well.
    Done,
    /// All attempts failed.
    Failed(Failure),
    /// It needs an answer first.
    Asks(Wanted),
    /// The node must restart before it goes on.
    RebootNow(String),
    /// The runner was asked to stop.
    Stopped,
}

impl Going<'_> {
    /// Runs a step until it succeeds, fails for good or needs something. `slot` tells members of a group apart.
    ///
    /// # Errors
    /// `StateWriteFailed`: without a record nothing is run.
    pub(super) fn step(&self, index: usize, slot: usize) -> Result<StepEnd> {
        let mut end = StepEnd {
            how: How::Stopped,
            ran: false,
            flagged_reboot: false,
            notes: Vec::new(),
        };
        let Some(entry) = self.bundle.manifest.steps.get(index) else {
            return Ok(end);
        };
        let a = &entry.attributes;
        if a.may_disrupt {
            let gate = approval::may_disrupt(&self.runner.settings, self.first_run, self.answers);
            if let Gate::Ask(w) = gate {
                self.event(&entry.name, 0, "waiting", "it may disrupt the node".to_owned());
                end.how = How::Asks(w);
                return Ok(end);
            }
        }
        let before = self.before.get(&entry.name).filter(|p| p.sha256 == entry.sha256);
        let (mut number, mut failures, interrupted) =
            before.map_or((0, 0, 0), |p| (p.begun, p.failures, p.interrupted));
        if interrupted >= self.runner.limits.interruptions {
            end.how = How::Failed(Failure {
                step: entry.name.clone(),
                attempt: number,
                kind: KILLED.to_owned(),
                message: format!(
                    "step {} ended the runner {interrupted} times: the runner died during each of its last {interrupted} attempts. \
                     Look whether it kills its parent, or needs more memory than the runner's unit may have",
                    entry.name
                ),
                output: String::new(),
            });
            self.write(entry, number, What::Failed, false, 0, KILLED)?;
            return Ok(end);
        }
        if interrupted > 0 {
            tracing::warn!(
                "step {}: the runner died {interrupted} times in it; it is tried again until it were {}",
                entry.name,
                self.runner.limits.interruptions
            );
        }
        // A runner that was killed between a step's words and its own record of them: they still count.
        let left = attempt::unrecorded(self, entry, number);
        end.flagged_reboot = left.flag_reboot;
        if let Some(reason) = left.reboot_now {
            self.write(entry, number, What::Waits, left.changed, 0, "asks")?;
            self.event(&entry.name, number, "waiting", reason.clone());
            end.how = How::RebootNow(reason);
            return Ok(end);
        }
        let most = self.options.max_attempts.unwrap_or(a.retries).max(1);
        loop {
            number += 1;
            self.write(entry, number, What::Begin, left.changed, 0, "")?;
            self.event(&entry.name, number, "began", String::new());
            let tried = attempt::run(self, entry, number, slot);
            end.ran = true;
            let r = tried.report;
            end.flagged_reboot |= r.flag_reboot;
            end.notes = left.notes.clone();
            end.notes.extend(r.notes.iter().cloned());
            let took = u64::try_from(tried.took.as_millis()).unwrap_or(u64::MAX);
            let Some(failure) = tried.failure else {
                if let Some(how) = needs(&r) {
                    self.write(entry, number, What::Waits, r.changed, took, "asks")?;
                    // A request to reboot stands in its report until it stands in the state, which is later.
                    if !matches!(how, How::RebootNow(_)) {
                        attempt::recorded(self, entry, number);
                    }
                    self.event(&entry.name, number, "waiting", String::new());
                    end.how = how;
                    return Ok(end);
                }
                self.write(entry, number, What::Done, r.changed, took, "")?;
                attempt::recorded(self, entry, number);
                self.event(&entry.name, number, "done", String::new());
                end.how = How::Done;
                return Ok(end);
            };
            if tried.stopped {
                // Not the step's fault, and not counted.
                self.write(entry, number, What::Waits, r.changed, took, "stopped")?;
                attempt::recorded(self, entry, number);
                return Ok(end);
            }
            failures += 1;
            self.write(entry, number, What::Failed, r.changed, took, &failure.kind)?;
            attempt::recorded(self, entry, number);
            self.event(&entry.name, number, "failed", failure.message.clone());
            tracing::warn!("{}", failure.message);
            if failures >= most {
                end.how = How::Failed(failure);
                return Ok(end);
            }
            let pause = plan::backoff_ms(self.runner.limits.backoff_first_ms, failures, clock::random(1000));
            clock::sleep(Duration::from_millis(pause), &self.runner.stop);
            if self.runner.stop.stopped() {
                return Ok(end);
            }
        }
    }

    fn write(
        &self,
        s: &StepEntry,
        attempt: u32,
        what: What,
        changed: bool,
        took_ms: u64,
        how: &str,
    ) -> Result<()> {
        self.journal.write(&Line {
            step: s.name.clone(),
            sha256: s.sha256.clone(),
            attempt,
            what,
            changed,
            took_ms,
            how: how.to_owned(),
            at_unix: clock::unix(),
        })
    }
}

/// What a step that exited well still needs.
fn needs(r: &Report) -> Option<How> {
    if let Some(reason) = &r.reboot_now {
        return Some(How::RebootNow(reason.clone()));
    }
    if r.wants_disruption {
        return Some(How::Asks(Wanted::Disruption));
    }
    None
}
