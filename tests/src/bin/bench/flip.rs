//! The flip: both environment copies written, flushed and read back on a file-backed disk; grub-editenv beside it.

use super::{Bed, content, measure};
use anyhow::{Context, Result};
use os_agent::boot::DualEnv;
use os_agent::ports::Bootloader;
use os_agent::sys::discover;
use os_e2e::disk::PlainDisk;
use os_e2e::proc;
use os_proto::env_block::Env;
use os_proto::layout::{Role, Slot};
use std::time::Instant;

pub(crate) fn run(bed: &Bed) -> Result<()> {
    let old = bed.dir.join("1.img");
    content::running(&old)?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), 16, &old)?;
    let region = discover::offline(&disk.path, Slot::A).and_then(|l| l.region(Role::OsState))?;
    let boot = DualEnv::new(region);
    measure::settle();
    let mut ms = Vec::new();
    for i in 0..bed.args.flips {
        let env = Env {
            gen_: u32::try_from(i)? + 2,
            ..Env::committed(Slot::A, 1).armed(Slot::B)
        };
        let start = Instant::now();
        boot.write(&env)?;
        ms.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    println!(
        "flip: {} times both copies, flushed and read back: {} (wanted: p99 at most 20 ms)",
        ms.len(),
        spread(&mut ms)
    );
    if !proc::exists("grub-editenv") {
        println!("flip: grub-editenv is not installed: not compared");
        return Ok(());
    }
    // It neither flushes nor reads back, and every call is a process: what is comparable is set, flush, list.
    let file = bed.dir.join("grubenv");
    proc::sh(&["grub-editenv", file.as_str(), "create"])?;
    let mut ms = Vec::new();
    for i in 0..bed.args.flips.min(200) {
        let entry = format!("saved_entry={i}");
        let start = Instant::now();
        proc::sh(&["grub-editenv", file.as_str(), "set", &entry])?;
        fs_err::File::open(&file)?.sync_all()?;
        let back = proc::sh(&["grub-editenv", file.as_str(), "list"])?;
        ms.push(start.elapsed().as_secs_f64() * 1000.0);
        back.contains(&entry)
            .then_some(())
            .context("grub-editenv lost it")?;
    }
    println!(
        "flip: {} times grub-editenv set, fsync, list (one copy, three steps of people): {}",
        ms.len(),
        spread(&mut ms)
    );
    Ok(())
}

fn spread(ms: &mut [f64]) -> String {
    ms.sort_by(f64::total_cmp);
    let at = |part: usize| {
        ms.get((ms.len() * part / 1000).min(ms.len().saturating_sub(1)))
            .copied()
            .unwrap_or(f64::NAN)
    };
    format!(
        "median {:.2} ms, p99 {:.2} ms, most {:.2} ms",
        at(500),
        at(990),
        at(1000)
    )
}
