#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]
use super::super::tests::{Medium, Op, mountable, open, sha};
use super::super::{Installed, Limits, install};
use super::*;
use crate::error::AgentError;
use crate::payload;
use crate::payload::tests::zst;
use crate::ports::Download;
use crate::sys::journal::JournalFile;
use crate::testdisk::{Recorder, fake_ext4};
use crate::verify;
use bytes::Bytes;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;
const SLOT: usize = 24 * MIB;
/// Larger than two checkpoints, and with a tail that is no whole block.
const IMAGE: usize = 11 * MIB + 8192 + 512;

/// A journal in memory that notes in the medium's log when it becomes durable.
#[derive(Clone)]
struct MemJournal {
    bytes: Arc<Mutex<Vec<u8>>>,
    medium: Arc<Mutex<Medium>>,
    broken: bool,
}

impl MemJournal {
    fn on(medium: &Arc<Mutex<Medium>>, bytes: Vec<u8>) -> MemJournal {
        MemJournal {
            bytes: Arc::new(Mutex::new(bytes)),
            medium: Arc::clone(medium),
            broken: false,
        }
    }

    fn now(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn durable(&self) -> Result<()> {
        let now = self.now();
        self.medium.lock().unwrap().log.push(Op::Journal(now));
        Ok(())
    }
}

impl JournalStore for MemJournal {
    fn read(&mut self) -> Result<Vec<u8>> {
        Ok(self.now())
    }
    fn reset(&mut self, header: &[u8], _: u64) -> Result<()> {
        if self.broken {
            return Err(AgentError::new(Code::StateWriteFailed, "No space left"));
        }
        *self.bytes.lock().unwrap() = header.to_vec();
        self.durable()
    }
    fn append(&mut self, at: u64, records: &[u8]) -> Result<()> {
        let mut b = self.bytes.lock().unwrap();
        b.truncate(at as usize);
        assert_eq!(b.len() as u64, at, "no gap");
        b.extend_from_slice(records);
        drop(b);
        self.durable()
    }
    fn clear(&mut self) -> Result<()> {
        self.bytes.lock().unwrap().clear();
        self.durable()
    }
}

/// A source that can pass over bytes, counts what it hands out and breaks after so many.
struct Served {
    data: Arc<Vec<u8>>,
    at: usize,
    handed: Arc<AtomicU64>,
    break_after: Option<u64>,
    skips: bool,
}

impl Download for Served {
    fn total(&self) -> Option<u64> {
        Some(self.data.len() as u64)
    }
    fn next(&mut self) -> Result<Option<Bytes>> {
        if self
            .break_after
            .is_some_and(|b| self.handed.load(Ordering::SeqCst) >= b)
        {
            return Err(AgentError::new(Code::FetchFailed, "the connection broke"));
        }
        let end = (self.at + 100_000).min(self.data.len());
        if self.at == end {
            return Ok(None);
        }
        let b = Bytes::copy_from_slice(&self.data[self.at..end]);
        self.handed.fetch_add(b.len() as u64, Ordering::SeqCst);
        self.at = end;
        Ok(Some(b))
    }
    fn skip(&mut self, n: u64) -> Result<u64> {
        if !self.skips {
            return Ok(0);
        }
        let n = n.min((self.data.len() - self.at) as u64);
        self.at += n as usize;
        Ok(n)
    }
    fn describe(&self) -> String {
        "http://test/image".into()
    }
}

fn medium(fill: u8) -> Arc<Mutex<Medium>> {
    Arc::new(Mutex::new(Medium {
        data: vec![fill; SLOT],
        ..Medium::default()
    }))
}

fn key(file: &[u8]) -> Key {
    Key {
        checksum: sha(file),
        part_uuid: uuid::Uuid::from_u128(3),
        slot_size: SLOT as u64,
        origin: Sha256Digest([1; 32]),
    }
}

struct Ran {
    result: Result<Installed>,
    fetched: u64,
}

fn stage(
    m: &Arc<Mutex<Medium>>,
    journal: &MemJournal,
    file: &[u8],
    break_after: Option<u64>,
    skips: bool,
) -> Ran {
    let handed = Arc::new(AtomicU64::new(0));
    let d = Box::new(Served {
        data: Arc::new(file.to_vec()),
        at: 0,
        handed: Arc::clone(&handed),
        break_after,
        skips,
    });
    let report: Arc<dyn Report> = Arc::new(Recorder::default());
    let run = || {
        let slot = open(m);
        let payload = payload::open(d, slot.size())?;
        let wanted = verify::opaque(sha(file), &verify::Policy::default())?;
        Ok(install(
            payload,
            &wanted,
            slot,
            &Limits::default(),
            Some((Box::new(journal.clone()), key(file))),
            &Cancel::default(),
            &report,
        )?)
    };
    Ran {
        result: run(),
        fetched: handed.load(Ordering::SeqCst),
    }
}

fn image() -> Vec<u8> {
    let mut i = fake_ext4(IMAGE, 7);
    i[1024 + 4..1024 + 8].copy_from_slice(&((IMAGE / 4096) as u32).to_le_bytes());
    // Zeros in the middle, as every image has them.
    i[5 * MIB..7 * MIB].fill(0);
    i
}

#[track_caller]
fn whole(m: &Arc<Mutex<Medium>>, r: &Ran, image: &[u8]) {
    let i = r.result.as_ref().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (i.image_size(), i.image_sha256()),
        (image.len() as u64, sha(image))
    );
    assert!(m.lock().unwrap().data[..image.len()] == image[..]);
}

