//! A run in progress: units of steps in their order, the gate before the main ones, the account of how each ended.

use super::step::{How, StepEnd};
use super::{Event, Options, Runner};
use crate::approval::{self, Answers, Gate};
use crate::bundle::Bundle;
use crate::error::{Result, StepsError};
use crate::plan::{self, Plan};
use crate::state::journal::{Journal, Progress};
use crate::state::{Failure, Run, Wanted};
use crate::sys::{cgroup, clock};
use os_proto::bundle::Phase;
use std::collections::BTreeMap;
use std::time::Duration;

/// A run in progress.
pub(super) struct Going<'a> {
    pub(super) runner: &'a Runner,
    pub(super) bundle: &'a Bundle,
    pub(super) options: &'a Options,
    pub(super) run: Run,
    pub(super) first_run: bool,
    pub(super) answers: Answers,
    pub(super) journal: Journal,
    pub(super) before: BTreeMap<String, Progress>,
    pub(super) env: Vec<(String, String)>,
    pub(super) masks: Vec<String>,
    pub(super) groups: Option<cgroup::Parent>,
    pub(super) started: Duration,
}

/// Why a run ends before its last step.
pub(super) enum Early {
    Failed(Failure),
    Ask(Wanted, String),
    RebootNow { reason: String, step: String },
    Stopped,
}

/// What the steps of a run did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) executed: u32,
    pub(super) degraded: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Which step set flag `reboot`.
    pub(super) reboot_step: String,
}

impl Going<'_> {
    /// Runs what the plan says; what was done, and why it ended early.
    pub(super) fn steps(&mut self, p: &Plan) -> Result<(Done, Option<Early>)> {
        let mut done = Done::default();
        let mut gated = false;
        for unit in plan::units(&self.bundle.manifest, &p.steps) {
            let todo: Vec<usize> = unit
                .iter()
                .filter_map(|i| p.steps.get(*i))
                .filter(|s| s.run)
                .map(|s| s.index)
                .collect();
            if todo.is_empty() {
                continue;
            }
            if self.runner.stop.stopped() {
                return Ok((done, Some(Early::Stopped)));
            }
            if clock::monotonic().saturating_sub(self.started) > self.runner.limits.run {
                return Ok((done, Some(Early::Failed(self.deadline()))));
            }
            let phase = |i: &usize| self.bundle.manifest.steps.get(*i).map(|s| s.attributes.phase);
            if !gated && todo.iter().any(|i| phase(i) > Some(Phase::PreApproval)) {
                gated = true;
                let (s, a) = (&self.runner.settings, self.answers);
                if let Gate::Ask(w) = approval::may_begin(s, p.kind, self.first_run, a) {
                    return Ok((done, Some(Early::Ask(w, String::new()))));
                }
            }
            let ends = self.unit(&todo);
            for (index, end) in todo.iter().zip(ends) {
                if let Some(early) = self.account(*index, end?, &mut done) {
                    return Ok((done, Some(early)));
                }
            }
        }
        Ok((done, None))
    }

    fn deadline(&self) -> Failure {
        Failure {
            step: String::new(),
            attempt: 0,
            kind: "deadline".to_owned(),
            message: format!("the run takes longer than {} s", self.runner.limits.run.as_secs()),
            output: String::new(),
        }
    }

    /// All steps of a unit to their ends; the first alone runs in this thread.
    fn unit(&self, todo: &[usize]) -> Vec<Result<StepEnd>> {
        if let [one] = todo {
            return vec![self.step(*one, 0)];
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = todo
                .iter()
                .enumerate()
                .map(|(slot, index)| scope.spawn(move || self.step(*index, slot)))
                .collect();
            all.into_iter()
                .map(|t| {
                    t.join().unwrap_or_else(|_| {
                        Err(StepsError::new(
                            os_proto::codes::Code::Internal,
                            "a step's thread broke off",
                        ))
                    })
                })
                .collect()
        })
    }

    /// Counts a step's end; gives why the run ends with it.
    fn account(&self, index: usize, end: StepEnd, done: &mut Done) -> Option<Early> {
        let entry = self.bundle.manifest.steps.get(index)?;
        done.notes
            .extend(end.notes.iter().map(|n| format!("{}: {n}", entry.name)));
        done.executed += u32::from(end.ran);
        if end.flagged_reboot {
            done.reboot_step.clone_from(&entry.name);
        }
        match end.how {
            How::Done => None,
            How::Stopped => Some(Early::Stopped),
            How::Asks(w) => Some(Early::Ask(w, entry.name.clone())),
            How::RebootNow(reason) => Some(Early::RebootNow {
                reason,
                step: entry.name.clone(),
            }),
            How::Failed(f) => {
                if entry.attributes.on_failure == os_proto::bundle::OnFailure::Continue {
                    tracing::warn!("step {} failed and may: {}", entry.name, f.message);
                    done.degraded.push(entry.name.clone());
                    return None;
                }
                Some(Early::Failed(f))
            }
        }
    }

    /// Tells who watches.
    pub(super) fn event(&self, step: &str, attempt: u32, state: &'static str, message: String) {
        (self.runner.sink)(&Event {
            run_id: self.run.run_id.clone(),
            step: step.to_owned(),
            attempt,
            state,
            line: String::new(),
            message,
        });
    }
}
