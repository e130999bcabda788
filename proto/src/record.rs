//! Slot records, `<state>/slots/{A,B}.json`: what a slot holds and under which digests it is known.
//!
//! imgbuild writes slot A's record for the factory image into PERSIST; afterwards the agent owns both. A record is the
//! only claim about a slot's identity: without one the slot is unknown, and it may lag behind the disk, so the agent
//! marks it dirty before the first byte of a write.

use crate::digest::Sha256Digest;
use serde::{Deserialize, Serialize};

/// Version of the record format that this code writes.
pub const SCHEMA: u32 = 1;
/// Oldest reader that understands what this code writes.
pub const MIN_READER: u32 = 1;

/// State of a slot's content as far as the agent knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A write began; nothing may boot this.
    Dirty,
    /// The whole image was read back from the medium and matched.
    Verified,
    /// Written by imgbuild at the factory.
    Factory,
}

/// What one slot holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Format version, [`SCHEMA`].
    pub schema: u32,
    /// A reader older than this must not interpret the record (it then counts the slot as unknown).
    pub min_reader: u32,
    /// VERSION_ID of the image.
    pub version: String,
    /// PRETTY_NAME of the image.
    #[serde(default)]
    pub os_image: String,
    /// Size of the image in bytes, at most the slot's.
    pub image_size: u64,
    /// Hash of the image's `image_size` bytes on the medium.
    pub image_sha256: Sha256Digest,
    /// Every checksum under which this content was or could be staged: file hash, manifest digest.
    #[serde(default)]
    pub payload_digests: Vec<Sha256Digest>,
    /// What is known of the content.
    pub content: Content,
    /// When it was verified, Unix seconds; 0 = unknown.
    #[serde(default)]
    pub verified_unix: i64,
    /// Keys that this version does not know; they survive a rewrite.
    #[serde(flatten)]
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

impl SlotRecord {
    /// Whether the slot *is* `digest`: its image hash or one of its payload digests, and whole.
    pub fn is(&self, digest: &Sha256Digest) -> bool {
        self.content != Content::Dirty
            && (self.image_sha256 == *digest || self.payload_digests.contains(digest))
    }

    /// The digest to show for this slot: the checksum of its payload where known, else the image hash.
    pub fn shown(&self) -> Sha256Digest {
        self.payload_digests.first().copied().unwrap_or(self.image_sha256)
    }

    /// Reads a record. `Ok(None)` when a newer writer says that we must not interpret it.
    ///
    /// # Errors
    /// A message when the text is not a record.
    pub fn parse(text: &[u8]) -> Result<Option<SlotRecord>, String> {
        #[derive(Deserialize)]
        struct Head {
            min_reader: u32,
        }
        let head: Head = serde_json::from_slice(text).map_err(|e| format!("slot record: {e}"))?;
        if head.min_reader > SCHEMA {
            return Ok(None);
        }
        serde_json::from_slice(text)
            .map(Some)
            .map_err(|e| format!("slot record: {e}"))
    }

    /// The record as JSON text, with a final newline.
    pub fn to_json(&self) -> Vec<u8> {
        let mut v = serde_json::to_vec_pretty(self).unwrap_or_default();
        v.push(b'\n');
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rec() -> SlotRecord {
        SlotRecord {
            schema: SCHEMA,
            min_reader: MIN_READER,
            version: "1".into(),
            os_image: "Slipway 1".into(),
            image_size: 4096,
            image_sha256: Sha256Digest([1; 32]),
            payload_digests: vec![Sha256Digest([2; 32])],
            content: Content::Factory,
            verified_unix: 0,
            unknown: Default::default(),
        }
    }

    #[test]
    fn a_slot_is_every_digest_it_could_be_staged_under_unless_dirty() {
        let mut r = rec();
        assert!(
            r.is(&Sha256Digest([1; 32])) && r.is(&Sha256Digest([2; 32])) && !r.is(&Sha256Digest([3; 32]))
        );
        r.content = Content::Dirty;
        assert!(!r.is(&Sha256Digest([1; 32])));
    }

    #[test]
    fn unknown_keys_survive_and_a_newer_min_reader_is_left_alone() {
        let mut v: serde_json::Value = serde_json::from_slice(&rec().to_json()).unwrap();
        v["from_the_future"] = serde_json::json!({"a": [1, 2]});
        let text = serde_json::to_vec(&v).unwrap();
        let r = SlotRecord::parse(&text).unwrap().unwrap();
        let again: serde_json::Value = serde_json::from_slice(&r.to_json()).unwrap();
        assert_eq!(again, v);
        v["min_reader"] = serde_json::json!(SCHEMA + 1);
        assert_eq!(SlotRecord::parse(&serde_json::to_vec(&v).unwrap()).unwrap(), None);
        assert!(SlotRecord::parse(b"{}").is_err());
    }
}