#[test]
fn t2_what_was_journalled_is_not_fetched_again() {
    let image = image();
    for skips in [true, false] {
        let m = medium(0xee);
        let j = MemJournal::on(&m, Vec::new());
        let half = stage(&m, &j, &image, Some(6 * MIB as u64), skips);
        assert_eq!(half.result.unwrap_err().code, Code::FetchFailed);
        assert!(!mountable(&m));
        let k = known(&mut j.clone(), &key(&image)).unwrap();
        assert_eq!(k.total, image.len() as u64);
        let rest = stage(&m, &j, &image, None, skips);
        whole(&m, &rest, &image);
        if skips {
            let most = (image.len() - 6 * MIB + 4 * MIB) as u64;
            assert!(rest.fetched <= most, "{} of {}", rest.fetched, image.len());
            let i = rest.result.unwrap();
            assert!(i.written() <= i.image_size() - 4 * MIB as u64, "{}", i.written());
        } else {
            assert_eq!(
                rest.fetched,
                image.len() as u64,
                "read and dropped, never spliced"
            );
        }
    }
}

#[test]
fn five_cuts_cost_at_most_one_chunk_each() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    let mut fetched = 0;
    for _ in 0..5 {
        let r = stage(&m, &j, &image, Some(3 * MIB as u64), true);
        assert_eq!(r.result.unwrap_err().code, Code::FetchFailed);
        fetched += r.fetched;
    }
    let r = stage(&m, &j, &image, None, true);
    whole(&m, &r, &image);
    fetched += r.fetched;
    // Each attempt fetches the first chunk anew and loses the chunk that was cut through.
    let extra = fetched - image.len() as u64;
    assert!(extra <= 5 * 2 * MIB as u64, "{extra}");
}

#[test]
fn chunks_are_written_then_flushed_then_journalled() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    whole(&m, &stage(&m, &j, &image, None, true), &image);
    let log = m.lock().unwrap().log.clone();
    let mut seen = 0;
    for (i, op) in log.iter().enumerate() {
        let Op::Journal(bytes) = op else { continue };
        let Some(parsed) = journal::parse(bytes) else {
            continue;
        };
        for n in seen..parsed.sums.len() {
            let at = ((n + 1) * MIB) as u64;
            let wrote = log[..i]
                .iter()
                .position(|o| matches!(o, Op::Write(a, _) if *a == at))
                .unwrap_or_else(|| panic!("chunk {} is journalled and was never written", n + 1));
            assert!(
                log[wrote..i].contains(&Op::Flush),
                "chunk {} was journalled before a flush",
                n + 1
            );
        }
        seen = parsed.sums.len();
    }
    assert_eq!(seen, IMAGE.div_ceil(MIB) - 1, "everything but the first chunk");
}

/// What the medium and the journal hold when the power fails after `cut` operations; `keep` = unflushed writes survived.
fn after_cut(log: &[Op], cut: usize, keep: bool) -> (Vec<u8>, Vec<u8>) {
    let flushed = log[..cut].iter().rposition(|o| *o == Op::Flush).unwrap_or(0);
    let (mut data, mut journal) = (vec![0xee; SLOT], Vec::new());
    for (i, op) in log[..cut].iter().enumerate() {
        match op {
            Op::Write(at, b) if i < flushed || keep => {
                data[*at as usize..*at as usize + b.len()].copy_from_slice(b);
            }
            Op::Journal(b) => journal.clone_from(b),
            _ => {}
        }
    }
    (data, journal)
}

#[test]
fn after_any_cut_the_same_request_finishes_with_the_right_bytes() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    whole(&m, &stage(&m, &j, &image, None, true), &image);
    let log = m.lock().unwrap().log.clone();
    for cut in (0..=log.len()).step_by(2) {
        for keep in [false, true] {
            let (data, bytes) = after_cut(&log, cut, keep);
            let after = medium(0);
            after.lock().unwrap().data = data;
            let known = journal::parse(&bytes).map_or(0, |p| p.sums.len() as u64);
            let j = MemJournal::on(&after, bytes);
            let r = stage(&after, &j, &image, None, true);
            whole(&after, &r, &image);
            let most =
                image.len() as u64 - (known * MIB as u64).min(image.len() as u64 - 1) + MIB as u64 + 100_000;
            assert!(
                r.fetched <= most,
                "cut {cut}: {} fetched, {known} known",
                r.fetched
            );
        }
    }
}

