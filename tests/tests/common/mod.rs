//! What several end-to-end tests share: the agent on a plain file disk, and random numbers that can be repeated.
#![allow(unreachable_pub)]
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods
)]

use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::disk::{PlainDisk, root_image};
use os_e2e::proc::{self, Ended};
use os_e2e::product::{Product, product, sha256};
use os_proto::layout::Slot;
use serde_json::Value;
use std::process::Command;

/// Whether full counts are wanted.
pub fn long() -> bool {
    std::env::var("SLIPWAY_LONG").is_ok_and(|v| v == "1")
}

/// A generator that a failure message can name the seed of.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `SLIPWAY_SEED`, else from the clock; prints it.
    pub fn new() -> Random {
        let seed = std::env::var("SLIPWAY_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| {
                std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_nanos() as u64
            });
        println!("SLIPWAY_SEED={seed}");
        Random(seed | 1)
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        // xorshift64* (Vigna 2016).
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A node without a machine: a disk file, an update for it, the real agent offline.
#[derive(Debug)]
pub struct Offline {
    pub dir: Utf8PathBuf,
    pub disk: PlainDisk,
    pub product: Product,
    /// A good update: version 2.
    pub update: Utf8PathBuf,
    _tmp: tempfile::TempDir,
}

impl Offline {
    /// Images of `slot_mib` with `noise_mib` of noise, in slots a little larger.
    pub fn new(slot_mib: u64, noise_mib: usize) -> Offline {
        let tmp = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = Utf8PathBuf::from_path_buf(tmp.path().to_owned()).unwrap();
        let product = product().unwrap();
        let (one, two) = (dir.join("1.img"), dir.join("2.img"));
        root_image(&one, "1", slot_mib, noise_mib, Some("/bin/true".into()), true).unwrap();
        root_image(&two, "2", slot_mib, noise_mib, Some("/bin/true".into()), true).unwrap();
        let disk = PlainDisk::make(&dir.join("disk.img"), slot_mib + 4, &one).unwrap();
        fs_err::write(dir.join("config.toml"), "").unwrap();
        Offline {
            dir,
            disk,
            product,
            update: two,
            _tmp: tmp,
        }
    }

    /// `os-agent ARGS --disk … --running A`.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = proc::command(&self.product.agent);
        c.args(args)
            .args(["--disk", self.disk.path.as_str(), "--running", "A"])
            .env("OS_AGENT_CONFIG", self.dir.join("config.toml"));
        c
    }

    /// Runs it.
    pub fn agent(&self, args: &[&str]) -> Ended {
        proc::status(&mut self.command(args)).unwrap()
    }

    /// Stages a file or URL.
    pub fn stage(&self, image: &str, sha256: &str) -> Ended {
        self.agent(&["stage", "--image", image, "--sha256", sha256, "--allow-http"])
    }

    /// The good update is staged, whatever happened before.
    pub fn repeat_works(&self) {
        let sum = sha256(&self.update).unwrap();
        let e = self.stage(self.update.as_str(), &sum);
        assert_eq!(e.code, 0, "repeated stage: {}{}", e.out, e.err);
        let size = fs_err::metadata(&self.update).unwrap().len();
        assert_eq!(
            self.disk.slot_sha256(Slot::B, size).unwrap(),
            sum,
            "slot B does not hold the update"
        );
    }

    /// `status --json`.
    pub fn status(&self) -> Value {
        let e = self.agent(&["status", "--json"]);
        assert_eq!(e.code, 0, "status: {}{}", e.out, e.err);
        serde_json::from_str(&e.out).unwrap_or_else(|x| panic!("status --json: {x}: {}", e.out))
    }

    /// What must never change: the running slot.
    pub fn running_slot(&self) -> String {
        self.disk.slot_sha256(Slot::A, self.disk.slot_size).unwrap()
    }
}

/// A copy without holes filled.
pub fn copy(from: &Utf8Path, to: &Utf8Path) {
    proc::sh(&[
        "cp",
        "--sparse=always",
        "--reflink=auto",
        from.as_str(),
        to.as_str(),
    ])
    .unwrap();
}
