//! Reading and editing an ext4 image without a mount.

use crate::proc;
use anyhow::Result;
use camino::Utf8PathBuf;

/// An ext4 image that is edited and read by debugfs, without a mount and without root.
#[derive(Debug, Clone)]
pub struct Ext4 {
    /// Image file.
    pub image: Utf8PathBuf,
}

impl Ext4 {
    fn debugfs(&self, write: bool, request: &str) -> Result<proc::Ended> {
        let mut c = proc::command("debugfs");
        c.env(
            "PATH",
            format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()),
        );
        if write {
            c.arg("-w");
        }
        c.args(["-R", request, self.image.as_str()]);
        let e = proc::status(&mut c)?;
        // debugfs ends with status 0 whatever happens; its first stderr line is its version.
        let said: Vec<&str> = e.err.lines().filter(|l| !l.starts_with("debugfs ")).collect();
        if e.code != 0 || !said.is_empty() {
            anyhow::bail!("debugfs {request:?} on {}: {}", self.image, said.join("; "));
        }
        Ok(e)
    }

    /// A file's content.
    ///
    /// # Errors
    /// When it is not there.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let tmp = tempfile::NamedTempFile::new()?;
        self.debugfs(false, &format!("dump {path} {}", tmp.path().display()))?;
        Ok(fs_err::read(tmp.path())?)
    }

    /// Replaces or makes a file owned by root.
    ///
    /// # Errors
    /// When debugfs cannot.
    pub fn write(&self, path: &str, data: &[u8], mode: u32) -> Result<()> {
        let tmp = tempfile::NamedTempFile::new()?;
        fs_err::write(tmp.path(), data)?;
        let _ = self.remove(path);
        self.debugfs(true, &format!("write {} {path}", tmp.path().display()))?;
        self.debugfs(true, &format!("sif {path} mode 0{:o}", 0o100_000 | mode))?;
        self.debugfs(true, &format!("sif {path} uid 0"))?;
        self.debugfs(true, &format!("sif {path} gid 0"))?;
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.debugfs(true, &format!("rm {path}")).map(drop)
    }

    /// Makes a directory; one that exists is fine.
    ///
    /// # Errors
    /// When debugfs cannot.
    pub fn mkdir(&self, path: &str) -> Result<()> {
        if self.debugfs(false, &format!("stat {path}")).is_ok() {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(p, _)| !p.is_empty()) {
            self.mkdir(parent)?;
        }
        self.debugfs(true, &format!("mkdir {path}")).map(drop)
    }
}
