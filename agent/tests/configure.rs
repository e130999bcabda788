//! Settings through the real server, and through the real program on a disk image.
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
use os_agent::testdisk::TestDisk;
use os_agent::testing::Node;
use os_proto::codes::Code;
use os_proto::v1;
use serde_json::Value;
use std::process::Command;

async fn connect(node: &Node) -> (tempfile::TempDir, Client) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().join("agent/os-agent.sock")).unwrap();
    let access = Access::group("a-group-that-does-not-exist");
    let socket = Socket::bind(&path, access).unwrap();
    tokio::spawn(serve(
        node.engine().clone(),
        socket,
        access,
        std::future::pending(),
    ));
    let client = client::connect(&path).await.unwrap();
    (dir, client)
}

fn request(op_id: &str, entries: &[(&str, &str, &str)]) -> v1::ConfigureRequest {
    v1::ConfigureRequest {
        op_id: op_id.into(),
        dry_run: false,
        configs: entries
            .iter()
            .map(|(model, key, value)| v1::Config {
                model: (*model).into(),
                configpath: String::new(),
                contents: vec![v1::ConfigContent {
                    key: (*key).into(),
                    value_json: (*value).into(),
                    operation: String::new(),
                }],
            })
            .collect(),
    }
}

const KUBELET: &str = "/var/lib/kubelet/config.yaml";

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_done_once_per_id_and_all_or_nothing() {
    let mut node = Node::new();
    let (_dir, mut c) = connect(&node).await;
    let text = |n: &Node| n.disk.medium().settings.text(KUBELET);
    let before = text(&node);
    let entries = [
        ("kubernetes.kubelet", "maxPods", "250"),
        ("kernel.sysctl", "vm.swappiness", "10"),
    ];
    // Only looking.
    let dry = v1::ConfigureRequest {
        dry_run: true,
        ..request("dry", &entries)
    };
    let r = c.configure(dry).await.unwrap().into_inner();
    assert!(r.changed && r.results.len() == 2 && r.results[0].pending);
    assert_eq!(
        (text(&node), node.disk.medium().settings.writes),
        (before.clone(), 0)
    );
    // One bad entry: nothing at all, and the same id gives the same answer.
    let bad = request("bad", &[entries[0], ("kernel.sysctl", "vm.nosuch", "1")]);
    for _ in 0..2 {
        let e: AgentError = c.configure(bad.clone()).await.unwrap_err().into();
        assert_eq!(e.code, Code::SettingRejected);
        assert!(
            e.message
                .contains("configs[1].contents[0] (kernel.sysctl \"vm.nosuch\")"),
            "{e}"
        );
    }
    assert_eq!(node.disk.medium().settings.writes, 0);
    // Done, and done again under the same id: the stored result, nothing written.
    let first = c.configure(request("one", &entries)).await.unwrap().into_inner();
    assert!(first.changed && first.results.iter().all(|r| r.outcome == "changed"));
    assert_eq!(text(&node), format!("{before}maxPods: 250\n"));
    let writes = node.disk.medium().settings.writes;
    let again = c.configure(request("one", &entries)).await.unwrap().into_inner();
    assert_eq!(again, first);
    // Under another id nothing is left to do.
    let other = c.configure(request("two", &entries)).await.unwrap().into_inner();
    assert!(!other.changed && other.results.iter().all(|r| r.outcome == "unchanged"));
    assert_eq!(node.disk.medium().settings.writes, writes);
    // The id belongs to this kind of operation.
    let e: AgentError = c
        .commit(v1::CommitRequest {
            op_id: "one".into(),
            ..Default::default()
        })
        .await
        .unwrap_err()
        .into();
    assert_eq!(e.code, Code::InvalidArgument);
    // kubelet still runs with the old file; a boot later it does not.
    let s = c.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(s.pending_settings.len(), 1, "{:?}", s.pending_settings);
    assert!(
        s.pending_settings[0]
            .contains("written, not yet in effect: it waits for a restart of kubelet.service"),
        "{:?}",
        s.pending_settings
    );
    let h = c
        .history(v1::HistoryRequest { limit: 1 })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (h.operations[0].kind.as_str(), h.operations[0].message.as_str()),
        ("configure", "0 of 2 settings changed")
    );
    node.restart();
    let (_dir, mut c) = connect(&node).await;
    let again = c.configure(request("one", &entries)).await.unwrap().into_inner();
    assert_eq!(again, first, "also over a restart of the agent");
    node.stop();
    node.boot();
    let (_dir, mut c) = connect(&node).await;
    let s = c.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert!(s.pending_settings.is_empty(), "{:?}", s.pending_settings);
    assert_eq!(
        c.configure(request("one", &entries)).await.unwrap().into_inner(),
        first
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kf_a12_a_fault_of_ours_does_not_wedge_the_agent() {
    let node = Node::new();
    let (_dir, mut c) = connect(&node).await;
    let entries = [("kubernetes.kubelet", "maxPods", "250")];
    let broken = AgentError::new(Code::Internal, "told to");
    node.disk.medium().settings.fail = Some(broken);
    let e: AgentError = c.configure(request("", &entries)).await.unwrap_err().into();
    assert_eq!(e.code, Code::Internal);
    let e: AgentError = c
        .configure(request(
            "",
            &[("container.containerd", "oom_score", "9223372036854775808")],
        ))
        .await
        .unwrap_err()
        .into();
    assert_eq!(e.code, Code::SettingRejected);
    assert!(
        c.configure(request("", &entries))
            .await
            .unwrap()
            .into_inner()
            .changed,
        "the next call is served"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_slot_is_written_settings_wait_and_a_failed_write_is_told() {
    let node = Node::new();
    let (_dir, mut c) = connect(&node).await;
    node.source.hold(true);
    let mut stage = c.stage(node.stage_request("2", "st")).await.unwrap().into_inner();
    stage.message().await.unwrap();
    let entries = [("kubernetes.kubelet", "maxPods", "250")];
    let e: AgentError = c.configure(request("x", &entries)).await.unwrap_err().into();
    assert_eq!(e.code, Code::Busy);
    // Looking is always possible.
    let dry = v1::ConfigureRequest {
        dry_run: true,
        ..request("", &entries)
    };
    assert!(c.configure(dry).await.unwrap().into_inner().changed);
    node.source.hold(false);
    while stage.message().await.unwrap().is_some() {}
    let full = AgentError::new(Code::StateWriteFailed, "cannot write: No space left on device");
    node.disk.medium().settings.fail = Some(full);
    let e: AgentError = c.configure(request("y", &entries)).await.unwrap_err().into();
    assert_eq!(e.code, Code::StateWriteFailed);
    assert!(
        c.configure(request("z", &entries))
            .await
            .unwrap()
            .into_inner()
            .changed
    );
    // The staged slot is untouched by it.
    let s = c.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(s.phase(), v1::Phase::Staged);
}

#[test]
fn the_program_changes_arguments_of_a_disk_image_and_refuses_the_rest() {
    for sector in [512, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
        let disk = root.join("disk.img");
        TestDisk {
            sector,
            ..TestDisk::default()
        }
        .create(&disk);
        let file = |name: &str, text: &str| {
            std::fs::write(root.join(name), text).unwrap();
            root.join(name).into_string()
        };
        let run = |args: &[&str]| -> (i32, Value, String) {
            let out = Command::new(env!("CARGO_BIN_EXE_os-agent"))
                .args(args)
                .args(["--disk", disk.as_str(), "--running", "A", "--json"])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            (
                out.status.code().unwrap_or(-1),
                serde_json::from_str(&text).unwrap_or(Value::Null),
                String::from_utf8_lossy(&out.stderr).into_owned(),
            )
        };
        let args = file(
            "args.yaml",
            "- model: grub.cmdline.next\n  contents:\n  - {key: mitigations, value: auto}\n  - {key: nosmt}\n",
        );
        let before = std::fs::read(&disk).unwrap();
        let (exit, doc, err) = run(&["configure", &args, "--dry-run"]);
        assert_eq!((exit, &doc["changed"]), (0, &Value::Bool(true)), "{err}");
        assert!(std::fs::read(&disk).unwrap() == before && !root.join("disk.img.state").exists());
        let (exit, doc, err) = run(&["configure", &args]);
        assert_eq!(exit, 0, "{err}");
        assert_eq!(doc["results"][1]["outcome"], "changed");
        assert_eq!(doc["results"][1]["pending"], true);
        let (_, doc, _) = run(&["configure", &args]);
        assert_eq!(doc["changed"], false);
        let (_, doc, err) = run(&["status"]);
        let pending = doc["pending_settings"][0].as_str().unwrap_or(&err).to_owned();
        assert!(pending.contains("the next boot of slot B"), "{pending}");
        // What only a running system can do, and files with mistakes.
        let kubelet = file(
            "kubelet.yaml",
            "- model: kubernetes.kubelet\n  contents: [{key: a, value: 1}]\n",
        );
        let now = std::fs::read(&disk).unwrap();
        let (exit, doc, _) = run(&["configure", &kubelet]);
        assert_eq!((exit, doc["code"].as_str()), (3, Some("SettingRejected")));
        for (text, code, exit) in [
            ("- model: nosuch\n", "InvalidArgument", 2),
            (
                "- model: grub.cmdline.next\n  contents: [{key: root, value: LABEL=x}]\n",
                "SettingRejected",
                3,
            ),
        ] {
            let (found, doc, _) = run(&["configure", &file("bad.yaml", text)]);
            assert_eq!((found, doc["code"].as_str()), (exit, Some(code)), "{text}");
        }
        assert!(std::fs::read(&disk).unwrap() == now, "refusals change nothing");
    }
}
