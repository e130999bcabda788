//! Discovery on real partition tables in image files, below a root directory with proc, sys and dev as the kernel shows them.

use super::*;
use crate::slots::{Identity, Layout};
use crate::testdisk::{TestDisk, fake_ext4, foreign_lock};
use os_proto::layout::{Arch, MIB, OS_STATE_SIZE, PHYSICAL_ORDER, Role, SLIPWAY};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::process::Command;
use uuid::Uuid;

/// A machine in a directory.
struct Machine {
    _dir: tempfile::TempDir,
    root: Utf8PathBuf,
}

/// How the kernel names partition `n` of a disk.
type Name = fn(&str, u32) -> String;

fn plain(disk: &str, n: u32) -> String {
    format!("{disk}{n}")
}

fn with_p(disk: &str, n: u32) -> String {
    format!("{disk}p{n}")
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap().to_owned();
        for d in ["proc/self", "sys/block", "dev"] {
            std::fs::create_dir_all(root.join(d)).unwrap();
        }
        Machine { _dir: dir, root }
    }

    fn put(&self, path: &str, text: &str) {
        let p = self.root.join(path);
        std::fs::create_dir_all(p.parent().unwrap()).unwrap();
        std::fs::write(p, text).unwrap();
    }

    fn node(&self, name: &str) -> Utf8PathBuf {
        self.root.join("dev").join(name)
    }

    /// Shows the disk at dev/`name` in sys; partition n has the minor number `minor + n`.
    fn show(&self, name: &str, (major, minor): (u32, u32), sector: u32, part: Name) {
        let file = File::open(self.node(name)).unwrap();
        let size = file.metadata().unwrap().len();
        let at = format!("sys/block/{name}");
        self.put(&format!("{at}/dev"), &format!("{major}:{minor}\n"));
        self.put(&format!("{at}/size"), &format!("{}\n", size / 512));
        self.put(&format!("{at}/queue/logical_block_size"), &format!("{sector}\n"));
        self.put(
            &format!("{at}/uevent"),
            &format!("MAJOR={major}\nDEVNAME={name}\nDEVTYPE=disk\n"),
        );
        if let Ok((t, _)) = read_table(&file, size, sector) {
            for e in &t.entries {
                let p = part(name, e.number);
                let at = format!("{at}/{p}");
                self.put(&format!("{at}/dev"), &format!("{major}:{}\n", minor + e.number));
                self.put(&format!("{at}/partition"), &format!("{}\n", e.number));
                self.put(&format!("{at}/uevent"), &format!("DEVNAME={p}\n"));
            }
        }
    }

    /// Boots slot `slot` of the disk at dev/`name`: command line and mount as GRUB and the initramfs make them.
    fn boot(&self, name: &str, sector: u32, root_dev: &str, slot: Slot) {
        let uuid = self.uuid(name, sector, slot.role());
        self.put(
            "proc/cmdline",
            &format!("root=PARTUUID={uuid} ro os.slot={slot} os.boot=1 quiet\n"),
        );
        self.put(
            "proc/self/mountinfo",
            &format!("22 1 {root_dev} / / ro,relatime shared:1 - ext4 /dev/root ro\n"),
        );
    }

    fn uuid(&self, name: &str, sector: u32, role: Role) -> Uuid {
        let file = File::open(self.node(name)).unwrap();
        let size = file.metadata().unwrap().len();
        let t = read_table(&file, size, sector).unwrap().0;
        t.entries
            .iter()
            .find(|e| e.number == role.number())
            .unwrap()
            .part_uuid
    }

    fn layout(&self) -> Result<Layout> {
        slots::discover(&gather_at(&self.root)?)
    }

    #[track_caller]
    fn refused(&self, code: Code, says: &str) {
        let e = self.layout().unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.message.contains(says), "{e}");
    }
}

