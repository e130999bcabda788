//! What cuts of the connection cost in bytes: the server counts everything that it sent.

use super::{Bed, content, measure};
use anyhow::Result;
use os_e2e::disk::PlainDisk;
use os_e2e::http::{Reply, Server};
use os_e2e::proc;
use os_e2e::product::sha256;

pub(crate) fn run(bed: &Bed) -> Result<()> {
    let (old, image) = (bed.dir.join("1.img"), bed.dir.join("2.img"));
    let (packed, hand) = (bed.dir.join("2.img.zst"), bed.dir.join("by-hand.img"));
    content::running(&old)?;
    content::mixed(&image, "2", bed.args.mib)?;
    proc::sh(&["zstd", "-q", "-3", "-f", image.as_str(), "-o", packed.as_str()])?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), bed.args.mib, &old)?;
    for (name, file) in [("raw", &image), ("zstd", &packed)] {
        let (sum, size) = (sha256(file)?, fs_err::metadata(file)?.len());
        for cuts in [0u64, 1, 5, 20] {
            let server = Server::start()?;
            server.put(
                "/image",
                Reply {
                    cuts: (1..=cuts).map(|i| size * i / (cuts + 1)).collect(),
                    ..Reply::file(file)
                },
            );
            measure::scramble(&disk, &hand, bed.args.mib << 20)?;
            let r = measure::stage(&bed.product.agent, &disk, &server.url("/image"), &sum)?;
            let (sent, asked) = (server.sent("/image"), server.seen().len());
            println!(
                "cuts: {name}, {cuts} cuts: {asked} requests, {sent} of {size} bytes sent ({:+.2} %), {} written, {:.2} s{}",
                (sent as f64 / size as f64 - 1.0) * 100.0,
                r.written,
                r.secs(),
                if cuts == 5 { " (wanted: at most +5 %)" } else { "" }
            );
        }
    }
    Ok(())
}
