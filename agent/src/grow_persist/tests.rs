#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::Scratch;
use os_proto::layout::MIB;

#[test]
fn an_image_made_larger_gets_a_larger_persist_once() {
    for sector in [512, 4096] {
        let d = Scratch::of(sector);
        let layout = d.layout();
        let g = run(&layout).unwrap();
        assert!(!g.changed(), "{g:?}");

        d.open().set_len(layout.disk_size() + 9 * MIB).unwrap();
        let before = d.bytes();
        let layout = d.layout();
        let g = run(&layout).unwrap();
        assert_eq!((g.partition_before, g.partition_now), (MIB, 10 * MIB));
        let again = d.layout();
        assert_eq!(again.part(Role::Persist).unwrap().size, 10 * MIB);
        assert!(!run(&again).unwrap().changed());
        // Nothing between the tables changed.
        let after = d.bytes();
        let (from, to) = (MIB as usize, before.len() - MIB as usize);
        assert!(before[from..to] == after[from..to]);
        if sector == 512 {
            let disk = gpt::GptConfig::new()
                .writable(false)
                .open_from_device(d.open())
                .unwrap();
            assert_eq!(
                disk.primary_header().unwrap().backup_lba,
                after.len() as u64 / 512 - 1
            );
            assert_eq!(
                u64::from(u32::from_le_bytes(after[458..462].try_into().unwrap())),
                after.len() as u64 / 512 - 1
            );
        }
    }
}

#[test]
fn a_damaged_table_is_left_alone() {
    let d = Scratch::of(512);
    let f = d.open();
    let layout = d.layout();
    f.write_all_at(&[0xff; 4], 512 + 60).unwrap();
    f.set_len(layout.disk_size()).unwrap();
    let before = d.bytes();
    assert_eq!(run(&layout).unwrap_err().code, Code::DiskUnsupported);
    assert_eq!(d.bytes(), before);
}

/// Whether this process has CAP_SYS_RESOURCE (bit 24), which containers often lack.
fn may_grow() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() >> 24 & 1 == 1
}

/// `sudo -E cargo test -p os-agent --lib -- --ignored a_mounted`
#[test]
#[ignore = "needs root with CAP_SYS_RESOURCE, mke2fs and a loop device"]
fn a_mounted_file_system_grows_to_its_device() {
    use std::process::Command;
    if !may_grow() {
        println!(
            "skipped: growing a mounted file system needs CAP_SYS_RESOURCE, which this machine does not give"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(dir.path()).unwrap();
    let (image, at) = (root.join("img"), root.join("mnt"));
    std::fs::create_dir(&at).unwrap();
    File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().unwrap();
        assert!(
            out.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    run("mke2fs", &["-q", "-F", "-t", "ext4", image.as_str(), "32M"]);
    let node = run("losetup", &["-f", "--show", image.as_str()]);
    run("mount", &[&node, at.as_str()]);
    let dev = DevNo::from_rdev(std::os::unix::fs::MetadataExt::rdev(
        &std::fs::metadata(&node).unwrap(),
    ));
    let first = grow_fs(dev, Utf8Path::new(&node), 64 * MIB);
    let again = grow_fs(dev, Utf8Path::new(&node), 64 * MIB);
    run("umount", &[at.as_str()]);
    run("losetup", &["-d", &node]);
    run("e2fsck", &["-fn", image.as_str()]);
    assert_eq!(first.unwrap(), (32 * MIB, 64 * MIB));
    assert_eq!(again.unwrap(), (64 * MIB, 64 * MIB));
}