/// A disk whose table another implementation writes (the `gpt` crate), with GUIDs derived from `seed`.
fn foreign_disk(path: &Utf8Path, seed: u128) {
    let size = 40 * MIB;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.set_len(size).unwrap();
    let mbr = gpt::mbr::ProtectiveMBR::with_lb_size(u32::try_from(size / 512 - 1).unwrap());
    let mut file = file;
    mbr.overwrite_lba0(&mut file).unwrap();
    let mut disk = gpt::GptConfig::new()
        .writable(true)
        .logical_block_size(gpt::disk::LogicalBlockSize::Lb512)
        .create_from_device(file, Some(Uuid::from_u128(seed)))
        .unwrap();
    let mut at = MIB;
    let mut parts = BTreeMap::new();
    for role in PHYSICAL_ORDER {
        let (start, len) = match role {
            Role::Bios => (40 * 512, MIB - 40 * 512),
            Role::OsState => (at, OS_STATE_SIZE),
            _ => (at, 4 * MIB),
        };
        if role != Role::Bios {
            at += len;
        }
        let row = role.entry();
        parts.insert(
            row.number,
            gpt::partition::Partition {
                part_type_guid: gpt::partition_types::Type {
                    guid: role.type_guid(Arch::X86_64),
                    os: gpt::partition_types::OperatingSystem::None,
                },
                part_guid: Uuid::from_u128(seed + u128::from(row.number)),
                first_lba: start / 512,
                last_lba: (start + len) / 512 - 1,
                flags: 0,
                name: row.name.to_owned(),
            },
        );
    }
    disk.update_partitions(parts).unwrap();
    disk.write().unwrap();
}

#[test]
fn kf_a1_every_disk_kind_on_tables_of_another_implementation() {
    let kinds: [(&str, (u32, u32), Name); 6] = [
        ("sda", (8, 0), plain),
        ("vda", (254, 0), plain),
        ("nvme0n1", (259, 0), with_p),
        // Names with a "2" that mean nothing.
        ("nvme2n1", (259, 16), with_p),
        ("mmcblk2", (179, 0), with_p),
        ("sdb2", (240, 0), |_, n| format!("odd-{n}")),
    ];
    for (name, dev, part) in kinds {
        let m = Machine::new();
        foreign_disk(&m.node(name), 0x1000);
        m.show(name, dev, 512, part);
        for slot in Slot::ALL {
            let n = slot.role().number();
            m.boot(name, 512, &format!("{}:{}", dev.0, dev.1 + n), slot);
            let l = m.layout().unwrap();
            assert_eq!((l.running(), l.disk()), (slot, m.node(name).as_path()));
            let r = l.region(slot.other().role()).unwrap();
            assert_eq!(r.path, m.node(&part(name, slot.other().role().number())));
            assert!(
                matches!(r.identity, Identity::Partition { part_uuid, .. } if part_uuid == l.inactive().unwrap().part_uuid())
            );
        }
        // Every role is where the table says.
        let l = m.layout().unwrap();
        for row in &SLIPWAY {
            assert_eq!(l.part(row.role).unwrap().number, row.number);
        }
    }
}

#[test]
fn kf_a1_a_device_mapper_root_on_an_nvme_partition() {
    let m = Machine::new();
    foreign_disk(&m.node("nvme2n1"), 0x1000);
    m.show("nvme2n1", (259, 0), 512, with_p);
    let part = m.root.join("sys/block/nvme2n1/nvme2n1p3");
    m.put("sys/block/dm-0/dev", "253:0\n");
    m.put("sys/block/dm-0/size", "8192\n");
    std::fs::create_dir_all(m.root.join("sys/block/dm-0/slaves")).unwrap();
    std::os::unix::fs::symlink(&part, m.root.join("sys/block/dm-0/slaves/nvme2n1p3")).unwrap();
    m.boot("nvme2n1", 512, "253:0", Slot::B);
    assert_eq!(m.layout().unwrap().running(), Slot::B);
    // Two partitions below it: no slot is the root.
    let second = m.root.join("sys/block/nvme2n1/nvme2n1p2");
    std::os::unix::fs::symlink(&second, m.root.join("sys/block/dm-0/slaves/nvme2n1p2")).unwrap();
    m.refused(Code::DiskUnsupported, "RAID or LVM");
}

