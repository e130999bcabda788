//! Scratch directories with short paths (QEMU's sockets), removed when all went well and kept as evidence when not.

use anyhow::Result;
use camino::{Utf8Path, Utf8PathBuf};

/// A directory of its own below /var/tmp.
#[derive(Debug)]
pub struct Scratch {
    dir: Utf8PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(name: &str) -> Result<Scratch> {
        let dir = Utf8PathBuf::from(format!("/var/tmp/slipway-{name}-{}", std::process::id()));
        if dir.exists() {
            fs_err::remove_dir_all(&dir)?;
        }
        fs_err::create_dir_all(&dir)?;
        Ok(Scratch { dir, keep: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Utf8Path {
        &self.dir
    }

    /// Not removed on drop.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep || std::thread::panicking() {
            // Disks are large and say nothing; logs stay.
            for f in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
                let name = f.file_name().to_string_lossy().into_owned();
                if [".img", ".qcow2", ".raw"].iter().any(|e| name.ends_with(e)) {
                    let _ = std::fs::remove_file(f.path());
                }
            }
            eprintln!("kept: {}", self.dir);
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
