//! The real server on a unix socket, with the in-memory node behind it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use camino::Utf8PathBuf;
use os_agent::client::{self, Client};
use os_agent::error::AgentError;
use os_agent::server::{Access, Socket, serve};
use os_agent::testing::Node;
use os_proto::codes::Code;
use os_proto::v1::steps_client::StepsClient;
use os_proto::v1::{self, stage_event};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::Duration;

struct Served {
    _dir: tempfile::TempDir,
    path: Utf8PathBuf,
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), AgentError>>,
}

async fn start(node: &Node) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().join("agent/os-agent.sock")).unwrap();
    let access = Access::group("a-group-that-does-not-exist");
    let socket = Socket::bind(&path, access).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(serve(node.engine().clone(), socket, access, async {
        let _ = stopped.await;
    }));
    Served {
        _dir: dir,
        path,
        stop,
        task,
    }
}

/// Stages, and follows the stream to its end.
async fn staged(c: &mut Client, request: v1::StageRequest) -> Result<v1::StageResult, AgentError> {
    let mut s = c.stage(request).await?.into_inner();
    loop {
        match s.message().await?.and_then(|e| e.event) {
            Some(stage_event::Event::Progress(_)) => {}
            Some(stage_event::Event::Result(r)) => return Ok(r),
            None => panic!("the stream ended without a result"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_engine_and_errors_keep_their_codes() {
    let node = Node::new();
    let s = start(&node).await;
    let meta = std::fs::metadata(&s.path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);
    assert_eq!(
        std::fs::metadata(s.path.parent().unwrap())
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o750
    );

    let mut c = client::connect(&s.path).await.unwrap();
    let status = c.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.phase(), status.running()), (v1::Phase::Idle, v1::Slot::A));
    assert_eq!(status.version_id, "1");

    let r = staged(&mut c, node.stage_request("2", "op-1")).await.unwrap();
    assert_eq!((r.version.as_str(), r.slot()), ("2", v1::Slot::B));
    let again = staged(&mut c, node.stage_request("2", "op-1")).await.unwrap();
    assert_eq!((again.op_id, again.image_sha256), (r.op_id, r.image_sha256));

    let mut bad = node.stage_request("3", "");
    bad.checksum = "00".repeat(32);
    let e = staged(&mut c, bad).await.unwrap_err();
    assert_eq!(e.code, Code::ChecksumMismatch);
    let e: AgentError = c
        .activate(v1::ActivateRequest::default())
        .await
        .unwrap_err()
        .into();
    assert_eq!(e.code, Code::NotStaged);
    let bad = v1::ConfigureRequest {
        configs: vec![v1::Config {
            model: "no.such.model".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let st = c.configure(bad).await.unwrap_err();
    assert_eq!(st.code(), tonic::Code::FailedPrecondition);
    assert_eq!(AgentError::from(st).code, Code::SettingRejected);
    let h = c
        .history(v1::HistoryRequest { limit: 1 })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(h.operations.len(), 1);
    let v = c
        .verify_slot(v1::VerifySlotRequest {
            slot: v1::Slot::A as i32,
        })
        .await
        .unwrap()
        .into_inner();
    assert!(v.ok);

    let path = s.path.clone();
    let channel = tonic::transport::Endpoint::try_from("http://x.invalid")
        .unwrap()
        .connect_with_connector(tower::service_fn(move |_: tonic::transport::Uri| {
            let path = path.clone();
            async move {
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(
                    tokio::net::UnixStream::connect(path).await?,
                ))
            }
        }))
        .await
        .unwrap();
    let st = StepsClient::new(channel)
        .status(v1::StepsStatusRequest {})
        .await
        .unwrap_err();
    // The step runner is another unit, which does not run here.
    assert_eq!(AgentError::from(st).code, Code::AgentUnavailable);

    let _ = s.stop.send(());
    s.task.await.unwrap().unwrap();
    assert!(!s.path.exists(), "the socket goes with the agent");
    assert_eq!(
        client::connect(&s.path).await.unwrap_err().code,
        Code::AgentUnavailable
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_stream_does_not_cancel_and_watch_follows() {
    let node = Node::new();
    let s = start(&node).await;
    let mut c = client::connect(&s.path).await.unwrap();
    let mut watch = c.watch(v1::WatchRequest {}).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.phase(), v1::Phase::Idle);
    node.source.hold(true);
    let stream = c.stage(node.stage_request("2", "op-1")).await.unwrap();
    drop(stream);
    let e = drain_or(c.stage(node.stage_request("3", "op-2")).await).unwrap_err();
    assert_eq!(AgentError::from(e).code, Code::Busy);
    node.source.hold(false);
    let joined = staged(&mut c, node.stage_request("2", "op-1")).await.unwrap();
    assert_eq!(joined.version, "2");
    let seen = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let m = watch.message().await.unwrap().unwrap();
            if m.phase() == v1::Phase::Staged {
                return m;
            }
        }
    });
    assert_eq!(seen.await.unwrap().slots[1].version, "2");
    let _ = s.stop.send(());
    s.task.await.unwrap().unwrap();
}

fn drain_or<T>(r: Result<T, tonic::Status>) -> Result<(), tonic::Status> {
    r.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_is_refused_and_a_stale_socket_is_replaced() {
    let node = Node::new();
    let s = start(&node).await;
    let access = Access::default();
    let e = Socket::bind(&s.path, access).err().unwrap();
    assert_eq!(e.code, Code::Busy);
    assert!(
        client::connect(&s.path).await.is_ok(),
        "the first one still answers"
    );
    let _ = s.stop.send(());
    s.task.await.unwrap().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&s.path).unwrap());
    assert!(s.path.exists());
    drop(Socket::bind(&s.path, access).unwrap());
}
