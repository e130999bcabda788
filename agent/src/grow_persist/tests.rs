#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::TestDisk;
use os_proto::layout::{MIB, Slot};

#[test]
fn an_image_made_larger_gets_a_larger_persist_once() {
    for sector in [512, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
        TestDisk {
            sector,
            ..TestDisk::default()
        }
        .create(&path);
        let layout = discover::offline(&path, Slot::A).unwrap();
        let g = run(&layout).unwrap();
        assert!(!g.changed(), "{g:?}");

        let f = OpenOptions::new().write(true).open(&path).unwrap();
        f.set_len(layout.disk_size() + 9 * MIB).unwrap();
        let before = std::fs::read(&path).unwrap();
        let layout = discover::offline(&path, Slot::A).unwrap();
        let g = run(&layout).unwrap();
        assert_eq!((g.partition_before, g.partition_now), (MIB, 10 * MIB));
        let again = discover::offline(&path, Slot::A).unwrap();
        assert_eq!(again.part(Role::Persist).unwrap().size, 10 * MIB);
        assert!(!run(&again).unwrap().changed());
        // Nothing between the tables changed.
        let after = std::fs::read(&path).unwrap();
        let (from, to) = (MIB as usize, before.len() - MIB as usize);
        assert!(before[from..to] == after[from..to]);
        if sector == 512 {
            let disk = gpt::GptConfig::new()
                .writable(false)
                .open_from_device(File::open(&path).unwrap())
                .unwrap();
            assert_eq!(
                disk.primary_header().unwrap().backup_lba,
                after.len() as u64 / 512 - 1
            );
            assert_eq!(
                u64::from(u32::from_le_bytes(after[458..462].try_into().unwrap())),
                after.len() as u64 / 512 - 1
            );
        }
    }
}

#[test]
fn a_damaged_table_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
    TestDisk::default().create(&path);
    let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let layout = discover::offline(&path, Slot::A).unwrap();
    f.write_all_at(&[0xff; 4], 512 + 60).unwrap();
    f.set_len(layout.disk_size()).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(run(&layout).unwrap_err().code, Code::DiskUnsupported);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
