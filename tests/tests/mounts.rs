//! The initramfs's script for /persist, /etc, /var and /opt, run as it is on a disk image with the real file systems of this
//! machine's kernel: /etc follows the slot, and every broken PERSIST leaves a system that works and says why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::proc;
use os_e2e::product::workspace;

const BOOT: &str = include_str!("mounts/boot.sh");
/// First sector of each partition, in the table's numbers 1, 6, 2, 3, 4.
const ROOT_A: u64 = 22_528;
const ROOT_B: u64 = 55_296;
const PERSIST: u64 = 88_064;
const PERSIST_BYTES: u64 = 48 << 20;

struct Lab {
    dir: Utf8PathBuf,
    disk: Utf8PathBuf,
    _tmp: tempfile::TempDir,
}

impl Lab {
    /// A disk with two equal slots and an empty PERSIST.
    fn new() -> Lab {
        let tmp = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = Utf8PathBuf::from_path_buf(tmp.path().to_owned()).unwrap();
        let disk = dir.join("disk.img");
        proc::sh(&["truncate", "-s", "96M", disk.as_str()]).unwrap();
        proc::sh(&[
            "sgdisk",
            "-a",
            "1",
            "-n",
            "5:40:2047",
            "-n",
            "1:2048:18431",
            "-n",
            "6:18432:22527",
            "-n",
            "2:22528:55295",
            "-n",
            "3:55296:88063",
            "-n",
            "4:88064:186367",
            "-c",
            "1:BOOT",
            "-c",
            "2:ROOT-A",
            "-c",
            "3:ROOT-B",
            "-c",
            "4:PERSIST",
            "-c",
            "5:bios",
            "-c",
            "6:os-state",
            disk.as_str(),
        ])
        .unwrap();
        let tree = dir.join("tree");
        for d in ["etc/containerd", "var/lib", "opt", "persist", "proc"] {
            fs_err::create_dir_all(tree.join(d)).unwrap();
        }
        fs_err::write(tree.join("etc/hosts"), "image\n").unwrap();
        fs_err::write(tree.join("etc/containerd/config.toml"), "image\n").unwrap();
        fs_err::write(tree.join("var/lib/of-the-image"), "image\n").unwrap();
        let lab = Lab { dir, disk, _tmp: tmp };
        let root = lab.ext4("root.img", 16 << 20, &["-O", "^has_journal", "-d", tree.as_str()]);
        lab.put(&root, ROOT_A);
        lab.put(&root, ROOT_B);
        let persist = lab.ext4("persist.img", PERSIST_BYTES, &["-N", "512"]);
        lab.put(&persist, PERSIST);
        lab
    }

    fn ext4(&self, name: &str, bytes: u64, args: &[&str]) -> Utf8PathBuf {
        let file = self.dir.join(name);
        proc::sh(&["truncate", "-s", &bytes.to_string(), file.as_str()]).unwrap();
        let mut all = vec!["mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024"];
        all.extend(args);
        all.push(file.as_str());
        proc::sh(&all).unwrap();
        file
    }

    fn put(&self, from: &Utf8Path, sector: u64) {
        let (of, to) = (format!("of={}", self.disk), format!("seek={sector}"));
        let from = format!("if={from}");
        proc::sh(&[
            "dd",
            &from,
            &of,
            &to,
            "bs=512",
            "conv=notrunc,sparse",
            "status=none",
        ])
        .unwrap();
    }

    /// Overwrites PERSIST from `offset` on.
    fn damage(&self, input: &str, offset: u64, bytes: u64) {
        let (of, from) = (format!("of={}", self.disk), format!("if={input}"));
        let (seek, count) = (
            format!("seek={}", PERSIST + offset / 512),
            format!("count={}", bytes / 512),
        );
        proc::sh(&[
            "dd",
            &from,
            &of,
            &seek,
            &count,
            "bs=512",
            "conv=notrunc",
            "status=none",
        ])
        .unwrap();
    }

