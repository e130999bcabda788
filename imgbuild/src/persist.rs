//! What PERSIST holds when a machine starts for the first time: the agent's directory with slot A's record.
//!
//! Everything else in PERSIST is made by the initramfs.

use crate::error::{BuildError, Result};
use camino::Utf8Path;
use os_proto::digest::Sha256Digest;
use os_proto::layout::{Slot, persist};
use os_proto::record::{Content, MIN_READER, SCHEMA, SlotRecord};
use std::os::unix::fs::DirBuilderExt;

/// Slot A's record for the factory image.
pub fn record(
    version: &str,
    os_image: &str,
    size: u64,
    image: Sha256Digest,
    payload: Sha256Digest,
) -> SlotRecord {
    SlotRecord {
        schema: SCHEMA,
        min_reader: MIN_READER,
        version: version.to_owned(),
        os_image: os_image.to_owned(),
        image_size: size,
        image_sha256: image,
        payload_digests: vec![payload],
        content: Content::Factory,
        verified_unix: 0,
        unknown: serde_json::Map::new(),
    }
}

/// Lays the tree out in `dir`, which must not exist. Owners are set when the file system is made.
///
/// # Errors
/// IO028 and IO001.
pub fn tree(dir: &Utf8Path, record: &SlotRecord) -> Result<()> {
    let slots = dir.join(persist::STATE_DIR).join("slots");
    for (path, mode) in [
        (dir, 0o755),
        (&dir.join(persist::STATE_DIR), 0o700),
        (&slots, 0o700),
    ] {
        std::fs::DirBuilder::new()
            .mode(mode)
            .create(path)
            .map_err(|e| BuildError::io(format!("creating {path}"), &e))?;
        // The umask may have taken bits away.
        rustix::fs::chmod(path.as_str(), rustix::fs::Mode::from_raw_mode(mode))
            .map_err(|e| BuildError::io(format!("creating {path}"), &e.into()))?;
    }
    let file = slots.join(format!("{}.json", Slot::A));
    crate::files::write(&file, &record.to_json())?;
    rustix::fs::chmod(file.as_str(), rustix::fs::Mode::from_raw_mode(0o600))
        .map_err(|e| BuildError::io(format!("creating {file}"), &e.into()))
}
