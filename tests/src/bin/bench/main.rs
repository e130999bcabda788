//! What `os-agent stage` costs, against what people do by hand, in one run on one machine. Started by `tests/bench`.
//!
//! Both sides end when the data is on the medium (fsync) and was read again and hashed. Interleaved runs; medians of the ratios.
#![allow(clippy::disallowed_methods)]

mod content;
mod cuts;
mod flip;
mod measure;
mod raw;
mod sparse;
mod swupdate;
mod zstd;

use anyhow::{Context, Result};
use camino::{Utf8Path, Utf8PathBuf};
use clap::Parser;
use os_e2e::proc;
use os_e2e::product::{Product, product, workspace};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// A raw image against curl, tee, sha256sum and dd.
    Raw,
    /// A zstd image against the same pipe with zstd in it.
    Zstd,
    /// A raw image against SWUpdate, where it is installed.
    Swupdate,
    /// What five cuts of the connection cost.
    Cuts,
    /// How long the flip of the boot environment takes.
    Flip,
    /// Peak memory with a large sparse image.
    Sparse,
    /// Everything, one after the other.
    All,
}

#[derive(Debug, Parser)]
struct Args {
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// Interleaved runs of raw, zstd and swupdate
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// Size of the image in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Size of the sparse image in GiB
    #[arg(long, default_value_t = 64)]
    sparse_gib: u64,
    /// Flips
    #[arg(long, default_value_t = 1000)]
    flips: usize,
}

/// Where and with what.
struct Bed {
    product: Product,
    dir: Utf8PathBuf,
    args: Args,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let product = product()?;
    let base =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| workspace().join("target"), Utf8PathBuf::from);
    let tmp = tempfile::tempdir_in(&base)?;
    let dir = Utf8Path::from_path(tmp.path()).context("temporary directory")?;
    let bed = Bed {
        product,
        dir: dir.to_owned(),
        args,
    };
    measure::head(&bed)?;
    for (what, run) in [
        (What::Raw, raw::run as fn(&Bed) -> Result<()>),
        (What::Zstd, zstd::run),
        (What::Swupdate, swupdate::run),
        (What::Cuts, cuts::run),
        (What::Flip, flip::run),
        (What::Sparse, sparse::run),
    ] {
        if bed.args.what == what || bed.args.what == What::All {
            println!();
            run(&bed)?;
            // The next one needs the room.
            for e in dir.read_dir_utf8()? {
                let p = e?.into_path();
                if p.is_dir() {
                    fs_err::remove_dir_all(p)?;
                } else {
                    fs_err::remove_file(p)?;
                }
            }
        }
    }
    println!(
        "\nNot run: rauc (installs only through its D-Bus service, from a squashfs bundle that it mounts with device-mapper or a \
         loop device: it cannot read this image from this server) and casync (chunks of its own, another way to download)."
    );
    let _ = proc::sh(&["sync"]);
    Ok(())
}