    fn copy(&self) -> Lab {
        let tmp = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = Utf8PathBuf::from_path_buf(tmp.path().to_owned()).unwrap();
        let disk = dir.join("disk.img");
        proc::sh(&["cp", "--sparse=always", self.disk.as_str(), disk.as_str()]).unwrap();
        Lab { dir, disk, _tmp: tmp }
    }

    /// Boots a slot and runs `script` in it; its output.
    fn boot(&self, slot: &str, trial: &str, script: &str) -> String {
        self.boot_with(slot, trial, script, false)
    }

    fn boot_with(&self, slot: &str, trial: &str, script: &str, read_only: bool) -> String {
        let boot = self.dir.join("boot.sh");
        fs_err::write(&boot, BOOT).unwrap();
        let mounts = workspace().join("systemd/dracut/95slipway/slipway-mounts.sh");
        let mut c = proc::command("bash");
        c.args([
            boot.as_str(),
            self.disk.as_str(),
            slot,
            trial,
            script,
            mounts.as_str(),
        ]);
        if read_only {
            c.env("RO", "1");
        }
        proc::run(&mut c).unwrap()
    }

    /// A node that has run: settings changed, one removed, an identity stored.
    fn used() -> Lab {
        let lab = Lab::new();
        lab.boot(
            "A",
            "",
            "cd /sysroot; echo mine > etc/hosts; rm etc/containerd/config.toml; echo id > var/lib/identity; sync",
        );
        lab
    }
}

/// Prints what a test wants to know: settings, identity, whether /etc can be written, and the marks.
const LOOK: &str = "cd /sysroot; echo hosts=$(cat etc/hosts) removed=$([ -e etc/containerd/config.toml ] && echo no || echo yes) \
    id=$(cat var/lib/identity 2> /dev/null) image=$(cat var/lib/of-the-image); echo t > etc/test && echo t > var/test-file 2> /dev/null \
    && echo writable; for m in /run/os-agent/*; do [ ! -f $m ] || echo ${m##*/}: $(cat $m); done";

#[test]
#[ignore = "needs root and loop devices: tests/run image"]
fn etc_follows_the_slot() {
    let lab = Lab::used();
    let seen = lab.boot(
        "B",
        "2",
        "cd /sysroot; cat etc/hosts; ls etc/containerd | wc -l; echo ruined > etc/hosts; echo x > etc/containerd/config.toml; \
         awk '{ print $3 }' persist/os-agent/trial-signs",
    );
    assert_eq!(
        seen, "mine\n0\ninitramfs\n",
        "a trial begins with a copy, deletions included"
    );
    // Every try begins anew; the committed slot never sees any of it.
    assert_eq!(lab.boot("B", "1", "cat /sysroot/etc/hosts"), "mine\n");
    assert_eq!(
        lab.boot(
            "A",
            "",
            "cat /sysroot/etc/hosts; ls /sysroot/etc/containerd | wc -l"
        ),
        "mine\n0\n"
    );
    // Committed: B keeps its own.
    lab.boot("B", "0", "echo of-b > /sysroot/etc/hosts");
    assert_eq!(lab.boot("B", "", "cat /sysroot/etc/hosts"), "of-b\n");
    // A way back to an untouched slot keeps that slot's layer; an update gets a copy.
    let copy = lab.copy();
    copy.boot("B", "", "echo A > /sysroot/persist/os-agent/etc-keep");
    assert_eq!(copy.boot("A", "2", "cat /sysroot/etc/hosts"), "mine\n");
    lab.boot(
        "B",
        "",
        "printf -- '-\\n   ' > /sysroot/persist/os-agent/etc-keep",
    );
    assert_eq!(lab.boot("A", "2", "cat /sysroot/etc/hosts"), "of-b\n");
}

