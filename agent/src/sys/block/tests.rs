#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::{TestDisk, foreign_lock};
use os_proto::layout::{Role, Slot};
use std::fs::OpenOptions;

fn image() -> (tempfile::TempDir, Utf8PathBuf, Region) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
    TestDisk::default().create(&path);
    let layout = discover::offline(&path, Slot::A).unwrap();
    let region = layout.region(Role::RootB).unwrap();
    (dir, path, region)
}

#[test]
fn reads_and_writes_at_any_alignment_stay_inside_the_region() {
    let (_dir, path, region) = image();
    let before = std::fs::read(&path).unwrap();
    let mut dev = open_slot(&region).unwrap();
    let data: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
    // Vec is rarely aligned to 4096: goes through the bounce buffer.
    dev.write_at(4096, &data[..65536 * 3]).unwrap();
    let mut big = AlignedBuf::zeroed(8192);
    big.fill(9);
    dev.write_at(region.size - 8192, &big).unwrap();
    dev.flush().unwrap();
    dev.drop_cache().unwrap();
    for (at, len) in [(4096u64, 100usize), (4097, 70_001), (4096 + 65535, 3), (8191, 2)] {
        let mut got = vec![0; len];
        dev.read_at(at, &mut got).unwrap();
        let from = at as usize - 4096;
        assert_eq!(got, data[from..from + len], "{at} {len}");
    }
    let mut tail = vec![0; 5];
    dev.read_at(region.size - 5, &mut tail).unwrap();
    assert_eq!(tail, [9; 5]);

    assert_eq!(
        dev.write_at(region.size - 512, &[0; 1024]).unwrap_err().code,
        Code::Internal
    );
    assert_eq!(dev.write_at(1, &[0; 512]).unwrap_err().code, Code::Internal);
    assert!(dev.read_at(u64::MAX, &mut [0; 2]).is_err());
    drop(dev);
    let after = std::fs::read(&path).unwrap();
    let (start, end) = (region.offset as usize, (region.offset + region.size) as usize);
    assert_eq!(after.len(), before.len());
    assert!(after[..start] == before[..start] && after[end..] == before[end..]);
}

#[test]
fn an_image_that_another_process_works_on_is_busy() {
    let (_dir, path, region) = image();
    let lock = foreign_lock(&path);
    let e = open_slot(&region).err().unwrap();
    assert_eq!(e.code, Code::SlotBusy);
    assert!(e.message.contains("another os-agent"), "{e}");
    open_read(&region).unwrap();
    drop(lock);
    let _slot = open_slot(&region).unwrap();
    // The same process may write the environment meanwhile.
    open_durable(&region).unwrap();
}

#[test]
fn a_region_that_no_longer_fits_is_refused() {
    let (_dir, path, region) = image();
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(region.offset + 4096)
        .unwrap();
    assert_eq!(open_slot(&region).err().unwrap().code, Code::SlotContradiction);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(open_slot(&region).err().unwrap().code, Code::Internal);
}

#[test]
fn a_full_medium_is_told_as_such_and_not_as_a_fault_of_ours() {
    let (_dir, _path, region) = image();
    let dev = open_durable(&region).unwrap();
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        let e = dev.fail("write", 4096, &errno.into());
        assert_eq!((e.code, e.code.exit_code()), (Code::SlotTooSmall, 3));
        assert!(e.message.contains("make room"), "{e}");
    }
    assert_eq!(dev.fail("write", 0, &Errno::IO.into()).code, Code::MediumCorrupt);
    assert_eq!(dev.fail("write", 0, &Errno::PERM.into()).code, Code::Internal);
}
