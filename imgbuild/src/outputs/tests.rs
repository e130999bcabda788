#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn paths() -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().unwrap();
    let out = Utf8Path::from_path(dir.path()).unwrap().join("out/1.0");
    let paths = Paths::new(&out).unwrap();
    (dir, paths)
}

fn finish(paths: &Paths, text: &str) {
    for n in NAMES {
        std::fs::write(paths.ready.join(n), text).unwrap();
    }
}

#[test]
fn the_working_directory_lies_beside_the_outputs() {
    let p = Paths::new(Utf8Path::new("/a/b/./c/")).unwrap();
    assert_eq!(p.out, "/a/b/c");
    assert_eq!(p.work, "/a/b/.c.imgbuild");
    assert!(Paths::new(Utf8Path::new("/")).is_err());
}

#[test]
fn one_build_at_a_time() {
    let (_dir, p) = paths();
    let lock = Lock::take(&p).unwrap();
    let e = Lock::take(&p).unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Locked, "LOCK001"));
    assert!(
        e.message
            .contains(&format!("pid {}, since 20", std::process::id())),
        "{e}"
    );
    lock.release().unwrap();
    assert!(!p.work.exists() && !p.out.exists());
    Lock::take(&p).unwrap();
}

#[test]
fn results_replace_results_and_leave_strangers_alone() {
    let (_dir, p) = paths();
    std::fs::create_dir_all(&p.out).unwrap();
    std::fs::write(p.out.join("notes"), "mine").unwrap();
    for round in ["one", "two"] {
        let lock = Lock::take(&p).unwrap();
        finish(&p, round);
        lock.publish().unwrap();
        lock.release().unwrap();
        assert!(
            NAMES
                .iter()
                .all(|n| std::fs::read_to_string(p.out.join(n)).unwrap() == round)
        );
    }
    assert_eq!(std::fs::read_dir(&p.out).unwrap().count(), NAMES.len() + 1);
}

#[test]
fn leftovers_are_removed_without_following_links() {
    let (dir, p) = paths();
    drop(Lock::take(&p).unwrap()); // as after SIGKILL: the directory stays
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("precious"), "x").unwrap();
    std::fs::create_dir_all(p.work.join("root/a/b")).unwrap();
    std::fs::write(p.work.join("root/a/b/c"), "x").unwrap();
    symlink(&outside, p.work.join("root/link")).unwrap();
    std::fs::set_permissions(p.work.join("root/a"), std::fs::Permissions::from_mode(0o500)).unwrap();
    let lock = Lock::take(&p).unwrap();
    assert!(!p.work.join("root").exists());
    assert!(outside.join("precious").exists());
    lock.release().unwrap();
}

#[test]
fn a_link_in_place_of_the_working_directory_is_refused() {
    let (dir, p) = paths();
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("precious"), "x").unwrap();
    std::fs::create_dir_all(p.work.parent().unwrap()).unwrap();
    symlink(&outside, &p.work).unwrap();
    assert_eq!(Lock::take(&p).unwrap_err().code, "CFG016");
    assert!(outside.join("precious").exists());
}