#[test]
#[ignore = "needs root and loop devices: tests/run image"]
fn a_persist_that_can_be_read_shows_what_it_holds() {
    let kept = "hosts=mine removed=yes id=id image=image\nwritable\npersist-missing: ";
    let lab = Lab::used();
    let seen = lab.boot_with("A", "", LOOK, true);
    assert!(
        seen.starts_with(kept) && seen.contains("can only be read"),
        "{seen}"
    );
    let superblock = lab.copy();
    superblock.damage("/dev/zero", 1024, 1024);
    let seen = superblock.boot("A", "", LOOK);
    assert!(seen.starts_with(kept) && seen.contains("sb=8193"), "{seen}");
    // Nothing of that was stored.
    assert_eq!(
        lab.boot("A", "", "ls /sysroot/etc/test 2> /dev/null || echo none"),
        "none\n"
    );
}

#[test]
#[ignore = "needs root and loop devices: tests/run image"]
fn a_persist_that_is_gone_leaves_the_image() {
    let image = "hosts=image removed=no id= image=image\nwritable\n";
    let lab = Lab::used();
    let zeros = lab.copy();
    zeros.damage("/dev/zero", 0, PERSIST_BYTES);
    let seen = zeros.boot("A", "", LOOK);
    assert!(
        seen.starts_with(image) && seen.contains("persist-missing: ") && seen.contains("bad superblock"),
        "{seen}"
    );
    proc::sh(&["sgdisk", "-d", "4", lab.disk.as_str()]).unwrap();
    let seen = lab.boot("A", "", LOOK);
    assert!(
        seen.starts_with(image) && seen.contains("no partition 4"),
        "{seen}"
    );
    // Nobody commits a trial without the settings of the running slot.
    let seen = lab.boot("B", "1", LOOK);
    assert!(seen.contains("etc-not-copied: no partition 4"), "{seen}");
}

#[test]
#[ignore = "needs root and loop devices: tests/run image"]
fn a_journal_of_garbage_is_repaired_and_said() {
    let lab = Lab::used();
    let persist = lab.dir.join("persist.img");
    let out = proc::sh(&["debugfs", "-R", "blocks <8>", persist.as_str()]).unwrap();
    let block: u64 = out.split_whitespace().next().unwrap().parse().unwrap();
    lab.damage("/dev/urandom", block * 1024, 65_536);
    let seen = lab.boot("A", "", LOOK);
    assert!(
        seen.starts_with("hosts=mine removed=yes id=id image=image\nwritable\n"),
        "{seen}"
    );
    assert!(
        seen.contains("persist-repaired: ") && seen.contains("e2fsck -p ended with 1"),
        "{seen}"
    );
    assert!(!seen.contains("persist-missing"), "{seen}");
    let seen = lab.boot("A", "", LOOK);
    assert!(!seen.contains("persist-repaired"), "once: {seen}");
}

#[test]
#[ignore = "needs root and loop devices: tests/run image"]
fn a_full_persist_keeps_its_settings() {
    let lab = Lab::used();
    let out = lab.boot(
        "A",
        "",
        "mkdir /sysroot/persist/junk; cd /sysroot/persist/junk; i=0; while { : > $i; } 2> /dev/null; do i=$((i + 1)); done; \
         for n in 0 1 2 3; do dd if=/dev/zero of=$n bs=64k 2> /dev/null || :; dd if=/dev/zero of=$n bs=1k oflag=append conv=notrunc \
         2> /dev/null || :; sync; done; { : > more; } 2> /dev/null && echo room || echo full",
    );
    assert_eq!(out, "full\n");
    let seen = lab.boot("A", "", LOOK);
    assert!(
        seen.starts_with("hosts=mine removed=yes id=id image=image\n"),
        "{seen}"
    );
    assert!(
        seen.contains("etc-in-memory: ") && !seen.contains("persist-missing"),
        "{seen}"
    );
    // A trial gets no copy, sees the settings all the same, and is not committed.
    let seen = lab.boot("B", "2", LOOK);
    assert!(
        seen.starts_with("hosts=mine removed=yes id=id image=image\n"),
        "{seen}"
    );
    assert!(seen.contains("etc-not-copied: "), "{seen}");
    lab.boot("A", "", "rm -r /sysroot/persist/junk; sync");
    let seen = lab.boot("A", "", LOOK);
    assert_eq!(seen, "hosts=mine removed=yes id=id image=image\nwritable\n");
}
