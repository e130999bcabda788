#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use uuid::uuid;

fn tree(at: &Utf8Path, reverse: bool) {
    let mut names: Vec<String> = (0..200).map(|i| format!("file-{i}")).collect();
    if reverse {
        names.reverse();
    }
    std::fs::create_dir_all(at.join("etc/deep/er")).unwrap();
    for n in &names {
        std::fs::write(at.join("etc").join(n), n.repeat(50)).unwrap();
    }
    std::fs::write(at.join("etc/suid"), "x").unwrap();
    std::fs::set_permissions(at.join("etc/suid"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    std::fs::hard_link(at.join("etc/suid"), at.join("etc/deep/link")).unwrap();
    symlink("../suid", at.join("etc/deep/sym")).unwrap();
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    for n in ["etc/deep", "etc", "."] {
        let f = std::fs::File::open(at.join(n)).unwrap();
        f.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000))
            .unwrap();
    }
}

fn image(dir: &Utf8Path, name: &str, reverse: bool, purpose: Purpose) -> Vec<u8> {
    let at = dir.join(name);
    tree(&at, reverse);
    let image = dir.join(format!("{name}.img"));
    let fs = Ext4 {
        image: &image,
        tree: &at,
        size: 256 << 20,
        uuid: uuid!("00000000-0000-4000-8000-000000000001"),
        hash_seed: uuid!("00000000-0000-4000-8000-000000000002"),
        label: "ROOT",
        epoch: 1_700_000_000,
        purpose,
    };
    make(&fs, dir).unwrap();
    std::fs::read(image).unwrap()
}

#[test]
fn equal_trees_give_equal_bytes_whatever_their_age_and_order() {
    for purpose in [Purpose::ReadOnly { inodes: 1000 }, Purpose::Data] {
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let a = image(dir, "a", false, purpose);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let b = image(dir, "b", true, purpose);
        assert!(a == b, "{purpose:?}");
        let list = inodes::read(&dir.join("a.img")).unwrap();
        assert!(list.len() > 200 && list.iter().all(|i| i.mtime <= 1_700_000_000));
        assert!(
            list.iter().any(|i| i.mtime == 1_600_000_000),
            "an older mtime is kept"
        );
    }
}

#[test]
fn a_tree_that_does_not_fit_is_a_matter_of_space() {
    let dir = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(dir.path()).unwrap();
    let at = dir.join("t");
    std::fs::create_dir(&at).unwrap();
    std::fs::write(at.join("big"), vec![1u8; 12 << 20]).unwrap();
    let fs = Ext4 {
        image: &dir.join("i"),
        tree: &at,
        size: 8 << 20,
        uuid: Uuid::nil(),
        hash_seed: Uuid::nil(),
        label: "ROOT",
        epoch: 1_700_000_000,
        purpose: Purpose::ReadOnly { inodes: 100 },
    };
    let e = make(&fs, dir).unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Space, "SIZE001"), "{e}");
}

#[test]
fn only_what_differs_is_changed() {
    let same = Inode {
        number: 12,
        uid: 1000,
        gid: 0,
        atime: 100,
        ctime: 100,
        mtime: 50,
        crtime: 100,
        atime_extra: 0,
        ctime_extra: 0,
        mtime_extra: 0,
        crtime_extra: 0,
    };
    assert!(changes(&same, 100, Roots::Own).is_empty());
    assert_eq!(changes(&same, 100, Roots::All), ["uid 0"]);
    let builder = Roots::AndOf { uid: 1000, gid: 1001 };
    let owned = |uid, gid| changes(&Inode { uid, gid, ..same }, 100, builder);
    assert_eq!(owned(1000, 1001), ["uid 0", "gid 0"]);
    assert_eq!(
        owned(1000, 27),
        ["uid 0", "gid 0"],
        "another group of the builder's"
    );
    assert_eq!(owned(1000, 0), ["uid 0"]);
    assert_eq!(owned(33, 1001), ["gid 0"]);
    assert!(owned(33, 33).is_empty());
    let other = Inode {
        atime: 7,
        mtime: 101,
        mtime_extra: 4,
        ..same
    };
    assert_eq!(
        script(&[other], 100, Roots::Own),
        "sif <12> atime @100\nsif <12> mtime @100\nsif <12> mtime_extra 0\n"
    );
}
