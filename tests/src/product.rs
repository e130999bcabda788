//! The programs under test, built once per source state as they are shipped: release, static where that links.

use crate::proc;
use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Paths of the two programs.
#[derive(Debug, Clone)]
pub struct Product {
    /// The node agent.
    pub agent: Utf8PathBuf,
    /// The image builder.
    pub imgbuild: Utf8PathBuf,
}

/// The workspace's root directory.
pub fn workspace() -> &'static Utf8Path {
    static ROOT: OnceLock<Utf8PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap_or(Utf8Path::new("/"))
            .to_owned()
    })
}

/// `~/.cache/slipway` (or below `XDG_CACHE_HOME`).
///
/// # Errors
/// When neither variable is set.
pub fn cache_dir() -> Result<Utf8PathBuf> {
    let base = match std::env::var("XDG_CACHE_HOME") {
        Ok(d) if !d.is_empty() => Utf8PathBuf::from(d),
        _ => Utf8PathBuf::from(std::env::var("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("slipway"))
}

fn target_dir() -> Utf8PathBuf {
    match std::env::var("CARGO_TARGET_DIR") {
        Ok(d) if !d.is_empty() => Utf8PathBuf::from(d),
        _ => workspace().join("target"),
    }
}

/// Builds both programs (nothing to do when they are up to date) and copies them to the cache, so that a later build
/// cannot change them under a running test. `SLIPWAY_BIN_DIR` names a directory with both instead.
///
/// # Errors
/// When the build fails.
pub fn product() -> Result<Product> {
    static DONE: OnceLock<Product> = OnceLock::new();
    if let Some(p) = DONE.get() {
        return Ok(p.clone());
    }
    let from = match std::env::var("SLIPWAY_BIN_DIR") {
        Ok(d) if !d.is_empty() => Utf8PathBuf::from(d),
        _ => build()?,
    };
    let mut key = Sha256::new();
    for name in ["os-agent", "imgbuild"] {
        key.update(fs_err::read(from.join(name))?);
    }
    let key = hex::encode(key.finalize());
    let dir = cache_dir()?.join(format!("bin-{}", &key[..16]));
    if !dir.exists() {
        let tmp = cache_dir()?.join(format!("bin-{}.{}", &key[..16], std::process::id()));
        fs_err::create_dir_all(&tmp)?;
        for name in ["os-agent", "imgbuild"] {
            fs_err::copy(from.join(name), tmp.join(name))?;
        }
        if fs_err::rename(&tmp, &dir).is_err() && !dir.exists() {
            bail!("cannot put the programs into {dir}");
        }
    }
    let p = Product {
        agent: dir.join("os-agent"),
        imgbuild: dir.join("imgbuild"),
    };
    Ok(DONE.get_or_init(|| p).clone())
}

/// As they are shipped (`cargo dist`, static); where glibc's static library is missing, linked dynamically.
fn build() -> Result<Utf8PathBuf> {
    eprintln!("building os-agent and imgbuild (release)");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let dir = target_dir().join(TARGET).join("release");
    let mut dist = proc::command(&cargo);
    dist.arg("dist").current_dir(workspace());
    let done = proc::status(&mut dist)?;
    if done.code == 0 && proc::status(proc::command(dir.join("os-agent")).arg("--version"))?.code == 0 {
        return Ok(dir);
    }
    eprintln!(
        "no static programs here, dynamic ones instead: {}",
        proc::tail(&done.err, 3)
    );
    proc::run(
        proc::command(&cargo)
            .args([
                "build",
                "--release",
                "--target",
                TARGET,
                "-p",
                "os-agent",
                "-p",
                "imgbuild",
            ])
            .current_dir(workspace()),
    )?;
    Ok(dir)
}

/// The programs of the cluster side.
#[derive(Debug, Clone)]
pub struct ClusterPrograms {
    /// Runs in the cluster, on one node.
    pub operator: Utf8PathBuf,
    /// Runs on every node; without debugging information, because it is sent into an emulated guest.
    pub proxy: Utf8PathBuf,
}

/// Builds os-operator and os-proxy as tests are built. They need the C library of this host: the fixture distribution's is it.
///
/// # Errors
/// When the build fails.
pub fn cluster_programs() -> Result<ClusterPrograms> {
    eprintln!("building os-operator and os-proxy");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let args = ["build", "--quiet", "-p", "os-proxy", "-p", "os-e2e", "--bins"];
    proc::run(proc::command(&cargo).args(args).current_dir(workspace()))?;
    let dir = target_dir().join("debug");
    let proxy = dir.join("os-proxy.stripped");
    proc::sh(&["strip", "-o", proxy.as_str(), dir.join("os-proxy").as_str()])?;
    Ok(ClusterPrograms {
        operator: dir.join("os-operator"),
        proxy,
    })
}

/// SHA-256 of a file as hex.
///
/// # Errors
/// When it cannot be read.
pub fn sha256(file: &Utf8Path) -> Result<String> {
    let mut h = Sha256::new();
    std::io::copy(&mut fs_err::File::open(file)?, &mut Hasher(&mut h))?;
    Ok(hex::encode(h.finalize()))
}

struct Hasher<'a>(&'a mut Sha256);

impl std::io::Write for Hasher<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.update(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
