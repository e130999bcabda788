//! The only interpreter: takes the lock, asks `plan`, runs steps, records what happened, hands over what it may not do.

mod attempt;
mod ending;
mod env;
mod going;
mod output;
mod report;
mod step;

use crate::approval::Answers;
use crate::bundle::Bundle;
use crate::dirs::Dirs;
use crate::error::{Result, StepsError};
use crate::kube::Cluster;
use crate::plan::{self, Decision, Facts, Plan, Trigger};
use crate::settings::{Approval, Disruption, Settings};
use crate::state::journal::{Journal, Line, Progress, What};
use crate::state::{Failure, Outcome, Run, State};
use crate::store;
use crate::sys::clock::{self, Stop};
use crate::sys::lock::RunLock;
use crate::sys::{atomic, cgroup, child, tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use ending::describe;
use going::{Done, Early, Going};

/// The machine.
pub trait Host: Send + Sync {
    /// Identity of this boot.
    fn boot_id(&self) -> String;
    /// Host name.
    fn hostname(&self) -> String;
    /// Asks the service manager for an orderly reboot.
    ///
    /// # Errors
    /// What it answered.
    fn reboot(&self) -> std::result::Result<(), String>;
}

/// Something that a watcher wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Run.
    pub run_id: String,
    /// Step; empty = the run itself.
    pub step: String,
    /// From 1.
    pub attempt: u32,
    /// began, done, failed, skipped, waiting, output, outcome.
    pub state: &'static str,
    /// A line that the step printed.
    pub line: String,
    /// For people.
    pub message: String,
}

/// Gets events; must be quick and must not fail.
pub type Sink = Arc<dyn Fn(&Event) + Send + Sync>;

/// Limits that tests shorten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// First pause of the backoff, milliseconds.
    pub backoff_first_ms: u64,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// One run, without the time that it waits.
    pub run: Duration,
    /// Attempts of a step in a row during which the runner was killed.
    pub interruptions: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            backoff_first_ms: 2000,
            grace: child::GRACE,
            run: Duration::from_secs(3 * 3600),
            interruptions: 20,
        }
    }
}

/// How to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Not asked by a person, but by the clock.
    pub tick: bool,
    /// Forget progress.
    pub from_start: bool,
    /// Instead of each step's own number.
    pub max_attempts: Option<u32>,
    /// Writers only report; only inside a dry run's namespaces.
    pub check: bool,
    /// The content of this run is approved.
    pub approve: bool,
    /// So is what it disrupts.
    pub approve_disruption: bool,
}

/// Everything that a run needs.
pub struct Runner {
    /// Where.
    pub dirs: Dirs,
    /// How.
    pub settings: Settings,
    /// The machine.
    pub host: Arc<dyn Host>,
    /// The cluster, where the settings name one.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// Who watches.
    pub sink: Sink,
    /// Ends everything.
    pub stop: Stop,
    /// See [`Limits`].
    pub limits: Limits,
}

/// How a run ended, and what it was about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// Empty when no step ran.
    pub run_id: String,
    /// The bundle's hash.
    pub content_hash: String,
    /// Steps that ran in this call.
    pub executed: u32,
    /// What steps would do, in a dry run; packages that the image must bring, otherwise.
    pub notes: Vec<String>,
}

impl Runner {
    /// `FIRST_BASHIBLE_RUN`: the node is being made.
    fn first_run(&self) -> bool {
        self.dirs.base.join("first_run").exists()
    }

    /// The epoch of now, for this node's group.
    pub fn epoch(&self, bundle_epoch: &str) -> String {
        if bundle_epoch.is_empty() {
            plan::epoch(clock::unix(), &self.settings.node_group)
        } else {
            bundle_epoch.to_owned()
        }
    }

