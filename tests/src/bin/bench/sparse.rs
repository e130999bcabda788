//! Peak memory and bytes written with an image that is far larger than memory; nearly all of it is a hole.

use super::{Bed, content, measure};
use anyhow::Result;
use os_e2e::disk::PlainDisk;
use os_e2e::http::{Reply, Server};
use os_e2e::product::sha256;
use std::os::unix::fs::MetadataExt;

pub(crate) fn run(bed: &Bed) -> Result<()> {
    let gib = bed.args.sparse_gib;
    let (old, image) = (bed.dir.join("1.img"), bed.dir.join("2.img"));
    content::running(&old)?;
    content::sparse(&image, gib)?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), gib << 10, &old)?;
    let sum = sha256(&image)?;
    let server = Server::start()?;
    server.put("/image", Reply::file(&image));
    let r = measure::stage(&bed.product.agent, &disk, &server.url("/image"), &sum)?;
    println!(
        "sparse: {gib} GiB over HTTP into a blank slot of {gib} GiB: {:.1} s, peak memory {:.1} MiB (wanted: at most 48), {} bytes \
         written, the disk takes {} MiB",
        r.secs(),
        r.peak_mib(),
        r.written,
        (fs_err::metadata(&disk.path)?.blocks() * 512) >> 20
    );
    Ok(())
}
