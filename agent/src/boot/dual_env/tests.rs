#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::Scratch;
use os_proto::layout::{Role, Slot};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

#[test]
fn a_write_changes_two_clusters_and_nothing_else() {
    for sector in [512, 4096] {
        let d = Scratch::of(sector);
        let region = d.region(Role::OsState);
        let boot = DualEnv::new(region.clone());
        let first = boot.read().unwrap();
        assert_eq!(first.env1, Ok(Env::committed(Slot::A, 1)));
        assert_eq!(first.env2, first.env1);
        let before = d.bytes();
        let armed = Env::committed(Slot::A, 1).armed(Slot::B);
        boot.write(&armed).unwrap();
        let now = boot.read().unwrap();
        assert_eq!((now.env1, now.env2), (Ok(armed), Ok(armed)));
        let after = d.bytes();
        let g = state_geometry(sector).unwrap();
        let changed: Vec<u64> = (0..before.len())
            .filter(|i| before[*i] != after[*i])
            .map(|i| i as u64 - region.offset)
            .collect();
        assert!(!changed.is_empty());
        assert!(
            changed
                .iter()
                .all(|at| (g.env1..g.env1 + 512).contains(at) || (g.env2..g.env2 + 512).contains(at))
        );
    }
}

#[test]
fn each_copy_is_judged_by_itself() {
    let d = Scratch::of(512);
    let region = d.region(Role::OsState);
    let f = d.open();
    let boot = DualEnv::new(region.clone());
    boot.write(&Env::committed(Slot::A, 4).armed(Slot::B)).unwrap();
    for garbage in [
        vec![0u8; 512],
        vec![0xff; 512],
        b"# GRUB Environment Block\n".to_vec(),
    ] {
        f.write_all_at(&garbage, region.offset + 12 * 1024).unwrap();
        let c = boot.read().unwrap();
        if garbage.len() == 512 {
            assert!(c.env1.is_err());
        }
        assert!(c.env2.is_ok());
    }
    // Other layouts are refused before anything is written.
    f.write_all_at(&[0; 2], region.offset + 510).unwrap();
    let before = d.bytes();
    for e in [
        boot.read().unwrap_err(),
        boot.write(&Env::committed(Slot::B, 9)).unwrap_err(),
    ] {
        assert_eq!(e.code, Code::StateBroken);
        assert!(e.message.contains("doctor"), "{e}");
    }
    assert_eq!(d.bytes(), before);
}

/// A device that records writes and flushes, and fails or lies on demand.
struct Wrapped {
    inner: Box<dyn SlotDevice>,
    log: Arc<Mutex<Vec<String>>>,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    WriteFails(u64),
    WriteLost(u64),
    FlushFails,
}

impl SlotDevice for Wrapped {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn block_size(&self) -> u32 {
        self.inner.block_size()
    }
    fn write_at(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.log
            .lock()
            .unwrap()
            .push(format!("write {at}+{}", data.len()));
        match self.fault {
            Fault::WriteFails(n) if n == at => Err(AgentError::new(Code::MediumCorrupt, "EIO")),
            Fault::WriteLost(n) if n == at => Ok(()),
            _ => self.inner.write_at(at, data),
        }
    }
    fn read_at(&mut self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(at, buf)
    }
    fn flush(&mut self) -> Result<()> {
        self.log.lock().unwrap().push("flush".into());
        if self.fault == Fault::FlushFails {
            return Err(AgentError::new(Code::Internal, "EIO"));
        }
        self.inner.flush()
    }
    fn drop_cache(&mut self) -> Result<()> {
        self.inner.drop_cache()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

fn wrapped(region: Region, fault: Fault) -> (DualEnv, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let l = Arc::clone(&log);
    let boot = DualEnv::with_opener(
        region,
        Box::new(move |r, _| {
            Ok(Box::new(Wrapped {
                inner: Box::new(open_durable(r)?),
                log: Arc::clone(&l),
                fault,
            }))
        }),
    );
    (boot, log)
}

#[test]
fn env2_is_durable_before_env1_is_touched() {
    let d = Scratch::of(512);
    let region = d.region(Role::OsState);
    let (boot, log) = wrapped(region, Fault::None);
    boot.write(&Env::committed(Slot::B, 2)).unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        ["write 16384+4096", "flush", "write 12288+4096", "flush"]
    );
}

#[test]
fn every_failure_is_a_failed_write_and_leaves_a_valid_copy() {
    for fault in [
        Fault::WriteFails(16384),
        Fault::WriteFails(12288),
        Fault::WriteLost(16384),
        Fault::WriteLost(12288),
        Fault::FlushFails,
    ] {
        let d = Scratch::of(512);
        let region = d.region(Role::OsState);
        let (boot, _log) = wrapped(region.clone(), fault);
        let e = boot.write(&Env::committed(Slot::B, 2)).unwrap_err();
        assert_eq!(e.code, Code::EnvWriteFailed, "{e}");
        let c = DualEnv::new(region).read().unwrap();
        assert!(c.effective().is_some());
    }
}

#[test]
fn t22_eight_writers_take_turns() {
    let d = Scratch::of(512);
    let region = d.region(Role::OsState);
    std::thread::scope(|s| {
        for n in 0..8u32 {
            let region = region.clone();
            s.spawn(move || {
                for i in 0..5 {
                    // In one process the lock is shared; the engine has one writer. Both copies stay valid blocks.
                    let _ = DualEnv::new(region.clone()).write(&Env::committed(Slot::A, n * 100 + i));
                }
            });
        }
    });
    let c = DualEnv::new(region).read().unwrap();
    assert!(c.env1.is_ok() && c.env2.is_ok());
}
