//! A payload file on the node.

use crate::error::{AgentError, Result};
use crate::payload::sniff::{self, Kind};
use crate::ports::{Cancel, Download};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;

/// Bytes per read.
const PIECE: usize = 256 << 10;

struct FileDownload {
    file: File,
    path: Utf8PathBuf,
    total: u64,
    done: u64,
    cancel: Cancel,
}

/// Opens a regular file of at most `max_bytes`.
///
/// # Errors
/// `InvalidArgument` when it is none, `SlotTooSmall` when it is larger.
pub fn open(path: &Utf8Path, max_bytes: u64, cancel: &Cancel) -> Result<Box<dyn Download>> {
    let bad = |what: String| AgentError::new(Code::InvalidArgument, format!("{path}: {what}"));
    // Looked at first: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if !meta.is_file() {
        return Err(bad("is not a regular file".into()));
    }
    let file = File::open(path).map_err(|e| bad(e.to_string()))?;
    let total = file.metadata().map_err(|e| bad(e.to_string()))?.len();
    if total > max_bytes && plausible(&file) {
        return Err(AgentError::new(
            Code::SlotTooSmall,
            format!("{path}: {total} bytes, at most {max_bytes} can be a payload for this slot"),
        ));
    }
    let _ = fadvise(file.as_fd(), 0, None, Advice::Sequential);
    Ok(Box::new(FileDownload {
        file,
        path: path.to_owned(),
        total,
        done: 0,
        cancel: cancel.clone(),
    }))
}

/// Whether a file's size is what is wrong with it. Anything that is no payload at all is told by its kind.
fn plausible(file: &File) -> bool {
    use std::os::unix::fs::FileExt;
    let mut head = vec![0; 64 << 10];
    let n = file.read_at(&mut head, 0).unwrap_or(0);
    head.truncate(n);
    !matches!(sniff::sniff(&head), Kind::Known(_))
}

impl Download for FileDownload {
    fn total(&self) -> Option<u64> {
        Some(self.total)
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        self.cancel.check()?;
        let mut piece = vec![0; PIECE];
        let n = loop {
            match self.file.read(&mut piece) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => self.cancel.check()?,
                Err(e) => {
                    return Err(AgentError::new(
                        Code::FetchFailed,
                        format!("{}: read at byte {}: {e}", self.path, self.done),
                    ));
                }
                Ok(n) => break n,
            }
        };
        self.done += n as u64;
        if self.done > self.total || (n == 0 && self.done < self.total) {
            return Err(AgentError::new(
                Code::SizeMismatch,
                format!(
                    "{}: changed while it was read: had {} bytes, now {}",
                    self.path,
                    self.total,
                    if n == 0 {
                        self.done.to_string()
                    } else {
                        "more".into()
                    }
                ),
            ));
        }
        piece.truncate(n);
        Ok((n > 0).then(|| Bytes::from(piece)))
    }

    fn skip(&mut self, n: u64) -> Result<u64> {
        let n = n.min(self.total - self.done);
        self.file
            .seek(SeekFrom::Start(self.done + n))
            .map_err(|e| AgentError::new(Code::FetchFailed, format!("{}: seek: {e}", self.path)))?;
        self.done += n;
        Ok(n)
    }

    fn describe(&self) -> String {
        self.path.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("x");
        let data: Vec<u8> = (0..700_000u32).map(|i| i as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let mut d = open(&path, 1 << 20, &Cancel::default()).unwrap();
        assert_eq!(d.total(), Some(data.len() as u64));
        let mut got = Vec::new();
        while let Some(b) = d.next().unwrap() {
            got.extend_from_slice(&b);
        }
        assert_eq!(got, data);
        assert!(d.next().unwrap().is_none());
    }

    #[test]
    fn what_is_no_payload_file_is_refused_and_changes_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let code = |p: &Utf8Path, max| open(p, max, &Cancel::default()).err().map(|e| e.code);
        assert_eq!(code(root, 9), Some(Code::InvalidArgument));
        assert_eq!(code(&root.join("none"), 9), Some(Code::InvalidArgument));
        let path = root.join("x");
        std::fs::write(&path, vec![1; 600_000]).unwrap();
        assert_eq!(code(&path, 599_999), Some(Code::SlotTooSmall));

        let mut d = open(&path, 1 << 20, &Cancel::default()).unwrap();
        d.next().unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(300_000)
            .unwrap();
        let e = loop {
            match d.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a shorter file is not whole"),
                Err(e) => break e,
            }
        };
        assert_eq!(e.code, Code::SizeMismatch);

        let cancel = Cancel::default();
        let mut d = open(&path, 1 << 20, &cancel).unwrap();
        cancel.cancel();
        assert_eq!(d.next().unwrap_err().code, Code::Cancelled);
    }
}
