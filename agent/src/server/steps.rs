//! Service Steps on the agent's socket: handed on to the runner's own unit, which alone runs bash.

use super::{Answer, Service, Streaming};
use crate::client;
use crate::steps::SOCKET;
use os_proto::v1::{self, steps_client::StepsClient, steps_server};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

impl Service {
    async fn runner<T>(&self, r: &Request<T>) -> Result<StepsClient<Channel>, Status> {
        self.who(r)?;
        let path = self.socket.with_file_name(SOCKET);
        let channel = client::channel(&path, "os-agent-steps.service")
            .await
            .map_err(Status::from)?;
        Ok(StepsClient::new(channel))
    }
}

#[tonic::async_trait]
impl steps_server::Steps for Service {
    type RunStream = Streaming<v1::StepsEvent>;

    async fn run(&self, r: Request<v1::StepsRunRequest>) -> Answer<Self::RunStream> {
        let stream = self.runner(&r).await?.run(r.into_inner()).await?.into_inner();
        Ok(Response::new(Box::pin(stream)))
    }

    async fn plan(&self, r: Request<v1::StepsPlanRequest>) -> Answer<v1::StepsPlanReply> {
        self.runner(&r).await?.plan(r.into_inner()).await
    }

    async fn status(&self, r: Request<v1::StepsStatusRequest>) -> Answer<v1::StepsStatusReply> {
        self.runner(&r).await?.status(r.into_inner()).await
    }

    async fn render(&self, r: Request<v1::StepsRenderRequest>) -> Answer<v1::StepsRenderReply> {
        self.runner(&r).await?.render(r.into_inner()).await
    }

    async fn explain(&self, r: Request<v1::StepsExplainRequest>) -> Answer<v1::StepsExplainReply> {
        self.runner(&r).await?.explain(r.into_inner()).await
    }
}
