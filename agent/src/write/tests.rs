#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]
use super::*;
use crate::payload;
use crate::payload::tests::{Pieces, gz, zst};
use crate::ports::Download;
use crate::slots::{self, DiskFact, TableFact};
use crate::testdisk::{Recorder, TestDisk, fake_ext4};
use crate::verify;
use camino::Utf8Path;
use os_proto::layout::{Arch, MIB, PHYSICAL_ORDER};
use proptest::prelude::*;
use sha2::Sha256;
use std::sync::Mutex;

const SLOT: u64 = 4 * MIB;

/// A slot in memory that counts, fails and lies on demand. Shared, so that a test sees what stays.
#[derive(Default)]
pub(super) struct Medium {
    pub(super) data: Vec<u8>,
    /// Written and not yet flushed: lost by `power_cut`.
    pub(super) log: Vec<Op>,
    pub(super) written: u64,
    /// The n-th write from now fails.
    pub(super) fail_write: Option<usize>,
    /// The n-th write from now is dropped silently.
    pub(super) lose_write: Option<usize>,
    /// The n-th flush from now fails.
    pub(super) fail_flush: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    Write(u64, Vec<u8>),
    Flush,
    /// The journal holds this from here on.
    Journal(Vec<u8>),
}

fn hit(n: &mut Option<usize>) -> bool {
    match n {
        Some(0) => {
            *n = None;
            true
        }
        Some(k) => {
            *k -= 1;
            false
        }
        None => false,
    }
}

struct Mem(Arc<Mutex<Medium>>);

impl SlotDevice for Mem {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().data.len() as u64
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn write_at(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let m = &mut *self.0.lock().unwrap();
        assert_eq!((at % 4096, data.len() % 4096), (0, 0), "whole blocks only");
        assert_eq!(data.as_ptr().align_offset(4096), 0, "aligned for direct I/O");
        if hit(&mut m.fail_write) {
            return Err(AgentError::new(Code::MediumCorrupt, "write: EIO"));
        }
        m.written += data.len() as u64;
        if hit(&mut m.lose_write) {
            return Ok(());
        }
        m.data[at as usize..at as usize + data.len()].copy_from_slice(data);
        m.log.push(Op::Write(at, data.to_vec()));
        Ok(())
    }
    fn read_at(&mut self, at: u64, buf: &mut [u8]) -> Result<()> {
        let m = self.0.lock().unwrap();
        buf.copy_from_slice(&m.data[at as usize..at as usize + buf.len()]);
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        let m = &mut *self.0.lock().unwrap();
        if hit(&mut m.fail_flush) {
            return Err(AgentError::new(Code::Internal, "flush: EIO"));
        }
        m.log.push(Op::Flush);
        Ok(())
    }
    fn drop_cache(&mut self) -> Result<()> {
        Ok(())
    }
    fn describe(&self) -> String {
        "memory (ROOT-B)".into()
    }
}

fn medium(fill: u8) -> Arc<Mutex<Medium>> {
    Arc::new(Mutex::new(Medium {
        data: vec![fill; SLOT as usize],
        ..Medium::default()
    }))
}

fn layout() -> slots::Layout {
    let mut at = MIB;
    let entries = PHYSICAL_ORDER
        .iter()
        .map(|r| {
            at += SLOT;
            crate::gpt_table::Entry {
                number: r.number(),
                name: r.name().into(),
                type_guid: r.type_guid(Arch::X86_64),
                part_uuid: uuid::Uuid::from_u128(u128::from(r.number())),
                start: at - SLOT,
                size: SLOT,
            }
        })
        .collect();
    let disk = DiskFact {
        node: "/memory".into(),
        dev: None,
        size: at,
        sector_size: 512,
        table: TableFact::Gpt {
            entries,
            primary_damage: None,
            backup_damage: None,
        },
        nodes: vec![],
    };
    slots::offline(&disk, Slot::A).unwrap()
}

pub(super) fn open(m: &Arc<Mutex<Medium>>) -> OpenSlot {
    let device = Mem(Arc::clone(m));
    layout()
        .inactive()
        .unwrap()
        .open_with(|_| Ok(Box::new(device)))
        .unwrap()
}

