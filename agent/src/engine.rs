//! The only interpreter: asks the machine, performs its effects through the ports, in order.
//!
//! Calls block for as long as an environment write or an fsync takes; long work runs on one worker thread, health probes
//! on another. Nobody but this file changes what boots.

use crate::config::Config;
use crate::error::{AgentError, Result};
use crate::evidence::Evidence;
use crate::gates;
use crate::machine::{self, Effect, Event, Node, Outcome};
use crate::ports::{Bootloader, Cancel, Clock, Host, Settings, Slots, Source, StateStore};
use crate::slots::Layout;
use crate::state::{OpResult, Phase};
use crate::write::Installed;
use os_proto::codes::Code;
use os_proto::layout::{Arch, Slot};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::watch;

mod calls;
mod handle;
mod load;
mod log;
mod settings;
mod status;
mod trial;
mod work;

pub use calls::Begun;
pub use handle::OpHandle;

/// Everything outside.
#[derive(Clone)]
pub struct Ports {
    /// Payloads.
    pub source: Arc<dyn Source>,
    /// The disk with the slots.
    pub slots: Arc<dyn Slots>,
    /// What decides which slot boots.
    pub boot: Arc<dyn Bootloader>,
    /// The running system.
    pub host: Arc<dyn Host>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Durable state.
    pub store: Arc<dyn StateStore>,
    /// The node's settings.
    pub settings: Arc<dyn Settings>,
}

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration.
    pub config: Config,
    /// Nothing of the slots runs here: no probes, no reboots, commits need no verdict.
    pub offline: bool,
    /// Only look: the decision at start is made, nothing is performed.
    pub observe: bool,
    /// Architecture that images must have; `None` = any.
    pub arch: Option<Arch>,
    /// Bounds of the write path.
    pub limits: crate::write::Limits,
}

/// A job for the worker.
enum Job {
    Work(Arc<OpHandle>, work::Task),
    Reboot,
    Stop,
}

/// What the lock protects.
struct Inner {
    node: Node,
    installed: Option<Installed>,
    current: Option<Arc<OpHandle>>,
    task: Option<work::Task>,
    health: Option<HealthView>,
    reboot_asked: Option<Duration>,
    reboot_error: Option<String>,
    store_error: Option<String>,
    trial_running: bool,
}

/// The last round of probes, for status.
#[derive(Debug, Clone, Default)]
struct HealthView {
    seen: gates::Seen,
    good_since_unix: i64,
    healthy: bool,
}

