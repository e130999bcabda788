//! PURE: the bytes of the journal, `<state>/stage.journal`: which chunks of an image that is not packed lie on the slot.
//!
//! A header of 512 bytes names checksum, slot and object; records of 32 bytes follow, each for one chunk that was flushed to
//! the medium before. A record that does not fit ends the journal. Nothing in it is believed: each chunk is read from the
//! slot and compared, and in the end the whole image's hash decides.
//!
//! All numbers are little-endian.

use super::CHUNK;
use crate::ports::Object;
use os_proto::digest::Sha256Digest;
use uuid::Uuid;

/// Bytes of the header.
pub(super) const HEADER: usize = 512;
/// Bytes of one record.
pub(super) const RECORD: usize = 32;
const MAGIC: &[u8; 8] = b"SLIPJRN1";
const RECORD_MAGIC: &[u8; 4] = b"SJR1";
const ETAG_MAX: usize = 256;
const MODIFIED_MAX: usize = 64;

/// What a journal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Checksum of the payload file.
    pub checksum: Sha256Digest,
    /// PARTUUID of the slot.
    pub part_uuid: Uuid,
    /// Size of the slot in bytes.
    pub slot_size: u64,
    /// SHA-256 of where the payload comes from: validators of one server mean nothing to another.
    pub origin: Sha256Digest,
}

/// The header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key: Key,
    pub(super) object: Object,
}

/// A journal that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journal {
    pub(super) header: Header,
    /// What each record's checksum begins with.
    pub(super) seed: u32,
    /// CRC-32C of the chunks from number 1 on, padded to whole blocks.
    pub(super) sums: Vec<u32>,
}

impl Header {
    /// The header's bytes, and the seed of its records.
    pub(super) fn encode(&self) -> (Vec<u8>, u32) {
        let mut b = Vec::with_capacity(HEADER);
        b.extend_from_slice(MAGIC);
        b.extend_from_slice(&(HEADER as u32).to_le_bytes());
        b.extend_from_slice(&(CHUNK as u32).to_le_bytes());
        b.extend_from_slice(&self.key.checksum.0);
        b.extend_from_slice(self.key.part_uuid.as_bytes());
        b.extend_from_slice(&self.key.slot_size.to_le_bytes());
        b.extend_from_slice(&self.object.total.to_le_bytes());
        b.extend_from_slice(&self.key.origin.0);
        text(&mut b, self.object.etag.as_deref(), ETAG_MAX);
        text(&mut b, self.object.modified.as_deref(), MODIFIED_MAX);
        b.resize(HEADER - 4, 0);
        let crc = crc32c::crc32c(&b);
        b.extend_from_slice(&crc.to_le_bytes());
        (b, crc)
    }
}

/// Adds a length and a text; one that is too long is left out.
fn text(to: &mut Vec<u8>, text: Option<&str>, max: usize) {
    let t = text.filter(|t| t.len() <= max).unwrap_or_default().as_bytes();
    to.extend_from_slice(&(t.len() as u16).to_le_bytes());
    to.extend_from_slice(t);
    to.resize(to.len() + max - t.len(), 0);
}

/// The record of one chunk.
pub(super) fn record(seed: u32, index: u64, sum: u32) -> [u8; RECORD] {
    let mut r = [0u8; RECORD];
    let body = [
        RECORD_MAGIC.as_slice(),
        &sum.to_le_bytes(),
        &index.to_le_bytes(),
        &[0; 12],
    ]
    .concat();
    let crc = crc32c::crc32c_append(seed, &body);
    for (to, from) in r.iter_mut().zip(body.iter().chain(&crc.to_le_bytes())) {
        *to = *from;
    }
    r
}