pub(super) fn sha(data: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(data).into())
}

fn stage_from(
    m: &Arc<Mutex<Medium>>,
    d: Box<dyn Download>,
    sum: Sha256Digest,
    cancel: &Cancel,
) -> Result<Installed> {
    let slot = open(m);
    let payload = payload::open(d, slot.size())?;
    let wanted = verify::opaque(sum, &verify::Policy::default()).unwrap();
    let report: Arc<dyn Report> = Arc::new(Recorder::default());
    Ok(install(
        payload,
        &wanted,
        slot,
        &Limits::default(),
        None,
        cancel,
        &report,
    )?)
}

fn stage(m: &Arc<Mutex<Medium>>, file: &[u8]) -> Result<Installed> {
    stage_from(m, Pieces::of(file, 100_000, true), sha(file), &Cancel::default())
}

pub(super) fn mountable(m: &Arc<Mutex<Medium>>) -> bool {
    payload::sniff::ext4_bytes(&m.lock().unwrap().data[..4096]).is_some()
}

fn size_of(image: &[u8]) -> u64 {
    image.len().next_multiple_of(4096) as u64
}

#[test]
fn every_packing_ends_as_the_same_bytes_on_the_medium() {
    for len in [
        4096,
        MIB as usize,
        MIB as usize + 4096,
        3 * MIB as usize + 8192,
        SLOT as usize,
    ] {
        let image = fake_ext4(len, 7);
        for file in [image.clone(), gz(&image), zst(&image)] {
            let m = medium(0xee);
            let i = stage(&m, &file).unwrap();
            assert_eq!(i.slot(), Slot::B);
            assert_eq!((i.image_size(), i.image_sha256()), (len as u64, sha(&image)));
            assert_eq!(
                (i.payload_digest(), i.fetched()),
                (Some(sha(&file)), file.len() as u64)
            );
            let m = m.lock().unwrap();
            assert!(m.data[..len] == image[..]);
            assert!(
                m.data[len..].iter().all(|b| *b == 0xee),
                "nothing behind the image changes"
            );
            assert_eq!(i.written(), m.written);
            assert!(m.written <= size_of(&image) + MIB, "{} for {len}", m.written);
        }
    }
}

#[test]
fn a_tail_short_of_a_block_is_padded_with_zeros() {
    for short in [512, 1, 4095] {
        let mut image = fake_ext4(2 * MIB as usize, 7);
        image[1024 + 4..1024 + 8].copy_from_slice(&500u32.to_le_bytes());
        image.truncate(image.len() - short);
        let m = medium(0xee);
        let i = stage(&m, &image).unwrap();
        assert_eq!(
            (i.image_size(), i.image_sha256()),
            (image.len() as u64, sha(&image))
        );
        let m = m.lock().unwrap();
        assert!(m.data[image.len()..2 * MIB as usize].iter().all(|b| *b == 0));
    }
}

#[test]
fn the_first_block_is_zeroed_before_anything_else_and_written_last() {
    let image = fake_ext4(3 * MIB as usize, 7);
    let m = medium(0);
    m.lock().unwrap().data[..3 * MIB as usize].copy_from_slice(&fake_ext4(3 * MIB as usize, 8));
    stage(&m, &image).unwrap();
    let m = m.lock().unwrap();
    let Some(Op::Write(0, zeros)) = m.log.first() else {
        panic!("{:?}", m.log.len());
    };
    assert!(zeros.iter().all(|b| *b == 0));
    assert_eq!(m.log[1], Op::Flush, "durable before the first real write");
    let writes_to_zero: Vec<usize> = (0..m.log.len())
        .filter(|i| matches!(m.log[*i], Op::Write(0, _)))
        .collect();
    let last = m.log.len() - 2;
    assert_eq!(writes_to_zero, [0, last]);
    assert_eq!((&m.log[last - 1], &m.log[last + 1]), (&Op::Flush, &Op::Flush));
}

