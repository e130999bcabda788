//! A raw image over loopback HTTP against `curl | tee >(sha256sum) | dd conv=fsync` and a hash of what was written.

use super::{Bed, content, measure};
use anyhow::Result;
use os_e2e::disk::PlainDisk;
use os_e2e::http::{Reply, Server};
use os_e2e::product::sha256;

pub(crate) fn run(bed: &Bed) -> Result<()> {
    let (old, image, by_hand) = (
        bed.dir.join("1.img"),
        bed.dir.join("2.img"),
        bed.dir.join("by-hand.img"),
    );
    content::running(&old)?;
    content::mixed(&image, "2", bed.args.mib)?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), bed.args.mib, &old)?;
    let sum = sha256(&image)?;
    let server = Server::start()?;
    server.put("/image", Reply::file(&image));
    compare(
        bed,
        &Sides {
            name: "raw",
            disk: &disk,
            by_hand: &by_hand,
            url: &server.url("/image"),
            sum: &sum,
            image: measure::Image {
                bytes: bed.args.mib << 20,
                sum: &sum,
            },
            unpack: "",
            wanted: "at most 0.80 of the time",
        },
    )
}

/// What is compared.
pub(crate) struct Sides<'a> {
    pub(crate) name: &'a str,
    pub(crate) disk: &'a PlainDisk,
    pub(crate) by_hand: &'a camino::Utf8Path,
    pub(crate) url: &'a str,
    /// SHA-256 of the file on the server.
    pub(crate) sum: &'a str,
    pub(crate) image: measure::Image<'a>,
    /// Behind curl in the pipe.
    pub(crate) unpack: &'a str,
    pub(crate) wanted: &'a str,
}

/// Interleaved runs of the agent and of the pipe with either hash program.
pub(crate) fn compare(bed: &Bed, s: &Sides<'_>) -> Result<()> {
    println!(
        "{}: {} MiB over HTTP from 127.0.0.1 into an allocated file; the pipe is \
         `curl {}| tee >(HASH) | dd bs=4M conv=fsync,notrunc`, then HASH of what was written",
        s.name,
        s.image.bytes >> 20,
        s.unpack
    );
    let mut peak: f64 = 0.0;
    let mut ratios = [Vec::new(), Vec::new()];
    for i in 1..=bed.args.runs {
        measure::scramble(s.disk, s.by_hand, s.image.bytes)?;
        measure::settle();
        let ours = measure::stage(&bed.product.agent, s.disk, s.url, s.sum)?;
        peak = peak.max(ours.peak_mib());
        let mut line = format!("run {i}: os-agent {:.2} s", ours.secs());
        for (hash, ratio) in measure::HASHES.iter().zip(&mut ratios) {
            measure::settle();
            let theirs = measure::hand(s.url, s.by_hand, &s.image, s.unpack, hash)?.as_secs_f64();
            line += &format!(
                ", pipe with {} {theirs:.2} s",
                hash.split(' ').next().unwrap_or_default()
            );
            ratio.push(theirs / ours.secs());
        }
        println!("{line}");
    }
    for (hash, ratio) in measure::HASHES.iter().zip(&ratios) {
        println!(
            "{}: {:.2} x faster than the pipe with {} (median; least {:.2}; wanted with sha256sum: {})",
            s.name,
            measure::median(ratio),
            hash.split(' ').next().unwrap_or_default(),
            measure::least(ratio),
            s.wanted
        );
    }
    println!("{}: peak memory {peak:.1} MiB (wanted: at most 48)", s.name);
    Ok(())
}
