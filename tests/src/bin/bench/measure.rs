//! Running both sides, and the head of the report.

use super::Bed;
use anyhow::{Result, bail};
use camino::Utf8Path;
use os_e2e::disk::PlainDisk;
use os_e2e::proc;
use os_proto::layout::Slot;
use std::collections::BTreeMap;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The hash programs that a pipe is tried with.
pub(crate) const HASHES: [&str; 2] = ["sha256sum", "openssl dgst -sha256 -r"];

/// Machine, agent and peers.
pub(crate) fn head(bed: &Bed) -> Result<()> {
    println!("machine:    {}", proc::sh(&["uname", "-srm"])?.trim());
    println!("cores:      {}", std::thread::available_parallelism()?);
    let fs = proc::sh(&["findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", bed.dir.as_str()])
        .map_or_else(|_| "?".into(), |s| s.trim().to_owned());
    println!("files on:   {fs}");
    println!(
        "agent:      {}",
        proc::sh(&[bed.product.agent.as_str(), "--version"])?.trim()
    );
    for tool in ["curl", "zstd", "sha256sum", "dd", "openssl"] {
        let flag = if tool == "openssl" { "version" } else { "--version" };
        let v = proc::sh(&[tool, flag])?;
        println!("peer:       {}", v.lines().next().unwrap_or_default());
    }
    println!("durability: both sides flush (fsync) and read everything back before they end");
    Ok(())
}

/// The middle value.
pub(crate) fn median(v: &[f64]) -> f64 {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The smallest value.
pub(crate) fn least(v: &[f64]) -> f64 {
    v.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Everything written before is on the medium, so that no run pays for another.
pub(crate) fn settle() {
    let _ = proc::sh(&["sync"]);
}

/// Other content in slot B and in the file of the other side, so that nothing is already right and nothing is allocated anew.
pub(crate) fn scramble(disk: &PlainDisk, by_hand: &Utf8Path, bytes: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let block = vec![0x5a; 1 << 20];
    let hand = fs_err::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(by_hand)?;
    let slot = fs_err::OpenOptions::new().write(true).open(&disk.path)?;
    let start = disk.slot_start(Slot::B);
    for at in (0..bytes).step_by(block.len()) {
        hand.file().write_all_at(&block, at)?;
        slot.file().write_all_at(&block, start + at)?;
    }
    // Nothing is remembered of an earlier run.
    let state = format!("{}.state", disk.path);
    if Utf8Path::new(&state).exists() {
        fs_err::remove_dir_all(state)?;
    }
    Ok(())
}

/// One stage.
pub(crate) struct Staged {
    /// Wall time.
    pub(crate) took: Duration,
    /// Highest resident size in KiB.
    pub(crate) peak_kib: u64,
    /// Bytes written to the slot.
    pub(crate) written: u64,
}

impl Staged {
    /// Wall time in seconds.
    pub(crate) fn secs(&self) -> f64 {
        self.took.as_secs_f64()
    }

    /// Highest resident size in MiB.
    pub(crate) fn peak_mib(&self) -> f64 {
        self.peak_kib as f64 / 1024.0
    }
}

/// Waits for a process; the highest resident sizes of it and of its children together, in KiB. The kernel keeps the highest value,
/// so sampling misses only the last moment.
pub(crate) fn watch(child: &mut Child) -> Result<(ExitStatus, u64)> {
    let (pid, mut peaks) = (child.id(), BTreeMap::new());
    let ended = loop {
        if let Some(s) = child.try_wait()? {
            break s;
        }
        let more = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = more.split_whitespace().filter_map(|n| n.parse().ok());
        for p in std::iter::once(pid).chain(children) {
            let status = std::fs::read_to_string(format!("/proc/{p}/status")).unwrap_or_default();
            let known = peaks.entry(p).or_insert(0);
            *known = (*known).max(proc::peak_kib(&status).unwrap_or(0));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ok((ended, peaks.values().sum()))
}

/// Stages from a URL, and watches time and memory.
pub(crate) fn stage(agent: &Utf8Path, disk: &PlainDisk, url: &str, sum: &str) -> Result<Staged> {
    let mut c = proc::command(agent);
    c.args(["stage", "--image", url, "--sha256", sum, "--allow-http", "--json"])
        .args(["--disk", disk.path.as_str(), "--running", "A"])
        .stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = c.spawn()?;
    let (ended, peak_kib) = watch(&mut child)?;
    let took = start.elapsed();
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut text)?;
    }
    if !ended.success() {
        bail!("os-agent stage: {ended}: {text}");
    }
    let doc: serde_json::Value = serde_json::from_str(&text)?;
    Ok(Staged {
        took,
        peak_kib,
        written: doc["written_bytes"].as_u64().unwrap_or(0),
    })
}

/// The pipe that people write, then a hash of what was written. `unpack` stands behind curl.
pub(crate) fn hand(
    url: &str,
    file: &Utf8Path,
    image: &Image<'_>,
    unpack: &str,
    hash: &str,
) -> Result<Duration> {
    let script = format!(
        "set -e -o pipefail\ncurl -sSf \"$1\" {unpack}| tee >({hash} > \"$2.sum\") | dd of=\"$2\" bs=4M conv=fsync,notrunc \
         iflag=fullblock status=none\nhead -c {} \"$2\" | {hash}",
        image.bytes
    );
    let start = Instant::now();
    let out = proc::sh(&["bash", "-c", &script, "bash", url, file.as_str()])?;
    let took = start.elapsed();
    if !out.contains(image.sum) {
        bail!("by hand: hash {out:?}, wanted {}", image.sum);
    }
    Ok(took)
}

/// What both sides must have in the end.
pub(crate) struct Image<'a> {
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Their SHA-256.
    pub(crate) sum: &'a str,
}