#[test]
fn at_every_cut_nothing_half_written_is_mountable() {
    let old = fake_ext4(3 * MIB as usize, 8);
    let image = fake_ext4(3 * MIB as usize, 7);
    let m = medium(0);
    m.lock().unwrap().data[..old.len()].copy_from_slice(&old);
    stage(&m, &image).unwrap();
    let log = m.lock().unwrap().log.clone();
    // Whatever of the writes since the last flush reached the medium: none, any one, all.
    for cut in 0..log.len() {
        let flushed = log[..cut]
            .iter()
            .rposition(|o| *o == Op::Flush)
            .map_or(0, |i| i + 1);
        let mut base = old.clone();
        let apply = |d: &mut Vec<u8>, op: &Op| {
            if let Op::Write(at, data) = op {
                d[*at as usize..*at as usize + data.len()].copy_from_slice(data);
            }
        };
        log[..flushed].iter().for_each(|o| apply(&mut base, o));
        for lone in flushed..=cut {
            let mut d = base.clone();
            if lone < cut {
                apply(&mut d, &log[lone]);
            } else {
                log[flushed..cut].iter().for_each(|o| apply(&mut d, o));
            }
            let mounts = payload::sniff::ext4_bytes(&d[..4096]).is_some();
            assert!(!mounts || d == old || d == image, "cut {cut}, lone {lone}");
        }
    }
}

#[test]
fn an_identical_image_is_read_and_not_written() {
    let image = fake_ext4(3 * MIB as usize + 4096, 7);
    let m = medium(1);
    stage(&m, &image).unwrap();
    m.lock().unwrap().written = 0;
    let again = stage(&m, &zst(&image)).unwrap();
    assert_eq!((again.written(), again.saved()), (0, image.len() as u64));
    // One changed byte costs its chunk and the head.
    let mut next = image.clone();
    next[2 * MIB as usize + 5] ^= 1;
    let third = stage(&m, &next).unwrap();
    assert!(third.written() <= MIB + 64 * 1024 * 17, "{}", third.written());
    assert!(m.lock().unwrap().data[..next.len()] == next[..]);
}

#[test]
fn zeros_are_written_unless_they_stand_there() {
    let mut image = fake_ext4(4 * MIB as usize, 7);
    image[MIB as usize..4 * MIB as usize].fill(0);
    let blank = medium(0);
    let i = stage(&blank, &image).unwrap();
    assert_eq!(i.saved(), 3 * MIB);
    let dirty = medium(0xaa);
    let i = stage(&dirty, &image).unwrap();
    assert_eq!(i.saved(), 0);
    for m in [blank, dirty] {
        assert!(m.lock().unwrap().data[..] == image[..]);
    }
}

#[test]
fn a_wrong_checksum_leaves_nothing_mountable() {
    let image = fake_ext4(3 * MIB as usize, 7);
    for file in [image.clone(), gz(&image), zst(&image)] {
        let m = medium(0);
        let e = stage_from(
            &m,
            Pieces::of(&file, 5000, false),
            Sha256Digest([1; 32]),
            &Cancel::default(),
        )
        .unwrap_err();
        assert_eq!(e.code, Code::ChecksumMismatch);
        assert!(e.message.contains(&sha(&file).to_string()), "{e}");
        assert!(!mountable(&m));
        // The same request with the right sum succeeds afterwards.
        stage(&m, &file).unwrap();
        assert!(mountable(&m));
    }
}

#[test]
fn a_truncated_image_is_named_by_what_is_missing() {
    let image = fake_ext4(3 * MIB as usize, 7);
    let cut = &image[..2 * MIB as usize + 100];
    let m = medium(0);
    let e = stage_from(&m, Pieces::of(cut, 5000, false), sha(&image), &Cancel::default()).unwrap_err();
    assert_eq!(e.code, Code::SizeMismatch);
    assert!(e.message.contains("1048476 bytes missing"), "{e}");
    assert!(!mountable(&m));
}

