//! The gRPC server on a unix socket: peer credentials, messages in, messages out. No logic.

mod steps;

use crate::engine::{Begun, Engine};
use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Report};
use crate::sys::{accounts, lock::FileLock};
use crate::wire;
use camino::{Utf8Path, Utf8PathBuf};
use futures_util::Stream;
use os_proto::codes::Code;
use os_proto::v1::{self, agent_server, stage_event, steps_server};
use std::os::unix::fs::PermissionsExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

/// Messages per second of Watch, at most.
const WATCH_PERIOD: Duration = Duration::from_millis(500);
/// Calls of one connection at the same time.
const CALLS_PER_CONNECTION: usize = 16;

/// Who may call, beside uid 0 and our own user: members of this group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access {
    gid: Option<u32>,
}

impl Access {
    /// Access of a group; unknown groups give none.
    pub fn group(name: &str) -> Access {
        Access {
            gid: accounts::group(name),
        }
    }

    /// Whether a caller's group is ours, or ours lists them.
    fn admits(self, uid: u32, gid: u32) -> bool {
        self.gid
            .is_some_and(|own| own == gid || accounts::is_member(uid, own))
    }

    pub(crate) fn check(self, peer: Option<&UdsConnectInfo>) -> Result<String> {
        let cred = peer
            .and_then(|p| p.peer_cred)
            .ok_or_else(|| AgentError::new(Code::NotPermitted, "the caller's credentials are not known"))?;
        let own = rustix::process::geteuid().as_raw();
        let who = format!("{}:{}", cred.uid(), cred.pid().unwrap_or(0));
        if cred.uid() == 0 || cred.uid() == own || self.admits(cred.uid(), cred.gid()) {
            return Ok(who);
        }
        Err(AgentError::new(
            Code::NotPermitted,
            format!(
                "uid {} may not call the agent: expected root or a member of group {}",
                cred.uid(),
                os_proto::SOCKET_GROUP
            ),
        ))
    }
}

/// A socket that is ours alone.
pub struct Socket {
    listener: UnixListener,
    path: Utf8PathBuf,
    _lock: FileLock,
}

impl Socket {
    /// Takes the lock beside the socket, replaces a stale socket and listens. Directory 0750, socket 0660, group
    /// [`os_proto::SOCKET_GROUP`] where it exists and we may.
    ///
    /// # Errors
    /// `Busy` when another agent runs, `Internal` otherwise.
    pub fn bind(path: &Utf8Path, access: Access) -> Result<Socket> {
        let fail = |what: &str, e: &dyn std::fmt::Display| {
            AgentError::new(Code::Internal, format!("{path}: {what}: {e}"))
        };
        let dir = path.parent().ok_or_else(|| fail("directory", &"none"))?;
        if !dir.exists() {
            std::fs::create_dir_all(dir).map_err(|e| fail("directory", &e))?;
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o750))
                .map_err(|e| fail("directory", &e))?;
        }
        let lock = FileLock::try_exclusive(&path.with_extension("lock")).map_err(|e| match e.code {
            Code::Busy => AgentError::new(Code::Busy, format!("another os-agent serves {path} already")),
            _ => e,
        })?;
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail("stale socket", &e)),
        }
        let listener = UnixListener::bind(path).map_err(|e| fail("listen", &e))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
            .map_err(|e| fail("mode", &e))?;
        if let Some(gid) = access.gid {
            // Only root may; elsewhere the socket stays with our own group.
            let _ = std::os::unix::fs::chown(dir, None, Some(gid));
            let _ = std::os::unix::fs::chown(path, None, Some(gid));
        }
        Ok(Socket {
            listener,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Listener, path, and the lock that makes it ours alone.
    pub(crate) fn into_parts(self) -> (UnixListener, Utf8PathBuf, FileLock) {
        (self.listener, self.path, self._lock)
    }
}

/// Serves until `stop` is ready; running calls then have two seconds to end.
///
/// # Errors
/// `Internal` when the transport fails.
pub async fn serve(
    engine: Arc<Engine>,
    socket: Socket,
    access: Access,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Socket {
        listener,
        path,
        _lock,
    } = socket;
    let (closing, mut closed) = tokio::sync::watch::channel(false);
    let service = Service {
        engine,
        access,
        socket: path.clone(),
        closing: closed.clone(),
    };
    let router = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .add_service(agent_server::AgentServer::new(service.clone()))
        .add_service(steps_server::StepsServer::new(service));
    let serving = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
        stop.await;
        let _ = closing.send(true);
    });
    let limit = async {
        let _ = closed.wait_for(|c| *c).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    let result = tokio::select! {
        r = serving => r.map_err(|e| AgentError::new(Code::Internal, format!("{path}: {e}"))),
        () = limit => Ok(()),
    };
    let _ = std::fs::remove_file(&path);
    result
}

#[derive(Clone)]
struct Service {
    engine: Arc<Engine>,
    access: Access,
    /// Where we listen; the step runner's socket lies beside it.
    socket: Utf8PathBuf,
    closing: tokio::sync::watch::Receiver<bool>,
}

pub(crate) type Answer<T> = std::result::Result<Response<T>, Status>;
pub(crate) type Streaming<T> = Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>;

impl Service {
    fn who<T>(&self, request: &Request<T>) -> std::result::Result<String, Status> {
        self.access
            .check(request.extensions().get::<UdsConnectInfo>())
            .map_err(Status::from)
    }

    /// Calls the engine outside the async runtime.
    async fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<Engine>) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let engine = self.engine.clone();
        match tokio::task::spawn_blocking(move || f(&engine)).await {
            Ok(r) => r.map_err(Status::from),
            Err(e) => Err(AgentError::new(Code::Internal, format!("the call broke off: {e}")).into()),
        }
    }
}