    /// What would happen with a bundle now. Reads only.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn plan(&self, bundle: &Bundle, options: &Options) -> Result<Decision> {
        let state = State::load(&self.dirs.steps)?;
        let progress = self.progress(&state);
        Ok(self.decide(&state, bundle, options, &progress))
    }

    fn progress(&self, state: &State) -> BTreeMap<String, Progress> {
        let Some(r) = &state.run else {
            return BTreeMap::new();
        };
        let path = self.dirs.runs().join(&r.run_id).join("run.jsonl");
        crate::state::journal::replay(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn decide(
        &self,
        state: &State,
        bundle: &Bundle,
        options: &Options,
        progress: &BTreeMap<String, Progress>,
    ) -> Decision {
        plan::decide(&Facts {
            state,
            manifest: &bundle.manifest,
            progress,
            boot_id: &self.host.boot_id(),
            now: clock::unix(),
            epoch: &self.epoch(&bundle.manifest.epoch),
            from_start: options.from_start,
            trigger: if options.tick {
                Trigger::Tick
            } else {
                Trigger::Asked
            },
        })
    }

    /// One run of a bundle.
    ///
    /// # Errors
    /// `Busy` while another run goes on; `BundleInvalid` (the last good bundle stays); `StateWriteFailed`.
    pub fn run(&self, bundle: &Bundle, options: &Options) -> Result<Ended> {
        self.dirs.make_all()?;
        let _lock = RunLock::take(&self.dirs.steps)?;
        let mut state = State::load(&self.dirs.steps)?;
        // Verified from the disk: what runs is what was hashed.
        let mut stored = match store::take(&self.dirs, bundle) {
            Ok(b) => b,
            Err(e) => {
                self.refused(&mut state, &e);
                return Err(e);
            }
        };
        stored
            .manifest
            .external_checksum
            .clone_from(&bundle.manifest.external_checksum);
        stored.manifest.epoch.clone_from(&bundle.manifest.epoch);
        let bundle = &stored;
        let hash = bundle.manifest.content_hash.clone();
        for (yes, what) in [
            (options.approve, "update"),
            (options.approve_disruption, "disruption"),
        ] {
            if yes {
                approve(&self.dirs, what, &hash)?;
            }
        }
        self.after_boot(&mut state)?;
        let progress = self.progress(&state);
        let nothing = |outcome| Ended {
            outcome,
            run_id: String::new(),
            content_hash: hash.clone(),
            executed: 0,
            notes: Vec::new(),
        };
        match self.decide(&state, bundle, options, &progress) {
            Decision::InSync(_) => {
                // What was refused is no longer offered.
                if matches!(&state.outcome, Some(Outcome::Failed(f)) if f.step.is_empty()) {
                    state.outcome = Some(Outcome::InSync);
                    state.outcome_unix = clock::unix();
                    state.save(&self.dirs.steps)?;
                }
                Ok(nothing(Outcome::InSync))
            }
            Decision::Later(at, why) => {
                let left = at - clock::unix();
                tracing::debug!("next try in {left} s: {why}");
                Ok(nothing(state.outcome.clone().unwrap_or(Outcome::InSync)))
            }
            Decision::Reboot(_) => {
                let outcome = self.reboot(&mut state)?;
                if state.outcome.as_ref() != Some(&outcome) {
                    state.outcome = Some(outcome.clone());
                    state.outcome_unix = clock::unix();
                    state.save(&self.dirs.steps)?;
                }
                Ok(nothing(outcome))
            }
            Decision::Run(p) => self.execute(&mut state, bundle, &p, progress, options),
        }
    }

    /// Records that a bundle was refused; nothing of it ran.
    pub fn refused(&self, state: &mut State, e: &StepsError) {
        let kind = if e.code == os_proto::codes::Code::BundleInvalid {
            "bundle"
        } else {
            "fetch"
        };
        let outcome = Outcome::Failed(Failure {
            step: String::new(),
            attempt: 0,
            kind: kind.to_owned(),
            message: e.message.clone(),
            output: String::new(),
        });
        if state.outcome.as_ref() != Some(&outcome) {
            state.outcome = Some(outcome);
            state.outcome_unix = clock::unix();
            if let Err(e) = state.save(&self.dirs.steps) {
                tracing::error!(%e, "the outcome could not be stored");
            }
        }
    }

    fn execute(
        &self,
        state: &mut State,
        bundle: &Bundle,
        p: &Plan,
        before: BTreeMap<String, Progress>,
        options: &Options,
    ) -> Result<Ended> {
        child::become_subreaper();
        let mark = env::mark(&self.dirs);
        let left = tree::kill_marked(&format!("{}={}", mark.0, mark.1));
        if left > 0 {
            tracing::warn!("{left} processes of a runner that was killed were ended");
        }
        let run = self.begin(state, bundle, p)?;
        let out = self.carry_out(state, bundle, p, before, options, run);
        if out.is_err() && close(state) {
            // It ended, though not as it should: nobody killed it.
            let _ = state.save(&self.dirs.steps);
        }
        out
    }

    fn carry_out(
        &self,
        state: &mut State,
        bundle: &Bundle,
        p: &Plan,
        before: BTreeMap<String, Progress>,
        options: &Options,
        run: Run,
    ) -> Result<Ended> {
        let mark = env::mark(&self.dirs);
        let run_dir = self.dirs.runs().join(&run.run_id);
        let (journal, mut mine) = Journal::open(&run_dir)?;
        if p.resume && mine.is_empty() {
            // A new run after a failed one: what that one finished counts, with attempts anew.
            for s in p.steps.iter().filter(|s| !s.run) {
                if let Some(done) = before.get(&s.name).filter(|b| b.done) {
                    journal.write(&Line {
                        step: s.name.clone(),
                        sha256: done.sha256.clone(),
                        attempt: done.begun,
                        what: What::Done,
                        changed: done.changed,
                        took_ms: done.took_ms,
                        how: "earlier run".to_owned(),
                        at_unix: clock::unix(),
                    })?;
                }
            }
            mine = before.into_iter().filter(|(_, p)| p.done).collect();
        }
        let first_run = self.first_run();
        let answers = self.answers(&bundle.manifest.content_hash);
        let mut going = Going {
            runner: self,
            bundle,
            options,
            first_run,
            answers,
            journal,
            before: mine,
            env: env::build(self, bundle, first_run, answers, options.check),
            masks: env::secrets(self),
            groups: cgroup::Parent::find(&mark.1),
            started: clock::monotonic(),
            run,
        };
        let result = going.steps(p);
        drop(going.groups.take());
        ending::finish(self, state, going, p, result)
    }

    /// Stores that a run begins (or goes on).
    fn begin(&self, state: &mut State, bundle: &Bundle, p: &Plan) -> Result<Run> {
        let m = &bundle.manifest;
        let run = match state.run.clone().filter(|r| p.resume && !r.failed) {
            Some(r) => Run { open: true, ..r },
            None => Run {
                run_id: format!("{}-{:06x}", clock::unix(), clock::random(1 << 24)),
                content_hash: m.content_hash.clone(),
                external_checksum: m.external_checksum.clone(),
                kind: p.kind,
                boot_id: self.host.boot_id(),
                epoch: self.epoch(&m.epoch),
                started_unix: clock::unix(),
                over: false,
                failed: false,
                open: true,
            },
        };
        if state.run.as_ref() != Some(&run) {
            state.run = Some(run.clone());
            state.bundle.clone_from(&m.content_hash);
            state.save(&self.dirs.steps)?;
        }
        Ok(run)
    }

    /// What people and the cluster answered so far.
    fn answers(&self, hash: &str) -> Answers {
        let said = |name: &str| {
            std::fs::read_to_string(self.dirs.approvals().join(name))
                .is_ok_and(|t| t.trim().is_empty() || t.trim() == hash)
        };
        let mut a = Answers {
            update: said("update"),
            disruption: said("disruption"),
            drained: said("drained"),
            rolling: false,
        };
        if self.by_cluster() {
            match self.cluster.as_ref().map(|c| c.node()) {
                Some(Ok(node)) => {
                    let b = Answers::from_annotations(&node.annotations);
                    a.update |= b.update;
                    a.disruption |= b.disruption;
                    a.drained |= b.drained;
                    a.rolling = b.rolling;
                }
                Some(Err(e)) => tracing::warn!(%e, "the node's annotations"),
                None => {}
            }
        }
        a
    }

    /// Whether annotations of the Node decide anything.
    fn by_cluster(&self) -> bool {
        self.settings.approval == Approval::Deckhouse || self.settings.disruption == Disruption::Deckhouse
    }
}

/// Writes an answer for the content `hash` and for no other; `what` is `update`, `disruption` or `drained`.
///
/// # Errors
/// `StateWriteFailed`.
pub fn approve(dirs: &Dirs, what: &str, hash: &str) -> Result<()> {
    dirs.make_own()?;
    atomic::replace(&dirs.approvals().join(what), hash.as_bytes())
}

/// The run is no longer at work; whether it was.
fn close(state: &mut State) -> bool {
    state
        .run
        .as_mut()
        .is_some_and(|r| std::mem::replace(&mut r.open, false))
}

#[cfg(test)]
mod tests;
