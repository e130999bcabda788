//! gRPC service Steps of the runner's unit: messages in, messages out.

use super::show;
use crate::error::AgentError;
use crate::server::{Access, Answer, Streaming};
use os_proto::codes::Code;
use os_proto::v1::{self, steps_server};
use os_steps::plan::Decision;
use os_steps::run::{Event, Options};
use os_steps::source::Source;
use os_steps::state::State;
use os_steps::sys::child;
use os_steps::tick::{Service, verdict};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

/// Limit of a dry run.
const DRY_LIMIT: Duration = Duration::from_secs(3600);

/// The service.
#[derive(Clone)]
pub struct StepsService {
    service: Arc<Service>,
    events: broadcast::Sender<Event>,
    access: Access,
    wake: SyncSender<()>,
}

impl StepsService {
    /// Around a runner that ticks elsewhere.
    pub fn new(
        service: Arc<Service>,
        events: broadcast::Sender<Event>,
        access: Access,
        wake: SyncSender<()>,
    ) -> StepsService {
        StepsService {
            service,
            events,
            access,
            wake,
        }
    }

    fn check<T>(&self, r: &Request<T>) -> Result<(), Status> {
        self.access
            .check(r.extensions().get::<UdsConnectInfo>())
            .map(drop)
            .map_err(Status::from)
    }

    async fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Service) -> crate::error::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let service = self.service.clone();
        match tokio::task::spawn_blocking(move || f(&service)).await {
            Ok(r) => r.map_err(Status::from),
            Err(e) => Err(AgentError::new(Code::Internal, format!("the call broke off: {e}")).into()),
        }
    }
}

fn event(e: &Event) -> v1::StepsEvent {
    v1::StepsEvent {
        run_id: e.run_id.clone(),
        step: e.step.clone(),
        attempt: e.attempt,
        state: e.state.to_owned(),
        line: e.line.clone(),
        outcome: String::new(),
        message: e.message.clone(),
    }
}

/// A dry run happens in a process of its own, in its own namespaces.
fn dry(bundle: &str) -> crate::error::Result<v1::StepsEvent> {
    let exe =
        std::env::current_exe().map_err(|e| AgentError::new(Code::Internal, format!("own program: {e}")))?;
    let exe = exe.to_string_lossy().into_owned();
    let args = ["steps", "run", "--check", bundle];
    let (ok, text) = child::helper(&exe, &args, DRY_LIMIT).map_err(|e| AgentError::new(Code::Internal, e))?;
    Ok(v1::StepsEvent {
        state: "outcome".to_owned(),
        outcome: if ok { "checked" } else { "failed" }.to_owned(),
        message: text,
        ..Default::default()
    })
}

#[tonic::async_trait]
impl steps_server::Steps for StepsService {
    type RunStream = Streaming<v1::StepsEvent>;

    async fn run(&self, r: Request<v1::StepsRunRequest>) -> Answer<Self::RunStream> {
        self.check(&r)?;
        let q = r.into_inner();
        let me = self.clone();
        let (tx, rx) = mpsc::channel(64);
        let mut events = self.events.subscribe();
        tokio::spawn(async move {
            if q.dry_run {
                let last = me.call(move |_| dry(&q.bundle)).await;
                let _ = tx.send(last).await;
                return;
            }
            let work = me.call(move |s| {
                let source = Source::parse(&q.bundle, &s.runner.settings)?;
                let options = Options {
                    approve: q.approve,
                    approve_disruption: q.approve_disruption,
                    ..Options::default()
                };
                Ok(s.look(&source, &options)?)
            });
            let mut work = std::pin::pin!(work);
            let result = loop {
                tokio::select! {
                    biased;
                    e = events.recv() => match e {
                        // A caller that went away does not stop the run.
                        Ok(e) => drop(tx.send(Ok(event(&e))).await),
                        Err(broadcast::error::RecvError::Lagged(n)) => tracing::debug!("{n} events were too many"),
                        Err(broadcast::error::RecvError::Closed) => break work.await,
                    },
                    r = &mut work => break r,
                }
            };
            let last = result.and_then(|e| match verdict(&e.outcome) {
                Some(e) => Err(AgentError::from(e).into()),
                None => Ok(v1::StepsEvent {
                    run_id: e.run_id,
                    state: "outcome".to_owned(),
                    outcome: show::word(&e.outcome).to_owned(),
                    message: show::line(&e.outcome),
                    ..Default::default()
                }),
            });
            let _ = tx.send(last).await;
            let _ = me.wake.try_send(());
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }

    async fn plan(&self, r: Request<v1::StepsPlanRequest>) -> Answer<v1::StepsPlanReply> {
        self.check(&r)?;
        let bundle = r.into_inner().bundle;
        self.call(move |s| {
            let source = Source::parse(&bundle, &s.runner.settings)?;
            let Some(b) = s.loader.load(&source)? else {
                return Ok(v1::StepsPlanReply::default());
            };
            let decision = s.runner.plan(&b, &Options::default())?;
            Ok(show::plan_reply(&b, &decision, os_steps::needs::of_machine(&b)))
        })
        .await
        .map(Response::new)
    }

    async fn status(&self, r: Request<v1::StepsStatusRequest>) -> Answer<v1::StepsStatusReply> {
        self.check(&r)?;
        self.call(|s| {
            let state = State::load(&s.runner.dirs.steps)?;
            Ok(show::status_reply(&s.runner.dirs, &state))
        })
        .await
        .map(Response::new)
    }

    async fn render(&self, r: Request<v1::StepsRenderRequest>) -> Answer<v1::StepsRenderReply> {
        self.check(&r)?;
        let q = r.into_inner();
        self.call(move |s| super::render(&s.runner.dirs, &q))
            .await
            .map(Response::new)
    }

    async fn explain(&self, r: Request<v1::StepsExplainRequest>) -> Answer<v1::StepsExplainReply> {
        self.check(&r)?;
        let name = r.into_inner().step;
        self.call(move |s| {
            let Some(b) = s.loader.load(&Source::Applied)? else {
                return Ok(v1::StepsExplainReply {
                    text: "no bundle was applied yet".to_owned(),
                });
            };
            let decision = s.runner.plan(&b, &Options::default())?;
            let text = match decision {
                Decision::Run(p) => p.steps.iter().find(|x| x.name == name).map_or_else(
                    || format!("{name}: not in the bundle"),
                    |x| format!("{name}: {}", x.reason),
                ),
                Decision::InSync(why) | Decision::Reboot(why) | Decision::Later(_, why) => {
                    format!("{name}: does not run: {why}")
                }
            };
            Ok(v1::StepsExplainReply { text })
        })
        .await
        .map(Response::new)
    }
}
