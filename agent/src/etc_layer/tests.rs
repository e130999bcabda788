#![allow(clippy::disallowed_methods)]
use super::*;
use proptest::prelude::*;

fn tree(rows: &[(&str, Kind, i64)]) -> Tree {
    rows.iter()
        .map(|(p, kind, mtime)| {
            (
                (*p).to_owned(),
                Entry {
                    kind: kind.clone(),
                    mtime: *mtime,
                },
            )
        })
        .collect()
}

#[test]
fn what_hides_the_image_is_listed_with_its_age() {
    let f = |n: u8| Kind::File([n; 32]);
    let node = tree(&[
        ("hosts", f(1), 100),
        ("same.conf", f(2), 100),
        ("only-here", f(3), 100),
        ("containerd", Kind::Dir, 100),
        ("containerd/config.toml", f(4), 100),
        ("gone", Kind::Removed, 300),
        ("localtime", Kind::Link("/a".into()), 100),
        ("drop.d", Kind::OpaqueDir, 100),
        ("was-file", Kind::Dir, 100),
    ]);
    let image = tree(&[
        ("hosts", f(9), 50),
        ("same.conf", f(2), 900),
        ("containerd", Kind::Dir, 900),
        ("containerd/config.toml", f(5), 200),
        ("gone", f(6), 200),
        ("localtime", Kind::Link("/b".into()), 200),
        ("drop.d", Kind::Dir, 200),
        ("was-file", f(7), 200),
        ("untouched", f(8), 200),
    ]);
    let found: Vec<(String, How, bool)> = compare(&node, &image)
        .into_iter()
        .map(|h| (h.path, h.how, h.image_newer))
        .collect();
    let want = |p: &str, how, newer| (format!("/etc/{p}"), how, newer);
    assert_eq!(
        found,
        [
            want("containerd/config.toml", How::Replaced, true),
            want("drop.d", How::Opaque, true),
            want("gone", How::Removed, false),
            want("hosts", How::Replaced, false),
            want("localtime", How::Replaced, true),
            want("was-file", How::Replaced, true),
        ]
    );
}

#[test]
fn trees_are_read_as_they_lie() {
    let d = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(d.path()).unwrap();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/x"), "one").unwrap();
    std::fs::write(root.join("y"), "two").unwrap();
    std::os::unix::fs::symlink("/x", root.join("l")).unwrap();
    let t = read(root, |_| true).unwrap();
    assert_eq!(t.keys().collect::<Vec<_>>(), ["a", "a/b", "a/b/x", "l", "y"]);
    assert_eq!(t["l"].kind, Kind::Link("/x".into()));
    assert_eq!(t["a/b/x"].kind, Kind::File(Sha256::digest(b"one").into()));
    let some = read(root, |p| p == "a/b/x").unwrap();
    assert_eq!(some.len(), 1, "below directories that nobody asked for");
    assert_eq!(
        read(&root.join("none"), |_| true).unwrap_err().code,
        Code::Internal
    );
}

#[test]
#[ignore = "needs root (a mount namespace with an overlay): tests/run image"]
fn what_is_below_an_overlay_can_be_read() {
    // On any machine the root's mount can be cloned; /proc is empty in the clone.
    use rustix::mount::{OpenTreeFlags, open_tree};
    let root = open_tree(
        rustix::fs::CWD,
        "/",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .unwrap();
    let below = format!("/proc/self/fd/{}", root.as_raw_fd());
    assert!(std::fs::metadata(format!("{below}/etc")).unwrap().is_dir());
    assert_eq!(std::fs::read_dir(format!("{below}/proc")).unwrap().count(), 0);
}

proptest! {
    #[test]
    fn equal_layers_hide_nothing_and_absent_paths_never_do(
        rows in proptest::collection::btree_map("[a-c]{1,3}", (0u8..4, 0i64..9), 0..12),
        other in proptest::collection::btree_map("[a-c]{1,3}", (0u8..4, 0i64..9), 0..12),
    ) {
        let make = |m: &BTreeMap<String, (u8, i64)>| -> Tree {
            m.iter().map(|(p, (n, t))| (p.clone(), Entry { kind: Kind::File([*n; 32]), mtime: *t })).collect()
        };
        let (a, b) = (make(&rows), make(&other));
        prop_assert!(compare(&a, &a).is_empty());
        for h in compare(&a, &b) {
            let p = h.path.trim_start_matches("/etc/");
            prop_assert!(a.contains_key(p) && b.contains_key(p) && a[p].kind != b[p].kind);
        }
    }
}