#[test]
fn t5_a_download_that_was_complete_fetches_the_first_chunk_only() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    whole(&m, &stage(&m, &j, &image, None, true), &image);
    // Cut before the first block was written.
    m.lock().unwrap().data[..4096].fill(0);
    let r = stage(&m, &j, &image, None, true);
    whole(&m, &r, &image);
    assert!(r.fetched <= MIB as u64 + 100_000, "{}", r.fetched);
}

#[test]
fn a_journal_that_lies_is_found_out() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    assert!(stage(&m, &j, &image, Some(8 * MIB as u64), true).result.is_err());
    let good = (m.lock().unwrap().data.clone(), j.now());
    let chunks = journal::parse(&good.1).unwrap().sums.len();
    assert!(chunks >= 6, "{chunks}");
    // Another byte on the slot; a torn record; another image, slot or size under the same journal.
    m.lock().unwrap().data[3 * MIB + 17] ^= 1;
    let r = stage(&m, &j, &image, None, true);
    whole(&m, &r, &image);
    assert!(r.fetched >= 8 * MIB as u64, "{}", r.fetched);

    let torn = MemJournal::on(&m, good.1[..good.1.len() - 5].to_vec());
    m.lock().unwrap().data.clone_from(&good.0);
    whole(&m, &stage(&m, &torn, &image, None, true), &image);

    let mut next = image.clone();
    next[9 * MIB] ^= 1;
    m.lock().unwrap().data.clone_from(&good.0);
    let other = MemJournal::on(&m, good.1.clone());
    assert!(known(&mut other.clone(), &key(&next)).is_none());
    let r = stage(&m, &other, &next, None, true);
    whole(&m, &r, &next);
    assert_eq!(r.fetched, next.len() as u64);
    let mut elsewhere = key(&image);
    elsewhere.part_uuid = uuid::Uuid::from_u128(4);
    let store = MemJournal::on(&m, good.1.clone());
    assert!(known(&mut store.clone(), &elsewhere).is_none());
}

#[test]
fn a_packed_image_leaves_no_journal_that_could_mislead() {
    let image = image();
    let m = medium(0xee);
    let j = MemJournal::on(&m, Vec::new());
    assert!(stage(&m, &j, &image, Some(8 * MIB as u64), true).result.is_err());
    assert!(!j.now().is_empty());
    whole(&m, &stage(&m, &j, &zst(&image), None, true), &image);
    assert!(j.now().is_empty());
    let log = m.lock().unwrap().log.clone();
    let cleared = log.iter().rposition(|o| *o == Op::Journal(Vec::new())).unwrap();
    let first_of_second = log.iter().skip(cleared).any(|o| matches!(o, Op::Write(..)));
    assert!(first_of_second, "cleared before anything was written");
}

#[test]
fn without_room_for_a_journal_it_installs_all_the_same() {
    let image = image();
    let m = medium(0xee);
    let mut j = MemJournal::on(&m, Vec::new());
    j.broken = true;
    whole(&m, &stage(&m, &j, &image, None, true), &image);
    assert!(j.now().is_empty());
}

#[test]
fn identical_blocks_and_zeros_are_not_rewritten_on_the_way() {
    let image = image();
    let m = medium(0);
    // Half of the image is there from an attempt whose journal was lost.
    m.lock().unwrap().data[MIB..6 * MIB].copy_from_slice(&image[MIB..6 * MIB]);
    let j = MemJournal::on(&m, Vec::new());
    let r = stage(&m, &j, &image, None, true);
    whole(&m, &r, &image);
    let i = r.result.unwrap();
    assert!(i.saved() >= 6 * MIB as u64, "{}", i.saved());
    assert!(i.written() <= 6 * MIB as u64, "{}", i.written());
}

#[test]
fn the_file_journal_carries_an_installation_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = camino::Utf8PathBuf::from_path_buf(dir.path().join("stage.journal")).unwrap();
    let image = image();
    let m = medium(0xee);
    let run = |break_after| {
        let handed = Arc::new(AtomicU64::new(0));
        let d = Box::new(Served {
            data: Arc::new(image.clone()),
            at: 0,
            handed: Arc::clone(&handed),
            break_after,
            skips: true,
        });
        let slot = open(&m);
        let payload = payload::open(d, slot.size()).unwrap();
        let wanted = verify::opaque(sha(&image), &verify::Policy::default()).unwrap();
        let report: Arc<dyn Report> = Arc::new(Recorder::default());
        let store: Box<dyn JournalStore> = Box::new(JournalFile::new(path.clone()));
        let r = install(
            payload,
            &wanted,
            slot,
            &Limits::default(),
            Some((store, key(&image))),
            &Cancel::default(),
            &report,
        );
        (r, handed.load(Ordering::SeqCst))
    };
    assert!(run(Some(7 * MIB as u64)).0.is_err());
    let (r, fetched) = run(None);
    assert_eq!(r.unwrap().image_sha256(), sha(&image));
    assert!(fetched <= (image.len() - 7 * MIB + 3 * MIB) as u64, "{fetched}");
}
