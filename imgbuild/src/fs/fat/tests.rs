#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use crate::cmd::Cmd;
use camino::Utf8Path;
use os_proto::env_block::Env;
use os_proto::layout::{STATE_512, STATE_4096, Slot};

fn fsck(image: &Utf8Path) {
    let (status, out) = Cmd::new("fsck.fat")
        .args(["-n", "-V", "-v"])
        .arg(image)
        .status()
        .unwrap();
    let text = out.stdout_text();
    assert!(status.success(), "{text}{}", out.stderr_tail);
    for sign in ["differ", "Dirty", "wrong", "Wrong", "Bad", "bad "] {
        assert!(!text.contains(sign), "{text}");
    }
}

#[test]
fn os_state_is_clean_and_exactly_as_agreed() {
    let dir = tempfile::tempdir().unwrap();
    let image = Utf8Path::from_path(dir.path()).unwrap().join("state");
    let env = Env::committed(Slot::A, 1);
    for g in [STATE_512, STATE_4096] {
        let bytes = state_image(&g, 0x1234_5678, &env).unwrap();
        assert_eq!(bytes.len() as u64, OS_STATE_SIZE);
        crate::files::write(&image, &bytes).unwrap();
        fsck(&image);
        assert_eq!(
            &bytes[g.env1 as usize + 512..g.env2 as usize],
            [0u8; ENV_CLUSTER - 512].as_slice()
        );
    }
}

#[test]
fn boot_is_clean_and_the_same_every_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(dir.path()).unwrap();
    let files: Vec<FatFile> = vec![
        ("EFI/BOOT/BOOTX64.EFI".into(), vec![0x5a; 800_001]),
        ("grub/grub.cfg".into(), b"menuentry\n".to_vec()),
        ("grub/menu.env".into(), vec![]),
        ("x/y/z.bin".into(), vec![1; 4096]),
    ];
    for (size, volume) in [(64 << 20, 1), (512 << 20, 2)] {
        let (a, b) = (dir.join("a"), dir.join("b"));
        boot_image(&a, size, volume, &files).unwrap();
        fsck(&a);
        std::thread::sleep(std::time::Duration::from_millis(20));
        boot_image(&b, size, volume, &files).unwrap();
        assert!(crate::files::sha256(&a).unwrap() == crate::files::sha256(&b).unwrap());
    }
    let e = boot_image(&dir.join("e"), 64 << 20, 3, &[("a long name".into(), vec![])]).unwrap_err();
    assert_eq!(e.code, "FAT001");
    boot_image(&dir.join("empty"), 64 << 20, 3, &[]).unwrap();
    fsck(&dir.join("empty"));
}

#[test]
fn too_much_for_boot_is_said_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let image = Utf8Path::from_path(dir.path()).unwrap().join("x");
    let e = boot_image(&image, 64 << 20, 1, &[("a".into(), vec![0; 62 << 20])]).unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Space, "SIZE001"));
    assert!(!image.exists());
}
