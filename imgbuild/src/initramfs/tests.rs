#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use std::io::Read;

const GOOD: [&str; 9] = [
    "init",
    "usr/lib/systemd/systemd",
    "usr/lib/slipway/mounts",
    "var/lib/dracut/hooks/cmdline/05-slipway-pstore.sh",
    "var/lib/dracut/hooks/pre-mount/05-slipway-watchdog.sh",
    "var/lib/dracut/hooks/pre-pivot/10-slipway-pre-pivot.sh",
    "usr/bin/mount",
    "usr/sbin/e2fsck",
    "usr/lib/modules/6.1/kernel/fs/overlayfs/overlay.ko",
];

fn table() -> drivers::Table {
    drivers::Table::parse("kernel/fs/overlayfs/overlay.ko:\n", "kernel/fs/ext4/ext4.ko\n")
}

#[test]
fn a_whole_archive_lacks_nothing() {
    assert_eq!(
        missing(&cpio::tests::archive(&GOOD), &table()),
        Vec::<String>::new()
    );
}

#[test]
fn what_is_missing_is_named() {
    let without = |gone: usize| {
        let names: Vec<&str> = GOOD
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != gone)
            .map(|(_, n)| *n)
            .collect();
        missing(&cpio::tests::archive(&names), &table())
    };
    assert_eq!(without(0), ["init"]);
    assert_eq!(without(2), ["usr/lib/slipway/mounts"]);
    assert_eq!(without(8), ["driver overlay"]);
    assert!(missing(b"Pardon?", &table())[0].starts_with("a readable archive"));
    let bare = drivers::Table::parse("", "kernel/fs/ext4/ext4.ko\n");
    assert_eq!(
        missing(&cpio::tests::archive(&GOOD), &bare),
        ["driver overlay (the kernel package does not have it)"]
    );
}

#[test]
fn microcode_stays_readable_and_the_rest_is_compressed() {
    let early = cpio::tests::archive(&["kernel/x86/microcode/AuthenticAMD.bin"]);
    let main = cpio::tests::archive(&GOOD);
    let both = [early.clone(), main.clone()].concat();
    let zstd = compress(&both, true).unwrap();
    assert!(zstd.starts_with(&early));
    assert_eq!(zstd::decode_all(&zstd[early.len()..]).unwrap(), main);
    let gzip = compress(&main, false).unwrap();
    let mut back = Vec::new();
    flate2::read::GzDecoder::new(&gzip[..])
        .read_to_end(&mut back)
        .unwrap();
    assert_eq!(back, main);
    // No time of day in the gzip member.
    assert_eq!(gzip[4..8], [0; 4]);
}
