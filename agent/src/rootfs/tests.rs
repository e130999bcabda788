#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]
use super::tar::tests::{Maker, Member, member};
use super::*;
use crate::payload;
use crate::payload::tests::{Pieces, gz};
use crate::ports::{Cancel, Report};
use crate::sys::cmd;
use crate::testdisk::{Recorder, TestDisk};
use crate::verify;
use crate::write::{self, Installed, Limits};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::digest::Sha256Digest;
use os_proto::layout::{Role, Slot};
use std::sync::Arc;
use std::time::Duration;

const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const LABEL: &[u8] = b"system_u:object_r:bin_t:s0\0";

/// A root file system with something of everything.
fn archive() -> Maker {
    let mut m = Maker::default();
    m.add(&member("./", b'5'))
        .add(&member("./boot/", b'5'))
        .file("./boot/vmlinuz", &crate::testing::kernel(300_001))
        .file("./boot/initramfs.img", &vec![0xa5; 4096])
        .file(
            "./usr/lib/os-release",
            b"VERSION_ID=\"7\"\nPRETTY_NAME=\"KubeOS 7\"\n",
        )
        .add(&Member {
            mode: 0o755,
            data: &[b"\x7fELF\x02\x01\x01".as_slice(), &[0; 11], b"\x3e\0", &[0; 200]].concat(),
            ..member("./usr/bin/os-agent", b'0')
        });
    m.pax(&[
        ("SCHILY.xattr.security.capability", CAPABILITY),
        ("SCHILY.xattr.security.selinux", LABEL),
        ("uid", b"3000000"),
    ])
    .add(&Member {
        mode: 0o4755,
        owner: (0, 997),
        data: b"ping",
        ..member("./usr/bin/ping", b'0')
    });
    m.pax(&[("SCHILY.xattr.security.selinux", LABEL)])
        .file("./usr/bin/true", b"true")
        .add(&Member {
            link: "./usr/bin/true",
            ..member("./usr/bin/false", b'1')
        })
        .add(&Member {
            link: "usr/lib",
            ..member("./lib", b'2')
        })
        .add(&Member {
            device: (5, 1),
            ..member("./dev/console", b'3')
        })
        .add(&member("./run/fifo", b'6'))
        .file("./empty", b"");
    let long = format!("/{}", "x/".repeat(60));
    m.pax(&[("linkpath", long.as_bytes())]).add(&Member {
        link: "cut",
        ..member("./long", b'2')
    });
    for i in 0..700 {
        m.file(
            &format!("./many/a-name-that-takes-some-room-{i:04}"),
            &[i as u8; 10],
        );
    }
    m
}

struct Bench {
    _dir: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Bench {
    fn new(slot_mib: u64) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("system.img");
        TestDisk {
            slot_mib,
            ..TestDisk::default()
        }
        .create(&path);
        Bench { _dir: dir, path }
    }

    fn install(&self, file: &[u8], sum: Sha256Digest) -> Result<Installed> {
        let layout = crate::sys::discover::offline(&self.path, Slot::A)?;
        let slot = layout.inactive()?.open()?;
        let payload = payload::open(Pieces::of(file, 100_000, true), slot.size())?;
        let wanted = verify::opaque(sum, &verify::Policy::default())?;
        let report: Arc<dyn Report> = Arc::new(Recorder::default());
        Ok(write::install(
            payload,
            &wanted,
            slot,
            &Limits::default(),
            None,
            &Cancel::default(),
            &report,
        )?)
    }

    fn good(&self, file: &[u8]) -> Installed {
        self.install(file, sha(file)).unwrap()
    }

    /// The slot as a file of its own, for tools that know nothing of partitions.
    fn slot(&self, size: u64) -> Utf8PathBuf {
        let layout = crate::sys::discover::offline(&self.path, Slot::A).unwrap();
        let region = layout.region(Role::RootB).unwrap();
        let mut data = vec![0; size as usize];
        crate::sys::block::open_read(&region)
            .unwrap()
            .read_at(0, &mut data)
            .unwrap();
        let out = self.path.with_file_name("slot.img");
        std::fs::write(&out, data).unwrap();
        out
    }
}

fn sha(data: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(data).into())
}

/// A program of e2fsprogs, which every Debian has; elsewhere the test says that it was left out.
fn tool(name: &str, args: &[&str]) -> Option<cmd::Ended> {
    let path = ["/usr/sbin", "/sbin", "/usr/bin"]
        .map(|d| format!("{d}/{name}"))
        .into_iter()
        .find(|p| Utf8Path::new(p).exists());
    let Some(path) = path else {
        eprintln!("{name} is not here: left out");
        return None;
    };
    Some(cmd::run(&path, args, Duration::from_secs(120)).unwrap())
}