/// Progress that nobody sees.
struct Quiet;

impl Report for Quiet {
    fn step(&self, _: &'static str, _: Option<u64>) {}
    fn done(&self, _: u64) {}
    fn waiting(&self, _: Option<String>) {}
}

#[tonic::async_trait]
impl agent_server::Agent for Service {
    async fn status(&self, r: Request<v1::StatusRequest>) -> Answer<v1::StatusReply> {
        self.who(&r)?;
        self.call(|e| Ok(e.status())).await.map(Response::new)
    }

    type WatchStream = Streaming<v1::StatusReply>;

    async fn watch(&self, r: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        self.who(&r)?;
        let me = self.clone();
        let (tx, rx) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut changes = me.engine.changes();
            let mut closing = me.closing.clone();
            loop {
                changes.mark_unchanged();
                let status = me.call(|e| Ok(e.status())).await;
                if tx.send(status).await.is_err() {
                    return;
                }
                tokio::time::sleep(WATCH_PERIOD).await;
                tokio::select! {
                    c = changes.changed() => if c.is_err() { return },
                    () = tx.closed() => return,
                    _ = closing.wait_for(|c| *c) => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }

    type StageStream = Streaming<v1::StageEvent>;

    async fn stage(&self, r: Request<v1::StageRequest>) -> Answer<Self::StageStream> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        let digest = wire::asked_digest(&request)
            .map_err(Status::from)?
            .map(|d| d.to_string())
            .unwrap_or_default();
        let begun = self.call(move |e| e.stage(&request, &who)).await?;
        let me = self.clone();
        let (tx, rx) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            if let Begun::Running(h) = &begun {
                let mut view = h.follow();
                loop {
                    let (progress, over) = {
                        let v = view.borrow_and_update();
                        (v.progress.clone(), v.result.is_some())
                    };
                    if over {
                        break;
                    }
                    let event = v1::StageEvent {
                        event: Some(stage_event::Event::Progress(progress)),
                    };
                    // A caller that went away does not stop the work.
                    if tx.send(Ok(event)).await.is_err() {
                        return;
                    }
                    if view.changed().await.is_err() {
                        break;
                    }
                }
            }
            let result = match begun.finished().await {
                Ok((op_id, r)) => me
                    .call(move |e| {
                        let version = r.slot.map(|s| e.version_of(s)).unwrap_or_default();
                        Ok(wire::stage_result(op_id, &digest, &r, version))
                    })
                    .await
                    .map(|r| v1::StageEvent {
                        event: Some(stage_event::Event::Result(r)),
                    }),
                Err(e) => Err(e.into()),
            };
            let _ = tx.send(result).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }

    async fn activate(&self, r: Request<v1::ActivateRequest>) -> Answer<v1::ActivateReply> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        let reboot = request.reboot;
        let begun = self.call(move |e| e.activate(&request, &who)).await?;
        let (op_id, r) = begun.finished().await.map_err(Status::from)?;
        Ok(Response::new(v1::ActivateReply {
            op_id,
            slot: wire::slot_out(r.slot),
            reboot_requested: reboot,
        }))
    }

    async fn commit(&self, r: Request<v1::CommitRequest>) -> Answer<v1::CommitReply> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        let r = self.call(move |e| e.commit(&request, &who)).await?;
        Ok(Response::new(v1::CommitReply {
            committed: true,
            slot: wire::slot_out(r.slot),
            already: r.already,
        }))
    }

    async fn rollback(&self, r: Request<v1::RollbackRequest>) -> Answer<v1::RollbackReply> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        let begun = self.call(move |e| e.rollback(&request, &who)).await?;
        let (op_id, r) = begun.finished().await.map_err(Status::from)?;
        let rebooting = self.call(move |e| Ok(e.asked_for_reboot(&op_id))).await?;
        Ok(Response::new(v1::RollbackReply {
            slot: wire::slot_out(r.slot),
            reboot_requested: rebooting,
        }))
    }

    async fn cancel(&self, r: Request<v1::CancelRequest>) -> Answer<v1::CancelReply> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        self.call(move |e| e.cancel(&request, &who)).await?;
        Ok(Response::new(v1::CancelReply { cancelled: true }))
    }

    async fn configure(&self, r: Request<v1::ConfigureRequest>) -> Answer<v1::ConfigureReply> {
        let who = self.who(&r)?;
        let request = r.into_inner();
        let begun = self.call(move |e| e.configure(&request, &who)).await?;
        let (_, r) = begun.finished().await.map_err(Status::from)?;
        Ok(Response::new(crate::settings::request::reply(&r.settings)))
    }

    async fn forget(&self, r: Request<v1::ForgetRequest>) -> Answer<v1::ForgetReply> {
        self.who(&r)?;
        let digest = r.into_inner().digest;
        self.call(move |e| e.forget(&digest)).await?;
        Ok(Response::new(v1::ForgetReply { forgotten: true }))
    }

    async fn verify_slot(&self, r: Request<v1::VerifySlotRequest>) -> Answer<v1::VerifySlotReply> {
        self.who(&r)?;
        let slot = wire::slot(r.into_inner().slot);
        // Dropped together with the call: a caller that went away stops the reading.
        let cancel = CancelOnDrop(Cancel::default());
        let inner = cancel.0.clone();
        self.call(move |e| e.verify_slot(slot, &inner, &Quiet))
            .await
            .map(Response::new)
    }

    async fn history(&self, r: Request<v1::HistoryRequest>) -> Answer<v1::HistoryReply> {
        self.who(&r)?;
        let limit = r.into_inner().limit;
        self.call(move |e| Ok(e.history(limit))).await.map(Response::new)
    }
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
