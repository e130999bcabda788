//! A zstd image against the same pipe with `zstd -d` in it.

use super::raw::{Sides, compare};
use super::{Bed, content, measure};
use anyhow::Result;
use os_e2e::disk::PlainDisk;
use os_e2e::http::{Reply, Server};
use os_e2e::proc;
use os_e2e::product::sha256;

pub(crate) fn run(bed: &Bed) -> Result<()> {
    let (old, image) = (bed.dir.join("1.img"), bed.dir.join("2.img"));
    let (packed, by_hand) = (bed.dir.join("2.img.zst"), bed.dir.join("by-hand.img"));
    content::running(&old)?;
    content::mixed(&image, "2", bed.args.mib)?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), bed.args.mib, &old)?;
    let sum = sha256(&image)?;
    proc::sh(&["zstd", "-q", "-3", "-f", image.as_str(), "-o", packed.as_str()])?;
    fs_err::remove_file(&image)?;
    let bytes = fs_err::metadata(&packed)?.len();
    println!("zstd: {bytes} bytes packed by zstd -3; half of the image is zeros, the rest packs about 2 : 1");
    let server = Server::start()?;
    server.put("/image.zst", Reply::file(&packed));
    compare(
        bed,
        &Sides {
            name: "zstd",
            disk: &disk,
            by_hand: &by_hand,
            url: &server.url("/image.zst"),
            sum: &sha256(&packed)?,
            image: measure::Image {
                bytes: bed.args.mib << 20,
                sum: &sum,
            },
            unpack: "| zstd -dc ",
            wanted: "3 x",
        },
    )
}
