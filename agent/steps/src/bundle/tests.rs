use super::*;
use crate::testing::{tar, text_bundle};

fn refused(files: &[(&str, &[u8])]) -> String {
    let e = from_tar(&tar(files)).and_then(|f| f.check(None)).unwrap_err();
    assert_eq!(e.code, os_proto::codes::Code::BundleInvalid, "{e}");
    e.message
}

#[test]
fn a_directory_a_tar_and_an_object_with_the_same_steps_are_the_same_bundle() {
    let t = tempfile::tempdir().unwrap();
    let d = Utf8Path::from_path(t.path()).unwrap();
    std::fs::create_dir(d.join("steps")).unwrap();
    std::fs::write(d.join("steps/000_a.sh"), "true\n").unwrap();
    std::fs::write(d.join("steps/010_b.sh"), "# agent: retries=2\n:\n").unwrap();
    std::fs::write(d.join("README.md"), "ignored").unwrap();
    let a = load(d).unwrap();
    let files: [(&str, &[u8]); 2] = [
        ("./steps/010_b.sh", b"# agent: retries=2\n:\n"),
        ("./steps/000_a.sh", b"true\n"),
    ];
    let b = from_bytes("b", &tar(&files)).unwrap();
    let object = serde_json::json!({"apiVersion": "bashible.deckhouse.io/v1alpha1", "kind": "NodeGroupBundle",
        "metadata": {"name": "worker", "annotations": {"bashible.deckhouse.io/configuration-checksum": "cafe"}},
        "data": {"010_b.sh": "# agent: retries=2\n:\n", "000_a.sh": "true\n"}});
    let c = from_bytes("b", object.to_string().as_bytes()).unwrap();
    assert_eq!(a.manifest.content_hash, b.manifest.content_hash);
    assert_eq!(a.manifest.content_hash, c.manifest.content_hash);
    assert_eq!(c.manifest.external_checksum, "cafe");
    assert_eq!(c.manifest.node_group, "worker");
    assert_eq!(a.manifest.steps[1].attributes.retries, 2);
    let gz = {
        use std::io::Write;
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(&tar(&files)).unwrap();
        e.finish().unwrap()
    };
    let zst = zstd::stream::encode_all(&*tar(&files), 1).unwrap();
    assert_eq!(from_bytes("b", &gz).unwrap(), b);
    assert_eq!(from_bytes("b", &zst).unwrap(), b);
}

/// Fault 6: the order in which inputs come must not change the hash.
#[test]
fn fault_06_a_hundred_orders_of_the_same_files_have_one_hash() {
    let mut names: Vec<String> = (0..20).map(|i| format!("steps/{i:03}_s.sh")).collect();
    let mut hashes = std::collections::BTreeSet::new();
    for i in 0..100usize {
        let n = names.len();
        names.swap(i % n, (i * 7 + 3) % n);
        let files: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), &b":\n"[..])).collect();
        hashes.insert(from_bytes("b", &tar(&files)).unwrap().manifest.content_hash);
    }
    assert_eq!(hashes.len(), 1);
}

#[test]
fn unsafe_paths_links_and_double_names_are_refused() {
    for path in [
        "../x.sh",
        "/etc/x.sh",
        "steps/../../x.sh",
        "steps//x.sh",
        "steps/a/b.sh",
    ] {
        let m = refused(&[(path, b":\n")]);
        assert!(
            m.contains("unsafe path") || m.contains("not a safe step name"),
            "{path}: {m}"
        );
    }
    assert!(refused(&[("steps/a.sh", b":"), ("steps/a.sh", b":")]).contains("two steps are named"));
    let mut b = tar::Builder::new(Vec::new());
    let mut h = tar::Header::new_gnu();
    h.set_entry_type(tar::EntryType::Symlink);
    h.set_size(0);
    b.append_link(&mut h, "steps/a.sh", "/etc/shadow").unwrap();
    let m = from_tar(&b.into_inner().unwrap()).unwrap_err().message;
    assert!(m.contains("links are not followed"), "{m}");
}

