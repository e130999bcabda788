//! `os-agent stage` of a 1 GiB raw image from loopback HTTP onto a file, against what people do by hand:
//! `curl URL | tee >(sha256sum) | dd of=FILE bs=4M conv=fsync`, then `sha256sum` of what was written. Started by `tests/bench`.
//!
//! Both end when the data is on the medium (fsync) and was read again and hashed. Interleaved runs, median of the ratios.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::disk::{PlainDisk, root_image};
use os_e2e::http::{Reply, Server};
use os_e2e::proc;
use os_e2e::product::{product, sha256, workspace};
use std::process::Stdio;
use std::time::{Duration, Instant};

const MIB: u64 = 1024;

fn main() -> Result<()> {
    let runs: usize = std::env::args()
        .nth(1)
        .map_or(Ok(5), |a| a.parse())
        .context("RUNS is a number")?;
    let product = product()?;
    let base =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| workspace().join("target"), Utf8PathBuf::from);
    let tmp = tempfile::tempdir_in(&base)?;
    let dir = Utf8Path::from_path(tmp.path()).context("temporary directory")?;
    eprintln!("making a 1 GiB image and a disk in {dir}");
    let (old, image) = (dir.join("1.img"), dir.join("2.img"));
    root_image(&old, "1", 16, 1, Some("/bin/true".into()), true)?;
    root_image(&image, "2", MIB, 960, Some("/bin/true".into()), true)?;
    let disk = PlainDisk::make(&dir.join("disk.img"), MIB, &old)?;
    let by_hand = dir.join("by-hand.img");
    let sum = sha256(&image)?;
    let server = Server::start()?;
    server.put("/image", Reply::file(&image));
    let url = server.url("/image");

    println!("machine:    {}", proc::sh(&["uname", "-srm"])?.trim());
    println!("cores:      {}", std::thread::available_parallelism()?);
    for tool in ["curl", "sha256sum", "dd", "openssl"] {
        let flag = if tool == "openssl" { "version" } else { "--version" };
        let v = proc::sh(&[tool, flag])?;
        println!("peer:       {}", v.lines().next().unwrap_or_default());
    }
    println!(
        "agent:      {}",
        proc::sh(&[product.agent.as_str(), "--version"])?.trim()
    );
    println!(
        "image:      1 GiB raw ext4, 960 MiB of it noise, over HTTP from 127.0.0.1, into a file on {}",
        mount_of(dir)
    );
    println!("durability: both flush (fsync) and read everything back before they end");

    let mut peak = 0;
    let (mut core, mut ssl) = (Vec::new(), Vec::new());
    for i in 1..=runs {
        // Other content in the slot each time, so that nothing is already right.
        scramble(&disk)?;
        settle();
        let (ours, rss) = stage(&product.agent, &disk, &url, &sum)?;
        peak = peak.max(rss);
        settle();
        let a = hand(&url, &by_hand, &sum, "sha256sum")?;
        settle();
        let b = hand(&url, &by_hand, &sum, "openssl dgst -sha256 -r")?;
        println!(
            "run {i}: os-agent {:.2} s, with sha256sum {:.2} s, with openssl sha256 {:.2} s",
            ours.as_secs_f64(),
            a.as_secs_f64(),
            b.as_secs_f64()
        );
        core.push(ours.as_secs_f64() / a.as_secs_f64());
        ssl.push(ours.as_secs_f64() / b.as_secs_f64());
    }
    println!(
        "ratio to the pipe with sha256sum:      median {:.2} (wanted: at most 0.80)",
        median(&mut core)
    );
    println!(
        "ratio to the pipe with openssl sha256: median {:.2}",
        median(&mut ssl)
    );
    println!(
        "peak memory of os-agent: {:.1} MiB (wanted: at most 48)",
        peak as f64 / 1024.0
    );
    Ok(())
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

fn mount_of(dir: &Utf8Path) -> String {
    proc::sh(&["findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", dir.as_str()])
        .map_or_else(|_| "?".into(), |s| s.trim().to_owned())
}

/// Everything written before is on the medium, so that no run pays for another.
fn settle() {
    let _ = proc::sh(&["sync"]);
}

fn scramble(disk: &PlainDisk) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let f = std::fs::OpenOptions::new().write(true).open(&disk.path)?;
    let start = disk.slot_start(os_proto::layout::Slot::B);
    let block = vec![0x5a; 1 << 20];
    for m in 0..MIB {
        f.write_all_at(&block, start + (m << 20))?;
    }
    Ok(())
}

/// Time and highest resident size in KiB.
fn stage(agent: &Utf8Path, disk: &PlainDisk, url: &str, sum: &str) -> Result<(Duration, u64)> {
    let mut c = proc::command(agent);
    c.args(["stage", "--image", url, "--sha256", sum, "--allow-http"])
        .args(["--disk", disk.path.as_str(), "--running", "A"])
        .stdout(Stdio::null());
    let start = Instant::now();
    let mut child = c.spawn()?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        if let Some(s) = child.try_wait()? {
            break s;
        }
        // The highest value ever, so sampling misses only the last moment.
        if let Ok(text) = std::fs::read_to_string(&status)
            && text.starts_with("Name:\tos-agent")
            && let Some(n) = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))
        {
            let kib = n.split_whitespace().next().and_then(|n| n.parse().ok());
            peak = peak.max(kib.unwrap_or(0));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let took = start.elapsed();
    if !ended.success() {
        bail!("os-agent stage: {ended}");
    }
    Ok((took, peak))
}

/// The pipe that people write, then a hash of what was written.
fn hand(url: &str, file: &Utf8Path, sum: &str, hash: &str) -> Result<Duration> {
    let script = format!(
        "set -e -o pipefail\ncurl -sSf \"$1\" | tee >({hash} > \"$2.sum\") | dd of=\"$2\" bs=4M conv=fsync iflag=fullblock status=none\n{hash} < \"$2\""
    );
    let start = Instant::now();
    let out = proc::sh(&["bash", "-c", &script, "bash", url, file.as_str()])?;
    let took = start.elapsed();
    if !out.contains(sum) {
        bail!("by hand: hash {out:?}, wanted {sum}");
    }
    Ok(took)
}