#[test]
fn an_image_that_grows_beyond_the_slot_is_stopped() {
    // Its superblock and headers say that it fits: only the bytes show it.
    let mut bomb = fake_ext4(SLOT as usize, 7);
    bomb.resize(64 * MIB as usize, 0);
    let mut w = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    std::io::Write::write_all(&mut w, &bomb).unwrap();
    for file in [gz(&bomb), w.finish().unwrap()] {
        let m = medium(0);
        let e = stage(&m, &file).unwrap_err();
        assert_eq!(e.code, Code::SlotTooSmall, "{e}");
        assert!(!mountable(&m));
    }
    let mut one_more = fake_ext4(SLOT as usize, 7);
    one_more.push(0);
    let m = medium(0);
    let e = stage_from(
        &m,
        Pieces::of(&one_more, 5000, false),
        sha(&one_more),
        &Cancel::default(),
    )
    .unwrap_err();
    assert_eq!(e.code, Code::SlotTooSmall);
    assert_eq!(
        stage(&m, &one_more).unwrap_err().code,
        Code::SlotTooSmall,
        "known by its length"
    );
}

#[test]
fn t13_one_byte_too_large_is_refused_and_the_slot_stays_as_it_is() {
    // A file system that fits in a file that does not.
    let mut long = fake_ext4(SLOT as usize, 7);
    long.push(0);
    let old = fake_ext4(SLOT as usize, 8);
    let sized = {
        let mut w = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        w.set_pledged_src_size(Some(long.len() as u64)).unwrap();
        w.include_contentsize(true).unwrap();
        std::io::Write::write_all(&mut w, &long).unwrap();
        w.finish().unwrap()
    };
    for file in [long, sized] {
        let m = medium(0);
        m.lock().unwrap().data.copy_from_slice(&old);
        let e = stage(&m, &file).unwrap_err();
        assert_eq!((e.code, e.code.exit_code()), (Code::SlotTooSmall, 3), "{e}");
        assert!(m.lock().unwrap().log.is_empty() && m.lock().unwrap().data == old);
        assert!(mountable(&m));
    }
}

#[test]
fn t12_a_bomb_of_one_gibibyte_is_stopped_at_the_end_of_the_slot() {
    let mut w = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    std::io::Write::write_all(&mut w, &fake_ext4(MIB as usize, 7)).unwrap();
    let zeros = vec![0u8; MIB as usize];
    for _ in 0..1023 {
        std::io::Write::write_all(&mut w, &zeros).unwrap();
    }
    let bomb = w.finish().unwrap();
    assert!(bomb.len() < 4 * MIB as usize, "{}", bomb.len());
    let m = medium(0x55);
    let e = stage(&m, &bomb).unwrap_err();
    assert_eq!((e.code, e.code.exit_code()), (Code::SlotTooSmall, 3), "{e}");
    assert!(!mountable(&m));
    assert!(
        m.lock().unwrap().written <= SLOT + MIB,
        "nothing behind the slot's end"
    );
    // The slot is as good as before for the next image.
    stage(&m, &fake_ext4(MIB as usize, 9)).unwrap();
}

#[test]
fn kf_a8_a_failing_medium_is_noticed_wherever_it_fails() {
    let image = fake_ext4(3 * MIB as usize, 7);
    let mut lost = 0;
    for n in 0..8 {
        let m = medium(0xee);
        m.lock().unwrap().fail_write = Some(n);
        match stage(&m, &image) {
            Err(e) => assert_eq!(e.code, Code::MediumCorrupt, "write {n}: {e}"),
            Ok(_) => assert!(m.lock().unwrap().fail_write.is_some(), "write {n} never happened"),
        }
        let m = medium(0xee);
        m.lock().unwrap().fail_flush = Some(n);
        match stage(&m, &image) {
            Err(e) => assert_eq!(e.code, Code::Internal, "flush {n}: {e}"),
            Ok(_) => assert!(m.lock().unwrap().fail_flush.is_some()),
        }
        let m = medium(0xee);
        m.lock().unwrap().lose_write = Some(n);
        match stage(&m, &image) {
            // The zeroing of the head is written over in the end.
            Ok(_) => assert!(
                n == 0 || m.lock().unwrap().lose_write.is_some(),
                "lost write {n} was believed"
            ),
            Err(e) => {
                lost += 1;
                assert_eq!(e.code, Code::MediumCorrupt, "{e}");
                assert!(e.message.contains("chunk"), "{e}");
                // Another attempt writes what differs: one chunk, and the head that kept the slot from being mounted.
                let before = m.lock().unwrap().written;
                stage(&m, &image).unwrap();
                assert!(m.lock().unwrap().data[..image.len()] == image[..]);
                let more = m.lock().unwrap().written - before;
                assert!(more <= 2 * MIB + (64 << 10), "{more} for lost write {n}");
            }
        }
    }
    assert!(lost >= 4, "{lost}");
}

