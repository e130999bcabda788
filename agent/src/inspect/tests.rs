#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::slots::{Identity, Region};
use camino::{Utf8Path, Utf8PathBuf};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

fn mode(path: &Utf8Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// An ext4 image made by mke2fs from a tree; `None` where the machine has no mke2fs.
fn image(
    dir: &Utf8Path,
    change: impl Fn(&Utf8Path),
    options: &[&str],
) -> Option<Arc<Mutex<Box<dyn SlotDevice>>>> {
    let tree = dir.join("tree");
    for d in ["boot", "usr/bin", "usr/lib/modules/6.1", "etc"] {
        std::fs::create_dir_all(tree.join(d)).unwrap();
    }
    std::fs::write(
        tree.join("usr/lib/os-release"),
        "NAME=Slipway\nPRETTY_NAME=\"Slipway 2\"\nVERSION_ID=2\n",
    )
    .unwrap();
    std::fs::write(
        tree.join("usr/lib/modules/6.1/vmlinuz"),
        crate::testing::kernel(300_000),
    )
    .unwrap();
    symlink("/usr/lib/modules/6.1/vmlinuz", tree.join("boot/vmlinuz")).unwrap();
    std::fs::write(tree.join("boot/initramfs.img"), vec![8; 100_000]).unwrap();
    let mut elf = vec![0u8; 5000];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18] = 62;
    std::fs::write(tree.join("usr/bin/os-agent"), elf).unwrap();
    mode(&tree.join("usr/bin/os-agent"), 0o755);
    change(&tree);
    let file: Utf8PathBuf = dir.join("fs.img");
    let made = ["mke2fs", "/sbin/mke2fs", "/usr/sbin/mke2fs"]
        .iter()
        .find_map(|p| {
            Command::new(p)
                .args(["-q", "-F", "-t", "ext4", "-d", tree.as_str()])
                .args(options)
                .args([file.as_str(), "16M"])
                .stdout(std::process::Stdio::null())
                .status()
                .ok()
        });
    let Some(status) = made else {
        eprintln!("left to tests/run: no mke2fs here");
        return None;
    };
    assert!(status.success());
    let region = Region {
        name: "ROOT-B".into(),
        path: file.clone(),
        offset: 0,
        size: std::fs::metadata(&file).unwrap().len(),
        sector_size: 512,
        identity: Identity::Within,
    };
    Some(Arc::new(Mutex::new(
        crate::sys::block::open_read(&region).unwrap(),
    )))
}

fn look(change: impl Fn(&Utf8Path), options: &[&str], wanted: &Wanted) -> Option<Result<Inspected>> {
    let dir = tempfile::tempdir().unwrap();
    let d = image(Utf8Path::from_path(dir.path()).unwrap(), change, options)?;
    let size = d.lock().unwrap().size();
    Some(device(&d, size, "ROOT-B", wanted))
}

fn version(v: &str) -> Wanted {
    Wanted {
        version: Some(v.into()),
        arch: Some(Arch::X86_64),
    }
}

#[test]
fn a_whole_image_is_recognised_with_and_without_a_journal() {
    for options in [
        &["-O", "^has_journal"][..],
        &[],
        &["-b", "1024"],
        &["-O", "^metadata_csum,^64bit"],
    ] {
        for v in ["2", "Slipway 2"] {
            let Some(r) = look(|_| {}, options, &version(v)) else {
                return;
            };
            let i = r.unwrap();
            assert_eq!(
                (i.pretty_name.as_str(), i.version_id.as_str()),
                ("Slipway 2", "2")
            );
            assert_eq!(i.arch, Some(Arch::X86_64));
        }
    }
    if let Some(r) = look(|_| {}, &[], &Wanted::default()) {
        r.unwrap();
    }
}

