//! Where a command goes: to the agent's socket, or to an engine of our own on an offline disk.

use super::Where;
use super::progress::Progress;
use os_agent::client::{self, Client};
use os_agent::engine::{Begun, Engine};
use os_agent::error::{AgentError, Result};
use os_agent::node;
use os_agent::ports::{Cancel, Report};
use os_agent::sys::lock::FileLock;
use os_agent::wire;
use os_proto::codes::Code;
use os_proto::layout::Slot;
use os_proto::v1::{self, stage_event};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who asks, in the log of an offline disk.
const OFFLINE: &str = "offline";

/// The agent or our own engine.
pub(crate) enum Target {
    Remote(Box<Client>),
    Local(Arc<Engine>, #[allow(dead_code)] Option<FileLock>),
}

/// How a Stage ended.
pub(crate) enum Staged {
    Begun(String),
    Done(v1::StageResult),
}

impl Target {
    /// Connects, or opens the disk; `looks` = nothing may be changed.
    pub(crate) async fn open(place: &Where, handle: tokio::runtime::Handle, looks: bool) -> Result<Target> {
        let Some(disk) = place.offline() else {
            return Ok(Target::Remote(Box::new(client::connect(&place.socket).await?)));
        };
        let extra = place.config.clone();
        blocking(move || {
            let config = node::offline_config(&disk, extra.as_deref())?;
            let (ports, options) = node::offline(handle, config, &disk, looks)?;
            let lock = if looks {
                None
            } else {
                if let Some(why) = ports.store.missing() {
                    return Err(AgentError::new(
                        Code::StateWriteFailed,
                        format!("no place for the state: {why}; name another one with --state"),
                    ));
                }
                let path = disk.state_dir().join("lock");
                Some(FileLock::try_exclusive(&path)?)
            };
            Ok(Target::Local(Engine::start(ports, options), lock))
        })
        .await
    }

    /// Ends an engine of our own.
    pub(crate) fn close(&self) {
        if let Target::Local(e, _) = self {
            e.shut_down();
        }
    }

    pub(crate) async fn status(&mut self) -> Result<v1::StatusReply> {
        match self {
            Target::Remote(c) => Ok(c.status(v1::StatusRequest {}).await?.into_inner()),
            Target::Local(e, _) => Ok(e.status()),
        }
    }

    pub(crate) async fn watch(&mut self, mut show: impl FnMut(v1::StatusReply)) -> Result<()> {
        match self {
            Target::Remote(c) => {
                let mut stream = c.watch(v1::WatchRequest {}).await?.into_inner();
                while let Some(s) = stream.message().await? {
                    show(s);
                }
                Ok(())
            }
            Target::Local(e, _) => {
                show(e.status());
                Ok(())
            }
        }
    }

    pub(crate) async fn stage(
        &mut self,
        r: v1::StageRequest,
        no_wait: bool,
        progress: &Progress,
    ) -> Result<Staged> {
        match self {
            Target::Remote(c) => stage_remote(c, r, no_wait, progress).await,
            Target::Local(e, _) => {
                let digest = wire::asked_digest(&r)?.map(|d| d.to_string()).unwrap_or_default();
                let engine = e.clone();
                let stop = Stop::caught();
                let begun = blocking(move || engine.stage(&r, OFFLINE)).await?;
                let (op_id, r) = follow(e, begun, stop, progress).await?;
                Ok(Staged::Done(wire::stage_result(
                    op_id,
                    &digest,
                    &r,
                    r.slot.map(|s| e.version_of(s)).unwrap_or_default(),
                )))
            }
        }
    }

    pub(crate) async fn activate(
        &mut self,
        r: v1::ActivateRequest,
        progress: &Progress,
    ) -> Result<v1::ActivateReply> {
        match self {
            Target::Remote(c) => Ok(c.activate(r).await?.into_inner()),
            Target::Local(e, _) => {
                let engine = e.clone();
                let stop = Stop::caught();
                let begun = blocking(move || engine.activate(&r, OFFLINE)).await?;
                let result = follow(e, begun, stop, progress).await;
                progress.end();
                let (op_id, r) = result?;
                Ok(v1::ActivateReply {
                    op_id,
                    slot: wire::slot_out(r.slot),
                    reboot_requested: false,
                })
            }
        }
    }

    pub(crate) async fn commit(&mut self, r: v1::CommitRequest, force: bool) -> Result<v1::CommitReply> {
        match self {
            Target::Remote(c) => Ok(c.commit(r).await?.into_inner()),
            Target::Local(e, _) => {
                let engine = e.clone();
                let r = blocking(move || engine.commit_or_force(&r, OFFLINE, force)).await?;
                Ok(v1::CommitReply {
                    committed: true,
                    slot: wire::slot_out(r.slot),
                    already: r.already,
                })
            }
        }
    }

    pub(crate) async fn rollback(
        &mut self,
        r: v1::RollbackRequest,
        progress: &Progress,
    ) -> Result<v1::RollbackReply> {
        match self {
            Target::Remote(c) => Ok(c.rollback(r).await?.into_inner()),
            Target::Local(e, _) => {
                let engine = e.clone();
                let stop = Stop::caught();
                let begun = blocking(move || engine.rollback(&r, OFFLINE)).await?;
                let result = follow(e, begun, stop, progress).await;
                progress.end();
                let (_, r) = result?;
                Ok(v1::RollbackReply {
                    slot: wire::slot_out(r.slot),
                    reboot_requested: false,
                })
            }
        }
    }