#[test]
fn a_cancel_ends_it_and_the_next_attempt_succeeds() {
    let image = fake_ext4(3 * MIB as usize, 7);
    struct CancelAt(Box<dyn Download>, usize, Cancel);
    impl Download for CancelAt {
        fn total(&self) -> Option<u64> {
            self.0.total()
        }
        fn next(&mut self) -> Result<Option<bytes::Bytes>> {
            if self.1 == 0 {
                self.2.cancel();
            }
            self.1 = self.1.wrapping_sub(1);
            self.2.check()?;
            self.0.next()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    let m = medium(3);
    for at in [0, 1, 15, 31] {
        let cancel = Cancel::default();
        let d = CancelAt(Pieces::of(&image, 100_000, true), at, cancel.clone());
        let e = stage_from(&m, Box::new(d), sha(&image), &cancel).unwrap_err();
        assert_eq!(e.code, Code::Cancelled, "at {at}");
        assert!(!mountable(&m));
    }
    stage(&m, &image).unwrap();
}

#[test]
fn a_retryable_error_of_the_source_comes_out_as_it_is() {
    let image = fake_ext4(3 * MIB as usize, 7);
    let changed = AgentError::new(Code::ObjectChanged, "changed");
    let d = Box::new(Pieces {
        pieces: image[..MIB as usize]
            .chunks(5000)
            .map(bytes::Bytes::copy_from_slice)
            .collect(),
        total: None,
        fail: Some(changed.clone()),
    });
    let m = medium(0);
    assert_eq!(
        stage_from(&m, d, sha(&image), &Cancel::default()).unwrap_err(),
        changed
    );
}

#[test]
fn reading_back_proves_or_refuses() {
    let image = fake_ext4(2 * MIB as usize, 7);
    let m = medium(9);
    drop(stage(&m, &image).unwrap());
    let report: Arc<dyn Report> = Arc::new(Recorder::default());
    let back = |size, sum| read_back(open(&m), size, sum, None, &Cancel::default(), &report);
    let i = back(image.len() as u64, sha(&image)).unwrap();
    assert_eq!((i.written(), i.image_sha256()), (0, sha(&image)));
    assert_eq!(
        back(image.len() as u64, Sha256Digest([0; 32])).unwrap_err().code,
        Code::ChecksumMismatch
    );
    assert_eq!(back(SLOT + 1, sha(&image)).unwrap_err().code, Code::SlotTooSmall);
    m.lock().unwrap().data[2 * MIB as usize - 1] ^= 1;
    assert_eq!(
        back(image.len() as u64, sha(&image)).unwrap_err().code,
        Code::ChecksumMismatch
    );
    let mut dev = Mem(Arc::clone(&m));
    let now = verify::hash_slot(&mut dev, 1000, &Cancel::default(), &*report).unwrap();
    assert_eq!(now, sha(&image[..1000]));
}

#[test]
fn on_a_plain_file_nothing_but_the_slot_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
    TestDisk::default().create(&path);
    let before = std::fs::read(&path).unwrap();
    let image = fake_ext4(3 * MIB as usize + 512, 7);
    let layout = crate::sys::discover::offline(&path, Slot::A).unwrap();
    let region = layout.region(os_proto::layout::Role::RootB).unwrap();
    let slot = layout.inactive().unwrap().open().unwrap();
    let file = dir.path().join("update.img");
    std::fs::write(&file, &image).unwrap();
    let d = crate::fetch::file::open(Utf8Path::from_path(&file).unwrap(), SLOT, &Cancel::default()).unwrap();
    let payload = payload::open(d, slot.size()).unwrap();
    let wanted = verify::opaque(sha(&image), &verify::Policy::default()).unwrap();
    let recorder = Arc::new(Recorder::default());
    let report: Arc<dyn Report> = Arc::clone(&recorder) as Arc<dyn Report>;
    let i = install(
        payload,
        &wanted,
        slot,
        &Limits::default(),
        None,
        &Cancel::default(),
        &report,
    )
    .unwrap();
    assert_eq!(i.image_size(), image.len() as u64);
    assert_eq!(
        *recorder.steps.lock().unwrap(),
        [
            ("fetch", Some(image.len() as u64)),
            ("read-back", Some(image.len() as u64))
        ]
    );
    let after = std::fs::read(&path).unwrap();
    let (a, b) = (region.offset as usize, (region.offset + region.size) as usize);
    assert!(before[..a] == after[..a] && before[b..] == after[b..]);
    assert!(after[a..a + image.len()] == image[..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_pieces_over_any_old_content(seed: u32, blocks in 1usize..1024, piece in 500usize..2_000_000, packing in 0..3, fill: u8, keep in 0usize..1024) {
        let image = fake_ext4(blocks * 4096, seed);
        let file = match packing { 0 => image.clone(), 1 => gz(&image), _ => zst(&image) };
        let m = medium(fill);
        let keep = keep.min(blocks) * 4096;
        m.lock().unwrap().data[..keep].copy_from_slice(&image[..keep]);
        let i = stage_from(&m, Pieces::of(&file, piece, packing != 0), sha(&file), &Cancel::default()).unwrap();
        let m = m.lock().unwrap();
        prop_assert!(m.data[..image.len()] == image[..]);
        prop_assert!(i.written() <= image.len() as u64 + MIB);
    }
}

/// An image of zeros behind a superblock, made as it is read; its last byte may be another one.
struct Zeros {
    size: u64,
    at: u64,
    last: u8,
}

impl Download for Zeros {
    fn total(&self) -> Option<u64> {
        Some(self.size)
    }
    fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        let n = (self.size - self.at).min(1 << 20) as usize;
        if n == 0 {
            return Ok(None);
        }
        let mut b = vec![0; n];
        if self.at == 0 {
            b[..2048].copy_from_slice(&fake_ext4(2048, 1));
            let blocks = (self.size / 4096) as u32;
            b[1024 + 4..1024 + 8].copy_from_slice(&blocks.to_le_bytes());
        }
        self.at += n as u64;
        if self.at == self.size {
            b[n - 1] = self.last;
        }
        Ok(Some(b.into()))
    }
    fn describe(&self) -> String {
        "zeros".into()
    }
}

#[test]
#[ignore = "hashes 16 GiB"]
fn t14_the_last_byte_of_a_large_image_counts() {
    for size in [2 << 30, (4u64 << 30) + 4096] {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
        TestDisk {
            slot_mib: 4100,
            ..TestDisk::default()
        }
        .create(&path);
        let zeros = |last| Zeros { size, at: 0, last };
        let mut sha = Sha256::new();
        let mut d = zeros(0);
        while let Some(b) = d.next().unwrap() {
            sha.update(&b);
        }
        let wanted = verify::opaque(Sha256Digest(sha.finalize().into()), &verify::Policy::default()).unwrap();
        let run = |last| {
            let layout = crate::sys::discover::offline(&path, Slot::A).unwrap();
            let slot = layout.inactive().unwrap().open().unwrap();
            let payload = payload::open(Box::new(zeros(last)), slot.size())?;
            let report: Arc<dyn Report> = Arc::new(Recorder::default());
            install(
                payload,
                &wanted,
                slot,
                &Limits::default(),
                None,
                &Cancel::default(),
                &report,
            )
        };
        assert_eq!(run(1).unwrap_err().error.code, Code::ChecksumMismatch, "{size}");
        assert_eq!(run(0).unwrap().image_size(), size);
    }
}