#[test]
fn what_could_not_boot_or_is_another_is_refused() {
    type Change = fn(&Utf8Path);
    let cases: [(Change, &str, Code, &str); 18] = [
        (
            |t| mode(&t.join("usr/bin/os-agent"), 0o644),
            "2",
            Code::NotBootable,
            "agent /usr/bin/os-agent is not executable (mode 0644",
        ),
        (
            |t| {
                init(t);
                mode(&t.join("usr/lib/systemd/systemd"), 0o4644);
            },
            "2",
            Code::NotBootable,
            "init /sbin/init is not executable (mode 4644",
        ),
        (
            |t| std::fs::write(t.join("usr/lib/modules/6.1/vmlinuz"), "abc").unwrap(),
            "2",
            Code::NotBootable,
            "kernel /boot/vmlinuz is no kernel (3 bytes",
        ),
        (
            |t| std::fs::write(t.join("usr/lib/modules/6.1/vmlinuz"), vec![7; 300_000]).unwrap(),
            "2",
            Code::NotBootable,
            "is no kernel",
        ),
        (
            |t| {
                let k = crate::testing::kernel(300_000);
                std::fs::write(t.join("usr/lib/modules/6.1/vmlinuz"), &k[..200_000]).unwrap();
            },
            "2",
            Code::NotBootable,
            "it is cut off",
        ),
        (
            |t| {
                let mut k = vec![0u8; 300_000];
                k[0x38..0x3c].copy_from_slice(b"ARM\x64");
                std::fs::write(t.join("usr/lib/modules/6.1/vmlinuz"), k).unwrap();
            },
            "2",
            Code::NotBootable,
            "is for aarch64, the agent beside it for x86_64",
        ),
        (
            |t| {
                std::fs::remove_file(t.join("usr/bin/os-agent")).unwrap();
                std::os::unix::net::UnixListener::bind(t.join("usr/bin/os-agent")).unwrap();
            },
            "2",
            Code::NotBootable,
            "is not a regular file",
        ),
        (|_| {}, "3", Code::WrongVersion, "wanted \"3\""),
        (
            |t| std::fs::remove_file(t.join("boot/vmlinuz")).unwrap(),
            "2",
            Code::NotBootable,
            "/boot/vmlinuz is missing",
        ),
        (
            |t| std::fs::remove_file(t.join("usr/lib/modules/6.1/vmlinuz")).unwrap(),
            "2",
            Code::NotBootable,
            "/boot/vmlinuz is missing",
        ),
        (
            |t| std::fs::write(t.join("boot/initramfs.img"), "").unwrap(),
            "2",
            Code::NotBootable,
            "is empty",
        ),
        (
            |t| std::fs::remove_file(t.join("usr/bin/os-agent")).unwrap(),
            "2",
            Code::NotBootable,
            "/usr/bin/os-agent is missing",
        ),
        (
            |t| std::fs::write(t.join("usr/bin/os-agent"), "#!/bin/sh\n").unwrap(),
            "2",
            Code::NotBootable,
            "no whole ELF header",
        ),
        (
            |t| std::fs::write(t.join("usr/bin/os-agent"), "\x7fELF garbage").unwrap(),
            "2",
            Code::NotBootable,
            "no whole ELF header",
        ),
        (
            |t| std::fs::remove_file(t.join("usr/lib/os-release")).unwrap(),
            "2",
            Code::NotBootable,
            "os-release is missing",
        ),
        (
            |t| std::fs::write(t.join("usr/lib/os-release"), vec![b'#'; 100_000]).unwrap(),
            "2",
            Code::NotBootable,
            "no os-release",
        ),
        (
            |t| {
                let p = t.join("usr/bin/os-agent");
                let mut elf = std::fs::read(&p).unwrap();
                elf[18] = 183;
                std::fs::write(&p, elf).unwrap();
            },
            "2",
            Code::WrongArch,
            "image is for aarch64, this node is x86_64",
        ),
        (
            |t| {
                std::fs::remove_file(t.join("boot/vmlinuz")).unwrap();
                symlink("vmlinuz", t.join("boot/vmlinuz")).unwrap();
            },
            "2",
            Code::NotBootable,
            "/boot/vmlinuz",
        ),
    ];
    for (change, v, code, says) in cases {
        let Some(r) = look(change, &["-O", "^has_journal"], &version(v)) else {
            return;
        };
        let e = r.unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.message.contains(says), "{e} / {says}");
    }
}

/// A program that /sbin/init leads to.
fn init(tree: &Utf8Path) {
    for d in ["usr/lib/systemd", "sbin"] {
        std::fs::create_dir_all(tree.join(d)).unwrap();
    }
    let program = tree.join("usr/lib/systemd/systemd");
    std::fs::write(&program, "x").unwrap();
    mode(&program, 0o755);
    symlink("../usr/lib/systemd/systemd", tree.join("sbin/init")).unwrap();
}

#[test]
fn an_init_that_can_run_and_one_that_is_missing_are_left_to_the_boot() {
    type Change = fn(&Utf8Path);
    let changes: [Change; 2] = [init, |t| {
        init(t);
        std::fs::remove_file(t.join("usr/lib/systemd/systemd")).unwrap();
    }];
    for change in changes {
        let Some(r) = look(change, &[], &version("2")) else {
            return;
        };
        r.unwrap();
    }
}

#[test]
fn os_release_in_etc_counts_when_there_is_no_other() {
    let change = |t: &Utf8Path| {
        std::fs::remove_file(t.join("usr/lib/os-release")).unwrap();
        std::fs::write(
            t.join("etc/os-release"),
            "PRETTY_NAME='Other 9'\nVERSION_ID=\"9\"\n",
        )
        .unwrap();
    };
    let Some(r) = look(change, &[], &version("9")) else {
        return;
    };
    assert_eq!(r.unwrap().pretty_name, "Other 9");
}

#[test]
fn a_damaged_file_system_is_corrupt_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(dir.path()).unwrap();
    let Some(d) = image(root, |_| {}, &["-O", "^has_journal"]) else {
        return;
    };
    let size = d.lock().unwrap().size();
    let bytes = std::fs::read(root.join("fs.img")).unwrap();
    let region = Region {
        name: "ROOT-B".into(),
        path: root.join("bad.img"),
        offset: 0,
        size,
        sector_size: 512,
        identity: Identity::Within,
    };
    for seed in 0..60usize {
        let mut bad = bytes.clone();
        for k in 0..20 {
            // Mostly metadata: the first half MiB.
            let at = 1024 + (seed * 7919 + k * 104_729) % (512 << 10);
            bad[at] ^= 0x5a;
        }
        std::fs::write(&region.path, &bad).unwrap();
        let d = Arc::new(Mutex::new(crate::sys::block::open_read(&region).unwrap()));
        let _ = device(&d, size, "ROOT-B", &version("2"));
    }
    let d = Arc::new(Mutex::new(crate::sys::block::open_read(&region).unwrap()));
    assert_eq!(
        device(&d, 1000, "ROOT-B", &version("2")).unwrap_err().code,
        Code::PayloadCorrupt
    );
}

#[test]
fn os_release_quoting() {
    for (text, pretty, id) in [
        (
            "PRETTY_NAME=\"a \\\"b\\\" \\$c\"\nVERSION_ID='x y'\n",
            "a \"b\" $c",
            "x y",
        ),
        ("#PRETTY_NAME=no\nVERSION_ID=1\nVERSION_ID=2\n", "", "2"),
        ("", "", ""),
    ] {
        let r = parse_os_release(text);
        assert_eq!((r.pretty_name.as_str(), r.version_id.as_str()), (pretty, id));
    }
}