    pub(crate) async fn cancel(&mut self, r: v1::CancelRequest) -> Result<()> {
        match self {
            Target::Remote(c) => c.cancel(r).await.map(drop).map_err(Into::into),
            Target::Local(e, _) => {
                let engine = e.clone();
                blocking(move || engine.cancel(&r, OFFLINE)).await
            }
        }
    }

    pub(crate) async fn forget(&mut self, digest: &str) -> Result<()> {
        let digest = digest.to_owned();
        match self {
            Target::Remote(c) => c
                .forget(v1::ForgetRequest { digest })
                .await
                .map(drop)
                .map_err(Into::into),
            Target::Local(e, _) => {
                let engine = e.clone();
                blocking(move || engine.forget(&digest)).await
            }
        }
    }

    pub(crate) async fn verify_slot(
        &mut self,
        slot: Option<Slot>,
        report: Arc<dyn Report>,
    ) -> Result<v1::VerifySlotReply> {
        match self {
            Target::Remote(c) => {
                let slot = wire::slot_out(slot);
                Ok(c.verify_slot(v1::VerifySlotRequest { slot }).await?.into_inner())
            }
            Target::Local(e, _) => {
                let engine = e.clone();
                blocking(move || engine.verify_slot(slot, &Cancel::default(), report.as_ref())).await
            }
        }
    }

    pub(crate) async fn configure(&mut self, r: v1::ConfigureRequest) -> Result<v1::ConfigureReply> {
        match self {
            Target::Remote(c) => Ok(c.configure(r).await?.into_inner()),
            Target::Local(e, _) => {
                let engine = e.clone();
                let begun = blocking(move || engine.configure(&r, OFFLINE)).await?;
                let (_, r) = begun.finished().await?;
                Ok(os_agent::settings::request::reply(&r.settings))
            }
        }
    }

    pub(crate) async fn history(&mut self, limit: u32) -> Result<v1::HistoryReply> {
        match self {
            Target::Remote(c) => Ok(c.history(v1::HistoryRequest { limit }).await?.into_inner()),
            Target::Local(e, _) => Ok(e.history(limit)),
        }
    }
}

async fn stage_remote(
    c: &mut Client,
    r: v1::StageRequest,
    no_wait: bool,
    progress: &Progress,
) -> Result<Staged> {
    let mut stream = c.stage(r).await?.into_inner();
    loop {
        let event = tokio::select! {
            e = stream.message() => e?,
            _ = tokio::signal::ctrl_c() => {
                return Err(AgentError::new(
                    Code::AgentUnavailable,
                    "no longer waiting; the agent continues (os-agent status, os-agent cancel)",
                ));
            }
        };
        match event.and_then(|e| e.event) {
            Some(stage_event::Event::Progress(p)) => {
                if no_wait {
                    return Ok(Staged::Begun(p.op_id));
                }
                progress.show(&p);
            }
            Some(stage_event::Event::Result(r)) => return Ok(Staged::Done(r)),
            None => {
                return Err(AgentError::new(
                    Code::AgentUnavailable,
                    "the agent went away; the operation continues or resumes there: os-agent status",
                ));
            }
        }
    }
}

/// SIGINT, SIGTERM and SIGHUP, caught from the moment this exists: before an operation is begun, so that none ends it
/// half-noted. A SIGHUP that was ignored when this program started (nohup) stays ignored.
pub(super) struct Stop(Vec<Signal>);

impl Stop {
    pub(super) fn caught() -> Stop {
        let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
        if !hangup_is_ignored() {
            kinds.push(SignalKind::hangup());
        }
        Stop(kinds.into_iter().filter_map(|k| signal(k).ok()).collect())
    }

    /// Until one of them comes.
    pub(super) async fn asked(&mut self) {
        std::future::poll_fn(|context| {
            let came = self.0.iter_mut().any(|s| s.poll_recv(context).is_ready());
            if came {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }
}

fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    os_proto::terminal::ignores_hangup(&status)
}

/// Shows progress until an operation of our own engine ends; SIGINT, SIGTERM and SIGHUP cancel it.
async fn follow(
    engine: &Arc<Engine>,
    begun: Begun,
    mut stop: Stop,
    progress: &Progress,
) -> Result<(String, os_agent::state::OpResult)> {
    if let Begun::Running(h) = &begun {
        let mut view = h.follow();
        loop {
            let v = view.borrow_and_update().clone();
            progress.show(&v.progress);
            if v.result.is_some() {
                break;
            }
            tokio::select! {
                c = view.changed() => if c.is_err() { break },
                () = stop.asked() => {
                    let (engine, target) = (engine.clone(), h.op_id.clone());
                    let r = v1::CancelRequest { target_op_id: target, ..Default::default() };
                    let _ = blocking(move || engine.cancel(&r, OFFLINE)).await;
                }
            }
        }
    }
    begun.finished().await
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| {
        Err(AgentError::new(
            Code::Internal,
            format!("the call broke off: {e}"),
        ))
    })
}