/// The running agent.
pub struct Engine {
    ports: Ports,
    options: Options,
    layout: Result<Layout>,
    boot_id: String,
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    jobs: Mutex<mpsc::Sender<Job>>,
    stop: Cancel,
    beat: AtomicU64,
    busy: AtomicU64,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Engine {
    /// Reads state, slots and environment, finishes what the last boot left open, and starts the worker.
    pub fn start(ports: Ports, options: Options) -> Arc<Engine> {
        let layout = ports.slots.layout();
        let (node, store_error) = load::load(&ports, &options, &layout);
        let (jobs, queue) = mpsc::channel();
        let engine = Arc::new(Engine {
            boot_id: node.boot.boot_id.clone(),
            ports,
            options,
            layout,
            inner: Mutex::new(Inner {
                node,
                installed: None,
                current: None,
                task: None,
                health: None,
                reboot_asked: None,
                reboot_error: None,
                store_error,
                trial_running: false,
            }),
            changed: watch::Sender::new(0),
            jobs: Mutex::new(jobs),
            stop: Cancel::default(),
            beat: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            threads: Mutex::new(Vec::new()),
        });
        engine.pulse();
        if !engine.options.observe {
            let worker = engine.clone();
            engine.keep(std::thread::spawn(move || worker.work(&queue)));
        }
        engine.begin();
        engine
    }

    /// The decision at start.
    fn begin(self: &Arc<Self>) {
        let mut inner = self.lock();
        let evidence = if self.options.offline {
            Evidence::default()
        } else {
            Evidence {
                panic: self.ports.host.panic_record(),
                signs: self.ports.store.signs(),
            }
        };
        let event = Event::Started {
            copies: self.ports.boot.read(),
            evidence,
        };
        let observe = self.options.observe;
        let step = match machine::step(&inner.node, self.now(), event) {
            Ok(s) => s,
            Err(e) => {
                inner.node.problems.push((e.code, e.message));
                return;
            }
        };
        if !observe {
            log::changes(&inner.node, &step.node);
        }
        inner.node = step.node;
        if observe {
            return;
        }
        for effect in step.effects {
            if let Err(e) = self.effect(&mut inner, &effect) {
                tracing::error!(%e, ?effect, "could not finish what the last boot left open");
                inner.node.problems.push((e.code, e.message));
                // The evidence stays in the environment until the state could be written.
                if matches!(effect, Effect::SaveState { required: true }) {
                    break;
                }
            }
        }
        tracing::info!(
            phase = inner.node.phase.as_str(),
            boot_id = self.boot_id,
            "started"
        );
        drop(inner);
        self.touch();
    }

    /// Stops worker and probes; running work is cancelled and the call waits for it.
    pub fn shut_down(&self) {
        self.stop.cancel();
        if let Some(op) = &self.lock().current {
            op.cancel.cancel();
        }
        if let Ok(jobs) = self.jobs.lock() {
            let _ = jobs.send(Job::Stop);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for t in threads {
            let _ = t.join();
        }
    }

    fn keep(&self, thread: std::thread::JoinHandle<()>) {
        self.threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(thread);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        self.ports.clock.unix()
    }

    /// Tells watchers that something changed.
    fn touch(&self) {
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Notes that the worker is alive.
    fn pulse(&self) {
        self.beat
            .store(self.ports.clock.monotonic().as_secs(), Ordering::SeqCst);
    }

    /// Seconds since the worker last showed a sign of life, and whether it is busy.
    pub fn worker_silence(&self) -> (u64, bool) {
        let now = self.ports.clock.monotonic().as_secs();
        (
            now.saturating_sub(self.beat.load(Ordering::SeqCst)),
            self.busy.load(Ordering::SeqCst) != 0,
        )
    }

    /// Notified on every change of what [`Engine::status`] says.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Decides on an event and performs what follows.
    fn apply(self: &Arc<Self>, inner: &mut Inner, event: Event) -> Result<Outcome> {
        let step = machine::step(&inner.node, self.now(), event)?;
        let before = std::mem::replace(&mut inner.node, step.node);
        let reboots = step.effects.contains(&Effect::Reboot);
        for effect in &step.effects {
            let Err(e) = self.effect(inner, effect) else {
                continue;
            };
            tracing::error!(%e, ?effect, "an effect failed");
            match effect {
                // Nothing was done yet: as if it had not been asked.
                Effect::SaveState { .. }
                | Effect::SaveRecord { .. }
                | Effect::PrepareTrial(_)
                | Effect::StartWork => inner.node = before,
                Effect::Arm(..) => self.arm_failed(inner, &e),
                Effect::ReadEnvBack(env) if env.try_slot.is_some() => self.arm_failed(inner, &e),
                // Even when it cannot be disarmed, a slot with a bad verdict is left.
                Effect::Disarm(_) if reboots => {
                    inner.node.problems.push((e.code, e.message));
                    continue;
                }
                _ => {
                    inner.node = before;
                    inner.node.env = self.read_env();
                }
            }
            self.touch();
            return Err(e);
        }
        log::changes(&before, &inner.node);
        self.touch();
        Ok(step.outcome)
    }

    fn read_env(&self) -> Option<os_proto::env_block::Env> {
        self.ports.boot.read().ok().and_then(|c| c.effective())
    }

    fn arm_failed(self: &Arc<Self>, inner: &mut Inner, e: &AgentError) {
        inner.installed = None;
        let event = Event::ArmFailed(self.read_env(), e.clone());
        if let Err(second) = self.apply(inner, event) {
            inner.node.problems.push((second.code, second.message));
        }
    }

    /// Performs one effect.
    fn effect(self: &Arc<Self>, inner: &mut Inner, effect: &Effect) -> Result<()> {
        let boot = self.ports.boot.as_ref();
        match effect {
            Effect::SaveState { required } => {
                let saved = if inner.node.read_only {
                    Err(AgentError::new(Code::StateTooNew, "the state is only read"))
                } else {
                    self.ports.store.save(&inner.node.state.to_json())
                };
                self.noted(inner, saved, *required)
            }
            Effect::SaveRecord {
                slot,
                record,
                required,
            } => {
                let saved = if inner.node.read_only {
                    Err(AgentError::new(Code::StateTooNew, "the state is only read"))
                } else {
                    self.ports.store.save_record(*slot, &record.to_json())
                };
                self.noted(inner, saved, *required)
            }
            Effect::PrepareTrial(keep_etc) => self.ports.store.prepare_trial(*keep_etc),
            Effect::RepairEnv(env) | Effect::Disarm(env) | Effect::Commit(env) => {
                tracing::info!(cur = %env.cur, try_slot = env.try_slot.map_or("", Slot::letter), gen_ = env.gen_, "environment");
                boot.write(env)
            }
            Effect::Arm(slot, env) => {
                let installed = inner
                    .installed
                    .take()
                    .filter(|i| i.slot() == *slot)
                    .ok_or_else(|| {
                        AgentError::new(
                            Code::Internal,
                            format!("slot {slot} was not read back by this process"),
                        )
                    })?;
                tracing::info!(%slot, gen_ = env.gen_, "arming");
                crate::activate::arm(installed, boot, env)
            }
            Effect::ReadEnvBack(env) => {
                let copies = boot.read()?;
                if copies.env1.as_ref() == Ok(env) && copies.env2.as_ref() == Ok(env) {
                    return Ok(());
                }
                Err(AgentError::new(
                    Code::EnvWriteFailed,
                    format!(
                        "os-state: wrote generation {} but read back env1 {:?}, env2 {:?}",
                        env.gen_, copies.env1, copies.env2
                    ),
                ))
            }
            Effect::StartWork => {
                let (Some(task), Some(op)) = (inner.task.take(), inner.current.clone()) else {
                    return Err(AgentError::new(Code::Internal, "no work to start"));
                };
                // The worker opens the slot exclusively, so an earlier proof must let go of it.
                inner.installed = None;
                self.send(Job::Work(op, task))
            }
            Effect::CancelWork => {
                if let Some(op) = &inner.current {
                    op.cancel.cancel();
                }
                Ok(())
            }
            Effect::StartTrial => {
                if !std::mem::replace(&mut inner.trial_running, true) {
                    let engine = self.clone();
                    self.keep(std::thread::spawn(move || engine.watch_trial()));
                }
                Ok(())
            }
            Effect::StopTrialTimer => {
                if !self.options.offline {
                    self.ports.host.stop_trial_timer();
                }
                Ok(())
            }
            Effect::Reply => Ok(()),
            Effect::Reboot => {
                inner.reboot_asked = Some(self.ports.clock.monotonic());
                self.send(Job::Reboot)
            }
        }
    }

    fn noted(&self, inner: &mut Inner, saved: Result<()>, required: bool) -> Result<()> {
        match saved {
            Ok(()) => {
                inner.store_error = None;
                Ok(())
            }
            Err(e) => {
                tracing::warn!(%e, "state not saved");
                if e.code == Code::StateWriteFailed {
                    inner.store_error = Some(e.message.clone());
                }
                if required { Err(e) } else { Ok(()) }
            }
        }
    }

    fn send(&self, job: Job) -> Result<()> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(job)
            .map_err(|_| AgentError::new(Code::Internal, "the worker has stopped; restart the agent"))
    }

    /// Adds something to the problems that `status` lists.
    pub fn report(&self, e: AgentError) {
        self.lock().node.problems.push((e.code, e.message));
        self.touch();
    }

    /// The slot that runs and the disk, as seen at start.
    pub fn layout(&self) -> &Result<Layout> {
        &self.layout
    }

    /// The phase, for a line of status.
    pub fn phase(&self) -> Phase {
        self.lock().node.phase
    }
}

/// What a call that is answered at once returns.
fn answer(outcome: Outcome) -> Result<OpResult> {
    match outcome {
        Outcome::Done(r) => Ok(r),
        Outcome::Replay(o) => crate::wire::stored(&o),
        Outcome::WouldRun => Ok(OpResult::default()),
        Outcome::Started | Outcome::Joined => {
            Err(AgentError::new(Code::Busy, "the operation is still running"))
        }
    }
}

#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;
