#![allow(clippy::unwrap_used, clippy::disallowed_methods)]
use super::*;
use crate::testdisk::TestDisk;
use os_proto::layout::Role;
use std::fs::OpenOptions;

fn image(sector: u32) -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
    TestDisk {
        sector,
        ..TestDisk::default()
    }
    .create(&path);
    (dir, path)
}

#[test]
fn an_image_file_of_either_sector_size_is_a_disk() {
    for sector in [512, 4096] {
        let (_dir, path) = image(sector);
        let l = offline(&path, Slot::A).unwrap();
        assert_eq!((l.sector_size(), l.running()), (sector, Slot::A));
        assert_eq!(l.region(Role::OsState).unwrap().size, 2 << 20);
    }
}

#[test]
fn damaged_headers_are_read_from_the_backup_and_never_repaired() {
    let (_dir, path) = image(512);
    let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    f.write_all_at(&[0xff; 16], 512 + 40).unwrap();
    let before = std::fs::read(&path).unwrap();
    let l = offline(&path, Slot::A).unwrap();
    assert!(
        l.warnings().iter().any(|w| w.contains("backup")),
        "{:?}",
        l.warnings()
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let size = before.len() as u64;
    f.write_all_at(&[0; 512], size - 512).unwrap();
    let e = offline(&path, Slot::A).unwrap_err();
    assert_eq!(e.code, Code::DiskUnsupported);
    assert!(e.message.contains("checksum"), "{e}");
}

#[test]
fn what_is_no_slipway_disk_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(dir.path()).unwrap();
    let e = |p: &Utf8Path| offline(p, Slot::A).unwrap_err();
    assert_eq!(e(root).code, Code::InvalidArgument);
    assert_eq!(e(&root.join("none")).code, Code::InvalidArgument);
    let empty = root.join("empty");
    std::fs::write(&empty, "").unwrap();
    assert_eq!(e(&empty).code, Code::DiskUnsupported);
    let msdos = root.join("msdos");
    let mut mbr = vec![0; 1 << 20];
    mbr.splice(510..512, [0x55, 0xaa]);
    std::fs::write(&msdos, mbr).unwrap();
    assert!(e(&msdos).message.contains("msdos"), "{}", e(&msdos));
}

#[test]
fn three_terabytes_are_only_a_number() {
    let (_dir, path) = image(512);
    let f = OpenOptions::new().write(true).open(&path).unwrap();
    if f.set_len(3 << 40).is_ok() {
        assert_eq!(offline(&path, Slot::B).unwrap().disk_size(), 3 << 40);
    }
}

#[test]
fn this_machine_can_be_looked_at() {
    let facts = gather().unwrap();
    assert!(!facts.mountinfo.is_empty());
    // Whatever it is, asking is harmless and ends in a layout or a refusal.
    let _ = online();
}