#[test]
fn kf_a9_an_archive_becomes_a_file_system_that_e2fsck_finds_nothing_wrong_with() {
    let b = Bench::new(16);
    let tar = archive().end();
    for file in [tar.clone(), gz(&Maker::default().file("os.tar", &tar).end())] {
        let i = b.good(&file);
        assert_eq!(i.payload_digest(), Some(sha(&file)));
        assert!(i.written() <= i.image_size() + (1 << 20));
        let img = b.slot(i.image_size());
        if let Some(e) = tool("e2fsck", &["-f", "-n", img.as_str()]) {
            assert!(e.ok() && !e.output.contains("Fix"), "{:?}: {}", e.exit, e.output);
        }
        let show = |what: &str| tool("debugfs", &["-R", what, img.as_str()]).map(|e| e.output);
        if let Some(s) = show("stat /usr/bin/ping") {
            assert!(s.contains("User: 3000000") && s.contains("Group:   997"), "{s}");
            assert!(s.contains("Mode:  04755"), "{s}");
            assert!(s.contains("security.capability (20)"), "{s}");
            assert!(s.contains("security.selinux (27)"), "{s}");
        }
        if let Some(s) = show("ea_get -x /usr/bin/ping security.capability") {
            assert!(s.contains("01 00 00 02 00 04"), "{s}");
        }
        if let Some(s) = show("stat /usr/bin/false") {
            assert!(
                s.contains("Links: 2") && s.contains("security.selinux (27)"),
                "{s}"
            );
        }
        if let Some(s) = show("stat /dev/console") {
            assert!(s.contains("character special") && s.contains("05:01"), "{s}");
        }
        if let Some(s) = show("cat /many/a-name-that-takes-some-room-0065") {
            assert!(s.contains("AAAAAAAAAA"), "{s}");
        }
        let seen = crate::inspect::inspect(&i, &crate::inspect::Wanted::default()).unwrap();
        assert_eq!(seen.pretty_name, "KubeOS 7");
    }
}

#[test]
fn the_same_archive_again_writes_nothing() {
    let b = Bench::new(16);
    let tar = archive().end();
    let first = b.good(&tar);
    let (size, hash) = (first.image_size(), first.image_sha256());
    drop(first);
    let again = b.good(&tar);
    assert_eq!((again.image_size(), again.image_sha256()), (size, hash));
    assert_eq!(again.written(), 0);
}

#[test]
fn kf_a10_owners_are_numbers_of_the_archive() {
    let mut m = archive();
    m.add(&Member {
        owner: (998, 998),
        data: b"x",
        ..member("./var/lib/one", b'0')
    });
    let b = Bench::new(16);
    let i = b.good(&m.end());
    let img = b.slot(i.image_size());
    if let Some(e) = tool("debugfs", &["-R", "stat /var/lib/one", img.as_str()]) {
        assert!(
            e.output.contains("User:   998") && e.output.contains("Group:   998"),
            "{}",
            e.output
        );
    }
}

#[test]
fn what_cannot_become_a_root_file_system_leaves_nothing_mountable() {
    let no_kernel = Maker::default().file("./boot/initramfs.img", b"x").end();
    let escape = {
        let mut m = archive();
        m.file("./../../etc/cron.d/x", b"x");
        m.end()
    };
    let through_link = {
        let mut m = archive();
        m.file("./lib/../../x", b"x");
        m.end()
    };
    let below_link = {
        let mut m = archive();
        m.file("./lib/x", b"x");
        m.end()
    };
    let twice = {
        let mut m = archive();
        m.file("./empty", b"x");
        m.end()
    };
    let cut = archive().out;
    for (file, code, says) in [
        (no_kernel, Code::NotBootable, "/boot/vmlinuz"),
        (escape, Code::PayloadCorrupt, "leads out"),
        (through_link, Code::PayloadCorrupt, "leads out"),
        (below_link, Code::PayloadCorrupt, "no directory"),
        (twice, Code::PayloadCorrupt, "twice"),
        (cut, Code::PayloadCorrupt, "end mark"),
    ] {
        let b = Bench::new(16);
        let e = b.install(&file, sha(&file)).unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.message.contains(says), "{e}");
        let head = std::fs::read(b.slot(4096)).unwrap();
        assert!(payload::sniff::ext4_bytes(&head).is_none());
    }
    // The right archive under a wrong checksum, and one that does not fit.
    let tar = archive().end();
    let b = Bench::new(16);
    let e = b.install(&tar, Sha256Digest([1; 32])).unwrap_err();
    assert_eq!(e.code, Code::ChecksumMismatch);
    assert!(payload::sniff::ext4_bytes(&std::fs::read(b.slot(4096)).unwrap()).is_none());
    let mut big = archive();
    big.file("./big", &vec![1; 5 << 20]);
    let e = Bench::new(4).install(&big.end(), sha(&big.end())).unwrap_err();
    assert_eq!(e.code, Code::SlotTooSmall, "{e}");
}

/// Collects what is pushed.
struct Sink(Vec<u8>);

impl Out for Sink {
    fn push(&mut self, data: &[u8]) -> Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }
}

#[test]
fn many_different_attributes_get_blocks_of_their_own() {
    let mut m = archive();
    let big = [7u8; 900];
    for i in 0..5 {
        m.pax(&[
            ("SCHILY.xattr.user.big", &big),
            ("SCHILY.xattr.security.selinux", LABEL),
        ])
        .file(&format!("./labelled-{i}"), b"x");
    }
    let plan = ext4::Plan {
        slot_size: 64 << 20,
        label: "ROOT-B".into(),
        uuid: uuid::Uuid::from_u128(7),
    };
    let front = plan.front() as usize * ext4::BLOCK;
    let mut sink = Sink(Vec::new());
    let built = build(&m.end()[..], "x", plan, &mut sink).unwrap();
    let image = [built.front.clone(), sink.0].concat();
    assert_eq!((built.front.len(), image.len() as u64), (front, built.size));
    let dir = tempfile::tempdir().unwrap();
    let img = Utf8Path::from_path(dir.path()).unwrap().join("x.img");
    std::fs::write(&img, &image).unwrap();
    if let Some(e) = tool("e2fsck", &["-f", "-n", img.as_str()]) {
        assert!(e.ok() && !e.output.contains("Fix"), "{:?}: {}", e.exit, e.output);
    }
    if let Some(e) = tool("debugfs", &["-R", "stat /labelled-3", img.as_str()]) {
        assert!(
            e.output.contains("user.big (900)") && e.output.contains("security.selinux (27)"),
            "{}",
            e.output
        );
    }
}
