#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]

mod real;

use super::*;
use crate::testdisk::Scratch;
use os_proto::layout::Role;

#[test]
fn an_image_file_of_either_sector_size_is_a_disk() {
    for sector in [512, 4096] {
        let l = Scratch::of(sector).layout();
        assert_eq!((l.sector_size(), l.running()), (sector, Slot::A));
        assert_eq!(l.region(Role::OsState).unwrap().size, 2 << 20);
    }
}

#[test]
fn damaged_headers_are_read_from_the_backup_and_never_repaired() {
    let d = Scratch::of(512);
    let f = d.open();
    f.write_all_at(&[0xff; 16], 512 + 40).unwrap();
    let before = d.bytes();
    let l = d.layout();
    assert!(
        l.warnings().iter().any(|w| w.contains("backup")),
        "{:?}",
        l.warnings()
    );
    assert_eq!(d.bytes(), before);

    let size = before.len() as u64;
    f.write_all_at(&[0; 512], size - 512).unwrap();
    let e = offline(&d.path, Slot::A).unwrap_err();
    assert_eq!(e.code, Code::DiskUnsupported);
    assert!(e.message.contains("checksum"), "{e}");
}

#[test]
fn a_backup_that_is_damaged_or_cut_off_is_told_and_nothing_is_repaired() {
    for sector in [512u64, 4096] {
        let d = Scratch::of(sector as u32);
        let whole = d.bytes();
        let size = whole.len() as u64;
        assert!(d.layout().warnings().is_empty(), "{:?}", d.layout().warnings());
        let told = |says: &str| {
            let before = d.bytes();
            let l = d.layout();
            let [w] = l.warnings() else {
                panic!("{:?}", l.warnings())
            };
            assert!(w.contains(says) && w.contains("sgdisk -e"), "{w}");
            assert_eq!(d.bytes(), before);
        };
        let f = d.open();
        f.write_all_at(&vec![0; sector as usize], size - sector).unwrap();
        told("no GPT header");
        f.write_all_at(&whole[(size - sector) as usize..], size - sector)
            .unwrap();
        // A byte of its entries.
        let at = size - 5 * sector;
        f.write_all_at(&[whole[at as usize] ^ 1], at).unwrap();
        told("checksum of the GPT entries");
        f.set_len(size - sector).unwrap();
        told("the disk ends before its partition table does");
        // A disk that became larger has its backup where it was.
        f.set_len(size - 5 * sector).unwrap();
        f.write_all_at(&whole[(size - 5 * sector) as usize..], size - 5 * sector)
            .unwrap();
        f.set_len(size + (1 << 20)).unwrap();
        assert!(d.layout().warnings().is_empty(), "{:?}", d.layout().warnings());
    }
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
fn this_machine_can_be_looked_at() {
    let facts = gather().unwrap();
    assert!(!facts.mountinfo.is_empty());
    // Whatever it is, asking is harmless and ends in a layout or a refusal.
    let _ = online();
}
