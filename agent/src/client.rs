//! The client side of the socket, for the command line and for tests.

use crate::error::{AgentError, Result};
use camino::Utf8Path;
use hyper_util::rt::TokioIo;
use os_proto::codes::Code;
use os_proto::v1::agent_client::AgentClient;
use tonic::transport::{Channel, Endpoint, Uri};

/// A connected client.
pub type Client = AgentClient<Channel>;

/// Connects.
///
/// # Errors
/// `AgentUnavailable`, `NotPermitted`.
pub async fn connect(path: &Utf8Path) -> Result<Client> {
    let channel = channel(path, "os-agent.service").await.map_err(|mut e| {
        if e.code == Code::AgentUnavailable {
            e.message.push_str(" (offline: --disk IMAGE --running A|B)");
        }
        e
    })?;
    Ok(AgentClient::new(channel))
}

/// Connects to the socket of one of our units.
///
/// # Errors
/// `AgentUnavailable`, `NotPermitted`.
pub async fn channel(path: &Utf8Path, unit: &str) -> Result<Channel> {
    let socket = path.to_owned();
    // Once by hand, because the transport hides why it failed.
    tokio::net::UnixStream::connect(&socket)
        .await
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => AgentError::new(
                Code::NotPermitted,
                format!(
                    "{socket}: {e}: expected root or a member of group {}",
                    os_proto::SOCKET_GROUP
                ),
            ),
            _ => AgentError::new(
                Code::AgentUnavailable,
                format!("{socket}: {e}: is {unit} running?"),
            ),
        })?;
    let fail = |e: tonic::transport::Error| {
        AgentError::new(Code::AgentUnavailable, format!("os-agent does not answer: {e}"))
    };
    Endpoint::try_from("http://os-agent.invalid")
        .map_err(fail)?
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
        .map_err(fail)
}