#[test]
fn t28_the_booted_slot_is_named_alike_by_command_line_mount_and_table() {
    let m = Machine::new();
    foreign_disk(&m.node("sda"), 0x1000);
    m.show("sda", (8, 0), 512, plain);
    m.boot("sda", 512, "8:2", Slot::A);
    assert_eq!(m.layout().unwrap().running(), Slot::A);
    m.boot("sda", 512, "8:3", Slot::A);
    m.refused(Code::SlotContradiction, "slot B is mounted");
    let a = m.uuid("sda", 512, Role::RootA);
    m.boot("sda", 512, "8:2", Slot::A);
    m.put("proc/cmdline", &format!("root=PARTUUID={a} os.slot=B\n"));
    m.refused(Code::SlotContradiction, "os.slot=B");
    m.put("proc/cmdline", "root=LABEL=ROOT-A os.slot=A\n");
    m.refused(Code::SlotContradiction, "root=PARTUUID");
}

#[test]
fn t29_a_busy_target_is_named_and_nothing_changes() {
    let d = Scratch::of(512);
    let before = d.bytes();
    let held = foreign_lock(&d.path);
    let e = d.layout().inactive().unwrap().open().unwrap_err();
    assert_eq!(e.code, Code::SlotBusy, "{e}");
    assert!(
        e.message.contains("ROOT-B") && e.message.contains("another os-agent"),
        "{e}"
    );
    drop(held);
    assert!(d.layout().inactive().unwrap().open().is_ok());
    assert!(d.bytes() == before);
}