/// Reads a journal as far as it is whole; `None` when its header is not.
pub(super) fn parse(bytes: &[u8]) -> Option<Journal> {
    let head = bytes.get(..HEADER)?;
    let (body, crc) = head.split_at_checked(HEADER - 4)?;
    let seed = u32::from_le_bytes(crc.try_into().ok()?);
    if crc32c::crc32c(body) != seed {
        return None;
    }
    let mut r = Fields(body);
    if r.take(8)? != MAGIC || r.u32()? != HEADER as u32 || r.u32()? != CHUNK as u32 {
        return None;
    }
    let checksum = Sha256Digest(r.take(32)?.try_into().ok()?);
    let part_uuid = Uuid::from_slice(r.take(16)?).ok()?;
    let (slot_size, total) = (r.u64()?, r.u64()?);
    let origin = Sha256Digest(r.take(32)?.try_into().ok()?);
    let etag = r.text(ETAG_MAX)?;
    let modified = r.text(MODIFIED_MAX)?;
    let mut sums = Vec::new();
    for (i, rec) in (1u64..).zip(bytes.get(HEADER..)?.chunks_exact(RECORD)) {
        let sum = u32::from_le_bytes(rec.get(4..8)?.try_into().ok()?);
        if rec != record(seed, i, sum) {
            break;
        }
        sums.push(sum);
    }
    Some(Journal {
        header: Header {
            key: Key {
                checksum,
                part_uuid,
                slot_size,
                origin,
            },
            object: Object {
                total,
                etag,
                modified,
            },
        },
        seed,
        sums,
    })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (a, b) = self.0.split_at_checked(n)?;
        self.0 = b;
        Some(a)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A text or none; the outer `None` = damaged.
    fn text(&mut self, max: usize) -> Option<Option<String>> {
        let len = usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?));
        let t = String::from_utf8(self.take(max)?.get(..len)?.to_vec()).ok()?;
        Some((!t.is_empty()).then_some(t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(etag: Option<&str>) -> Header {
        Header {
            key: Key {
                checksum: Sha256Digest([7; 32]),
                part_uuid: Uuid::from_u128(5),
                slot_size: 1 << 40,
                origin: Sha256Digest([9; 32]),
            },
            object: Object {
                total: 3 << 20,
                etag: etag.map(str::to_owned),
                modified: Some("Mon, 01 Jan 2024 00:00:00 GMT".into()),
            },
        }
    }

    fn sample(n: u64) -> Vec<u8> {
        let (mut b, seed) = header(Some("\"v1\"")).encode();
        for i in 1..=n {
            b.extend(record(seed, i, i as u32 * 77));
        }
        b
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_record_ends_it() {
        let b = sample(3);
        assert_eq!(b.len(), HEADER + 3 * RECORD);
        let j = parse(&b).unwrap();
        assert_eq!((j.header, j.sums), (header(Some("\"v1\"")), vec![77, 154, 231]));
        let mut torn = b.clone();
        *torn.last_mut().unwrap() ^= 1;
        assert_eq!(parse(&torn).unwrap().sums, [77, 154]);
        // Room that was reserved and never written.
        let mut room = b.clone();
        room.resize(4096, 0);
        assert_eq!(parse(&room).unwrap().sums.len(), 3);
        // A record of another header does not count.
        let (mut other, _) = header(None).encode();
        other.extend_from_slice(b.get(HEADER..).unwrap());
        assert!(parse(&other).unwrap().sums.is_empty());
    }

    #[test]
    fn a_damaged_header_is_none_and_a_long_validator_is_left_out() {
        let b = sample(1);
        for i in 0..HEADER {
            let mut d = b.clone();
            if let Some(x) = d.get_mut(i) {
                *x ^= 0x10;
            }
            assert_eq!(parse(&d), None, "byte {i}");
        }
        let long = "e".repeat(300);
        let (h, _) = header(Some(&long)).encode();
        assert_eq!(h.len(), HEADER);
        assert_eq!(parse(&h).unwrap().header.object.etag, None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(b in proptest::collection::vec(any::<u8>(), 0..700), keep in 0usize..600) {
            let _ = parse(&b);
            let s = sample(2);
            let _ = parse(&[s.get(..keep.min(s.len())).unwrap(), &b].concat());
        }
    }
}