#[test]
fn a_wrong_digest_is_named_with_its_step() {
    let good = text_bundle(&[("000_a.sh", ":\n"), ("010_b.sh", ":\n")]);
    let manifest = serde_json::to_vec(&good.manifest).unwrap();
    let m = refused(&[
        ("manifest.json", &manifest),
        ("steps/000_a.sh", b":\n"),
        ("steps/010_b.sh", b"rm -rf /\n"),
    ]);
    assert!(
        m.contains("010_b.sh") && m.contains(&good.manifest.steps[1].sha256),
        "{m}"
    );
    let m = refused(&[("manifest.json", &manifest), ("steps/000_a.sh", b":\n")]);
    assert!(m.contains("010_b.sh is in the manifest and missing"), "{m}");
    let m = refused(&[
        ("manifest.json", &manifest),
        ("steps/000_a.sh", b":\n"),
        ("steps/010_b.sh", b":\n"),
        ("steps/020_c.sh", b":\n"),
    ]);
    assert!(m.contains("020_c.sh is not in manifest.json"), "{m}");
    let mut forged = good.manifest.clone();
    forged.content_hash = "0".repeat(64);
    let m = refused(&[
        ("manifest.json", &serde_json::to_vec(&forged).unwrap()),
        ("steps/000_a.sh", b":\n"),
        ("steps/010_b.sh", b":\n"),
    ]);
    assert!(m.contains("contentHash"), "{m}");
}

/// Fault 9: old templates under a new context, and the reverse.
#[test]
fn fault_09_a_mixed_schema_is_refused() {
    let m = refused(&[
        ("manifest.json", br#"{"schema":3,"steps":[]}"#),
        ("steps/a.sh", b":\n"),
    ]);
    assert!(m.contains("schema 3: expected 1"), "{m}");
}

#[test]
fn text_that_is_not_text_and_unknown_helpers_are_named_all_at_once() {
    let m = refused(&[
        ("steps/a.sh", b"echo \xff\xfe\n"),
        ("steps/b.sh", b":\nbb-flga-set reboot\n"),
        ("steps/c.sh", b"a\0b"),
        ("steps/d.sh", b"bb-flag-set reboot\n"),
    ]);
    assert!(m.contains("step a.sh: not UTF-8 at byte 5"), "{m}");
    assert!(m.contains("step b.sh, line 2: calls bb-flga-set"), "{m}");
    assert!(m.contains("step c.sh: holds a zero byte"), "{m}");
    assert!(!m.contains("d.sh"), "{m}");
}

/// Fault 19: a user step named like a system step.
#[test]
fn fault_19_two_steps_of_one_name_are_an_error_and_never_dropped() {
    let m = refused(&[("steps/050_x.sh", b":"), ("steps/050_x.sh", b"true")]);
    assert!(m.contains("two steps are named \"050_x.sh\""), "{m}");
}

#[test]
fn archives_that_are_none_and_bombs_are_bounded() {
    assert!(from_bytes("b", b"neither").is_err());
    assert!(from_bytes("b", b"").unwrap_err().message.contains("no step"));
    let bomb = {
        use std::io::Write;
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0u8; 1 << 20];
        for _ in 0..64 {
            e.write_all(&zeros).unwrap();
        }
        e.finish().unwrap()
    };
    assert!(
        from_bytes("b", &bomb)
            .unwrap_err()
            .message
            .contains("larger than")
    );
}

#[test]
fn late_steps_run_last_and_pre_approval_steps_first() {
    let b = text_bundle(&[
        ("000_a.sh", "# agent: phase=late\n"),
        ("010_b.sh", ":\n"),
        ("020_c.sh", "# agent: phase=pre-approval\n"),
    ]);
    assert_eq!(b.order(), [2, 1, 0]);
}