/// `sudo -E cargo test -p os-agent --lib -- --ignored t29`
#[test]
#[ignore = "needs root, mke2fs and loop devices"]
fn t29_a_mounted_swapped_or_stacked_target_is_named() {
    let d = Scratch::of(512);
    let region = d.region(Role::RootB);
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().unwrap();
        assert!(
            out.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    let (offset, size) = (region.offset.to_string(), region.size.to_string());
    let node = run(
        "losetup",
        &[
            "-f",
            "--show",
            "--offset",
            &offset,
            "--sizelimit",
            &size,
            d.path.as_str(),
        ],
    );
    run("mke2fs", &["-q", "-F", "-t", "ext4", &node]);
    let mount = d.dir().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    run("mount", &[&node, mount.as_str()]);
    let slot = crate::slots::Region {
        path: node.clone().into(),
        offset: 0,
        identity: Identity::Within,
        ..region
    };
    let mounted = crate::sys::block::open_slot(&slot).map(drop);
    run("umount", &[mount.as_str()]);
    // A loop device on top of it.
    let above = run("losetup", &["-f", "--show", &node]);
    let stacked = crate::sys::block::open_slot(&slot).map(drop);
    run("losetup", &["-d", &above]);
    let free = crate::sys::block::open_slot(&slot).map(drop);
    run("losetup", &["-d", &node]);
    let e = mounted.unwrap_err();
    assert_eq!(e.code, Code::SlotBusy);
    assert!(
        e.message.contains("mounted at") && e.message.contains(mount.as_str()),
        "{e}"
    );
    let e = stacked.unwrap_err();
    assert!(e.code == Code::SlotBusy && e.message.contains("loop"), "{e}");
    free.unwrap();
}

#[test]
fn t30_sectors_of_4096_bytes() {
    let m = Machine::new();
    TestDisk {
        sector: 4096,
        ..TestDisk::default()
    }
    .create(&m.node("nvme0n1"));
    m.show("nvme0n1", (259, 0), 4096, with_p);
    m.boot("nvme0n1", 4096, "259:3", Slot::B);
    let l = m.layout().unwrap();
    assert_eq!((l.running(), l.sector_size()), (Slot::B, 4096));
    assert!(l.part(Role::Bios).is_none(), "UEFI only");
    // Another implementation reads the same table.
    let theirs = gpt::GptConfig::new()
        .writable(false)
        .logical_block_size(gpt::disk::LogicalBlockSize::Lb4096)
        .open_from_device(File::open(m.node("nvme0n1")).unwrap())
        .unwrap();
    let part = l.part(Role::RootA).unwrap();
    assert!(
        theirs
            .partitions()
            .values()
            .any(|p| p.part_guid == part.part_uuid && p.first_lba * 4096 == part.start)
    );
    // The kernel says 512 where the table was made for 4096, and a size that nobody supports.
    m.put("sys/block/nvme0n1/queue/logical_block_size", "512\n");
    m.refused(Code::DiskUnsupported, "nvme0n1");
    m.put("sys/block/nvme0n1/queue/logical_block_size", "2048\n");
    m.refused(Code::DiskUnsupported, "2048");
}

#[test]
fn t31_a_damaged_table_of_a_large_disk_is_read_from_its_backup_and_never_written() {
    for sector in [512u32, 4096] {
        let m = Machine::new();
        TestDisk {
            sector,
            ..TestDisk::default()
        }
        .create(&m.node("sda"));
        let f = OpenOptions::new()
            .read(true)
            .write(true)
            .open(m.node("sda"))
            .unwrap();
        let s = u64::from(sector);
        // A large disk: the backup at its end, as after an image was written to it and grown.
        let large = 3 << 40;
        let small = f.metadata().unwrap().len();
        let table = read_table(&f, small, sector).unwrap().0;
        let size = if f.set_len(large).is_ok() {
            large
        } else {
            small + 64 * MIB
        };
        f.set_len(size).unwrap();
        let c = table.grown(4, size).unwrap().unwrap();
        for (at, bytes) in [
            &c.backup_entries,
            &c.backup_header,
            &c.primary_entries,
            &c.primary_header,
        ] {
            f.write_all_at(bytes, *at).unwrap();
        }
        m.show("sda", (8, 0), sector, plain);
        m.boot("sda", sector, "8:2", Slot::A);
        assert!(m.layout().unwrap().warnings().is_empty());
        let ends = |f: &File| {
            let (mut head, mut tail) = (vec![0u8; MIB as usize], vec![0u8; MIB as usize]);
            f.read_exact_at(&mut head, 0).unwrap();
            f.read_exact_at(&mut tail, size - MIB).unwrap();
            (head, tail)
        };
        f.write_all_at(&[0xff; 16], s + 40).unwrap();
        let before = ends(&f);
        let l = m.layout().unwrap();
        assert_eq!((l.disk_size(), l.running()), (size, Slot::A));
        assert!(l.warnings()[0].contains("nothing repaired"), "{:?}", l.warnings());
        // Opened for writing and written, the table still is not touched.
        let offline = offline(&m.node("sda"), Slot::A).unwrap();
        let open = offline.inactive().unwrap().open().unwrap();
        let mut block = crate::sys::buf::AlignedBuf::zeroed(4096);
        block.fill(7);
        open.device().lock().unwrap().write_at(0, &block).unwrap();
        open.device().lock().unwrap().flush().unwrap();
        assert!(ends(&f) == before, "GPT bytes changed");
        // Both copies gone: refused, and still not touched.
        f.write_all_at(&[0xff; 16], size - s + 40).unwrap();
        let before = ends(&f);
        m.refused(Code::DiskUnsupported, "checksum");
        assert!(ends(&f) == before);
    }
}

#[test]
fn t32_t33_same_labels_and_file_system_ids_in_both_slots_are_no_matter() {
    let d = Scratch::of(512);
    let same = fake_ext4(1 << 20, 7);
    for role in [Role::RootA, Role::RootB] {
        d.open().write_all_at(&same, d.region(role).offset).unwrap();
    }
    for slot in Slot::ALL {
        let l = offline(&d.path, slot).unwrap();
        let other = l.inactive().unwrap();
        assert_eq!(other.slot(), slot.other());
        assert_eq!(other.part_uuid(), l.part(slot.other().role()).unwrap().part_uuid);
        let open = other.open().unwrap();
        let mut block = crate::sys::buf::AlignedBuf::zeroed(4096);
        block.fill(slot.letter().as_bytes()[0]);
        open.device().lock().unwrap().write_at(0, &block).unwrap();
    }
    let now = d.bytes();
    assert_eq!(
        now[d.region(Role::RootB).offset as usize],
        b'A',
        "slot A ran, B was written"
    );
    assert_eq!(now[d.region(Role::RootA).offset as usize], b'B');
}

#[test]
fn t34_a_clone_of_the_disk_is_refused_under_any_name() {
    let m = Machine::new();
    foreign_disk(&m.node("nvme0n1"), 0x1000);
    m.show("nvme0n1", (259, 0), 512, with_p);
    m.boot("nvme0n1", 512, "259:2", Slot::A);
    assert!(m.layout().is_ok());
    // Another installation of the same system: equal names, other GUIDs.
    foreign_disk(&m.node("sda"), 0x2000);
    m.show("sda", (8, 0), 512, plain);
    assert_eq!(m.layout().unwrap().disk(), m.node("nvme0n1"));
    // A clone, seen once more as a second path to it would be.
    std::fs::copy(m.node("nvme0n1"), m.node("aaa")).unwrap();
    m.show("aaa", (240, 0), 512, plain);
    m.refused(Code::SlotAmbiguous, "detach the copy");
    std::fs::remove_dir_all(m.root.join("sys/block/aaa")).unwrap();
    assert!(m.layout().is_ok());
    // One PARTUUID alone is enough.
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .open(m.node("sda"))
        .unwrap();
    let mut disk = gpt::GptConfig::new().writable(true).open_from_device(f).unwrap();
    let mut parts = disk.take_partitions();
    parts.get_mut(&4).unwrap().part_guid = m.uuid("nvme0n1", 512, Role::RootB);
    disk.update_partitions(parts).unwrap();
    disk.write().unwrap();
    m.refused(Code::SlotAmbiguous, "ROOT-B");
}

#[test]
fn t34_roles_that_are_missing_double_or_renamed_in_a_real_table() {
    type Change = fn(&mut BTreeMap<u32, gpt::partition::Partition>);
    let cases: [(Change, Code, &str); 5] = [
        (
            |p| p.get_mut(&3).unwrap().name = "ROOT-A".into(),
            Code::SlotAmbiguous,
            "ROOT-A",
        ),
        (
            |p| p.get_mut(&3).unwrap().name = "DATA".into(),
            Code::SlotAmbiguous,
            "ROOT-B",
        ),
        (
            |p| {
                let (a, b) = (p[&2].name.clone(), p[&3].name.clone());
                p.get_mut(&2).unwrap().name = b;
                p.get_mut(&3).unwrap().name = a;
            },
            Code::SlotAmbiguous,
            "expected number",
        ),
        (
            |p| p.get_mut(&6).unwrap().name = "data".into(),
            Code::DiskUnsupported,
            "KubeOS",
        ),
        (
            |p| {
                let a = p[&2].part_guid;
                p.get_mut(&3).unwrap().part_guid = a;
            },
            Code::SlotAmbiguous,
            "PARTUUID",
        ),
    ];
    for (change, code, says) in cases {
        let m = Machine::new();
        foreign_disk(&m.node("sda"), 0x1000);
        m.show("sda", (8, 0), 512, plain);
        m.boot("sda", 512, "8:2", Slot::A);
        let f = OpenOptions::new()
            .read(true)
            .write(true)
            .open(m.node("sda"))
            .unwrap();
        let mut disk = gpt::GptConfig::new().writable(true).open_from_device(f).unwrap();
        let mut parts = disk.take_partitions();
        change(&mut parts);
        disk.update_partitions(parts).unwrap();
        disk.write().unwrap();
        m.refused(code, says);
    }
}

#[test]
fn t35_the_second_disk_of_the_same_system_stays_as_it_is() {
    let m = Machine::new();
    for (name, seed, dev) in [("nvme0n1", 0x1000, (259, 0)), ("nvme1n1", 0x2000, (259, 16))] {
        foreign_disk(&m.node(name), seed);
        m.show(name, dev, 512, with_p);
    }
    m.boot("nvme1n1", 512, "259:18", Slot::A);
    let l = m.layout().unwrap();
    assert_eq!(l.disk(), m.node("nvme1n1"));
    let before = std::fs::read(m.node("nvme0n1")).unwrap();
    // The kernel's partition device, as a file of the same size.
    let target = l.region(Role::RootB).unwrap();
    assert_eq!(target.path, m.node("nvme1n1p3"));
    File::create(&target.path).unwrap().set_len(target.size).unwrap();
    let open = l.inactive().unwrap().open().unwrap();
    let mut block = crate::sys::buf::AlignedBuf::zeroed(4096);
    block.fill(1);
    open.device().lock().unwrap().write_at(0, &block).unwrap();
    drop(open);
    assert!(std::fs::read(m.node("nvme0n1")).unwrap() == before);
    assert_eq!(std::fs::read(&target.path).unwrap()[0], 1);
    // A target of another size than the table says is not the one that was meant.
    File::create(&target.path)
        .unwrap()
        .set_len(target.size / 2)
        .unwrap();
    assert_eq!(
        l.inactive().unwrap().open().unwrap_err().code,
        Code::SlotContradiction
    );
}

#[test]
fn t36_disks_that_changed_their_names_between_boots() {
    let m = Machine::new();
    foreign_disk(&m.node("sda"), 0x1000);
    foreign_disk(&m.node("sdb"), 0x2000);
    m.show("sda", (8, 0), 512, plain);
    m.show("sdb", (8, 16), 512, plain);
    m.boot("sda", 512, "8:3", Slot::B);
    let before = m.layout().unwrap();
    assert_eq!(before.disk(), m.node("sda"));
    // The same disk comes up as sdb.
    std::fs::rename(m.node("sda"), m.node("tmp")).unwrap();
    std::fs::rename(m.node("sdb"), m.node("sda")).unwrap();
    std::fs::rename(m.node("tmp"), m.node("sdb")).unwrap();
    m.boot("sdb", 512, "8:19", Slot::B);
    let after = m.layout().unwrap();
    assert_eq!(
        (after.disk(), after.running()),
        (m.node("sdb").as_path(), Slot::B)
    );
    assert_eq!(
        after.inactive().unwrap().part_uuid(),
        before.inactive().unwrap().part_uuid()
    );
}

#[test]
fn disks_without_slots_are_named_for_what_they_are() {
    let m = Machine::new();
    foreign_disk(&m.node("sda"), 0x1000);
    m.show("sda", (8, 0), 512, plain);
    m.boot("sda", 512, "8:0", Slot::A);
    m.refused(Code::DiskUnsupported, "whole disk");
    m.put("proc/self/mountinfo", "22 1 0:31 / / rw - overlay overlay rw\n");
    m.refused(Code::DiskUnsupported, "overlay");
    // An msdos table under the running root.
    let mut mbr = vec![0u8; 40 << 20];
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(m.node("sda"), &mbr).unwrap();
    m.put("proc/self/mountinfo", "22 1 8:2 / / ro - ext4 /dev/root ro\n");
    m.refused(Code::DiskUnsupported, "msdos");
}

/// Tables that sgdisk writes, where it is installed.
#[test]
fn tables_of_sgdisk_read_alike() {
    let m = Machine::new();
    foreign_disk(&m.node("sda"), 0x1000);
    let Ok(out) = Command::new("sgdisk")
        .args([
            "--move-second-header",
            "--verify",
            "--print",
            m.node("sda").as_str(),
        ])
        .output()
    else {
        println!("skipped: no sgdisk here");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("No problems found"),
        "{text}"
    );
    for row in &SLIPWAY {
        assert!(
            text.lines()
                .any(|l| l.trim_start().starts_with(&row.number.to_string()) && l.ends_with(row.name)),
            "{text}"
        );
    }
    m.show("sda", (8, 0), 512, plain);
    m.boot("sda", 512, "8:2", Slot::A);
    assert_eq!(m.layout().unwrap().running(), Slot::A);
}
