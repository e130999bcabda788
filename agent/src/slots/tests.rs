#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use os_proto::layout::{Arch, MIB, type_guid};

const A: u128 = 0xaaaa;
const B: u128 = 0xbbbb;

fn entry(role: Role, start: u64, size: u64, uuid: u128) -> Entry {
    Entry {
        number: role.number(),
        name: role.name().into(),
        type_guid: role.type_guid(Arch::X86_64),
        part_uuid: Uuid::from_u128(uuid),
        start: start * MIB,
        size: size * MIB,
    }
}

/// A disk as imgbuild makes it; `name(n)` names partition n as the driver would.
fn disk(node: &str, major: u32, minor: u32, base: u128, name: impl Fn(u32) -> String) -> DiskFact {
    let bios = Entry {
        start: 20480,
        size: MIB - 20480,
        ..entry(Role::Bios, 0, 0, base + 5)
    };
    DiskFact {
        node: node.into(),
        dev: Some(DevNo::new(major, minor)),
        size: 100 * MIB,
        sector_size: 512,
        table: TableFact::Gpt {
            entries: vec![
                entry(Role::Boot, 1, 10, base + 1),
                entry(Role::RootA, 20, 10, base + A),
                entry(Role::RootB, 30, 10, base + B),
                entry(Role::Persist, 40, 50, base + 4),
                bios,
                entry(Role::OsState, 11, 2, base + 6),
            ],
            primary_damage: None,
            backup_damage: None,
        },
        nodes: (1..=6)
            .map(|n| PartNode {
                number: n,
                dev: DevNo::new(major, minor + n),
                node: name(n).into(),
            })
            .collect(),
    }
}

fn facts(d: DiskFact, root: &str, line: &str) -> Facts {
    Facts {
        cmdline: line.into(),
        mountinfo: format!("1 0 0:2 / / rw - rootfs rootfs rw\n22 1 {root} / / ro - ext4 /dev/root ro\n"),
        disks: vec![d],
        slaves: BTreeMap::new(),
    }
}

fn line(uuid: u128, slot: &str) -> String {
    format!(
        "BOOT_IMAGE=/boot/vmlinuz root=PARTUUID={} ro os.slot={slot} os.boot=1 quiet\n",
        Uuid::from_u128(uuid)
    )
}

fn sda() -> DiskFact {
    disk("/dev/sda", 8, 0, 0, |n| format!("/dev/sda{n}"))
}

fn entries(d: &mut DiskFact) -> &mut Vec<Entry> {
    match &mut d.table {
        TableFact::Gpt { entries, .. } => entries,
        TableFact::Other(_) => panic!("a GPT"),
    }
}

#[test]
fn every_kind_of_disk_is_found_by_numbers_not_by_names() {
    for (node, major, minor, name) in [
        ("/dev/nvme0n1", 259, 0, "/dev/nvme0n1p"),
        ("/dev/mmcblk0", 179, 0, "/dev/mmcblk0p"),
        ("/dev/vda", 254, 0, "/dev/vda"),
        ("/dev/sda", 8, 0, "/dev/sda"),
        ("/dev/strange9name", 240, 16, "/dev/elsewhere/"),
    ] {
        let d = disk(node, major, minor, 0, |n| format!("{name}{n}"));
        for (slot, uuid) in [(Slot::A, A), (Slot::B, B)] {
            let root = format!("{major}:{}", minor + slot.role().number());
            let l = discover(&facts(d.clone(), &root, &line(uuid, slot.letter()))).unwrap();
            assert_eq!((l.running(), l.disk().as_str()), (slot, node));
            let other = l.inactive().unwrap();
            assert_eq!((other.slot(), other.size()), (slot.other(), 10 * MIB));
            let region = l.region(slot.other().role()).unwrap();
            assert_eq!(region.path, format!("{name}{}", slot.other().role().number()));
            assert_eq!(region.offset, 0);
            assert!(l.part(Role::OsState).is_some() && l.warnings().is_empty());
        }
    }
}

#[test]
fn a_root_on_device_mapper_leads_to_its_one_partition() {
    let mut f = facts(sda(), "253:1", &line(B, "B"));
    f.slaves.insert(DevNo::new(253, 1), vec![DevNo::new(253, 0)]);
    f.slaves.insert(DevNo::new(253, 0), vec![DevNo::new(8, 3)]);
    assert_eq!(discover(&f).unwrap().running(), Slot::B);

    f.slaves
        .insert(DevNo::new(253, 0), vec![DevNo::new(8, 3), DevNo::new(8, 19)]);
    refused(&f, Code::DiskUnsupported, "8:3, 8:19");
    f.slaves.insert(DevNo::new(253, 0), vec![DevNo::new(253, 1)]);
    refused(&f, Code::DiskUnsupported, "no partition");
}

#[track_caller]
fn refused(f: &Facts, code: Code, says: &str) {
    let e = discover(f).unwrap_err();
    assert_eq!(e.code, code, "{e}");
    assert!(e.message.contains(says), "{e}");
}

#[test]
fn a_second_disk_is_no_matter_until_it_is_a_copy() {
    let mut f = facts(sda(), "8:2", &line(A, "A"));
    let other = disk("/dev/sdb", 8, 16, 0x1_0000_0000, |n| format!("/dev/sdb{n}"));
    f.disks.insert(0, other);
    assert_eq!(discover(&f).unwrap().disk(), "/dev/sda");
    // The kernel swapped the names of both disks since the last run.
    let mut swapped = f.clone();
    swapped.disks[0].node = "/dev/sda".into();
    swapped.disks[1].node = "/dev/sdb".into();
    assert_eq!(discover(&swapped).unwrap().disk(), "/dev/sdb");

    f.disks[0] = disk("/dev/sdb", 8, 16, 0, |n| format!("/dev/sdb{n}"));
    refused(&f, Code::SlotAmbiguous, "/dev/sdb");
    // Same GUID on an otherwise foreign disk.
    f.disks[0] = disk("/dev/sdb", 8, 16, 0x1_0000_0000, |n| format!("/dev/sdb{n}"));
    entries(&mut f.disks[0]).truncate(1);
    entries(&mut f.disks[0])[0].part_uuid = Uuid::from_u128(B);
    refused(&f, Code::SlotAmbiguous, "ROOT-B");
}

#[test]
fn roles_that_are_missing_double_or_renamed_are_refused() {
    type Change = fn(&mut Vec<Entry>);
    let cases: [(Change, Code, &str); 8] = [
        (
            |e| e[2].name = "ROOT-A".into(),
            Code::SlotAmbiguous,
            "2 and 3 are all named ROOT-A",
        ),
        (
            |e| {
                e.remove(2);
            },
            Code::SlotAmbiguous,
            "ROOT-B",
        ),
        (
            |e| {
                e.remove(0);
            },
            Code::SlotAmbiguous,
            "BOOT",
        ),
        (|e| e[2].name = "root-b".into(), Code::SlotAmbiguous, "ROOT-B"),
        (
            |e| e[2].number = 7,
            Code::SlotAmbiguous,
            "partition 7; expected number 3",
        ),
        (
            |e| e[5].type_guid = type_guid::LINUX_DATA,
            Code::SlotAmbiguous,
            "os-state has type",
        ),
        (
            |e| {
                e.remove(5);
            },
            Code::DiskUnsupported,
            "KubeOS",
        ),
        (
            |e| e[2].part_uuid = e[1].part_uuid,
            Code::SlotAmbiguous,
            "PARTUUID",
        ),
    ];
    for (change, code, says) in cases {
        let mut d = sda();
        change(entries(&mut d));
        refused(&facts(d, "8:2", &line(A, "A")), code, says);
    }
    let mut d = sda();
    entries(&mut d).remove(4);
    let l = discover(&facts(d, "8:2", &line(A, "A"))).unwrap();
    assert!(
        l.part(Role::Bios).is_none(),
        "a UEFI-only disk has no bios partition"
    );
    // Without PERSIST the node boots, so what is in the slots is known and said; there is only no place for the state.
    let mut d = sda();
    entries(&mut d).remove(3);
    let l = discover(&facts(d, "8:2", &line(A, "A"))).unwrap();
    assert!(l.part(Role::Persist).is_none());
    assert_eq!(
        l.warnings(),
        ["/dev/sda: no partition is named PERSIST (expected number 4)"]
    );
}

#[test]
fn command_line_mount_and_table_must_agree() {
    let uuid = |n: u128| Uuid::from_u128(n);
    for (root, cmdline, says) in [
        ("8:2", line(A, "B"), "os.slot=B"),
        ("8:2", line(B, "A"), "is ROOT-B"),
        ("8:3", line(A, "A"), "slot B is mounted"),
        ("8:2", line(0x99, "A"), "no partition"),
        ("8:2", format!("root=PARTUUID={} ro", uuid(A)), "no os.slot="),
        ("8:2", "os.slot=A ro".to_owned(), "no root="),
        (
            "8:2",
            "root=/dev/sda2 os.slot=A".to_owned(),
            "expected root=PARTUUID",
        ),
        (
            "8:2",
            "root=LABEL=ROOT-A os.slot=A".to_owned(),
            "expected root=PARTUUID",
        ),
        ("8:2", format!("{} os.slot=B", line(A, "A").trim()), "os.slot=B"),
        ("8:4", line(A, "A"), "partition 4"),
    ] {
        refused(&facts(sda(), root, &cmdline), Code::SlotContradiction, says);
    }
    let upper = line(A, "A")
        .replace("PARTUUID=", "partuuid=")
        .to_ascii_uppercase();
    let upper = upper.replace("ROOT=", "root=").replace("OS.SLOT", "os.slot");
    assert_eq!(discover(&facts(sda(), "8:2", &upper)).unwrap().running(), Slot::A);
}

#[test]
fn disks_that_cannot_be_updated_are_named() {
    let with = |change: fn(&mut DiskFact)| {
        let mut d = sda();
        change(&mut d);
        facts(d, "8:2", &line(A, "A"))
    };
    refused(
        &with(|d| d.table = TableFact::Other("has an msdos partition table".into())),
        Code::DiskUnsupported,
        "msdos",
    );
    refused(&with(|d| d.sector_size = 2048), Code::DiskUnsupported, "2048");
    refused(
        &with(|d| d.size = 60 * MIB),
        Code::DiskUnsupported,
        "behind the end",
    );
    refused(
        &with(|d| entries(d)[2].start = 25 * MIB),
        Code::DiskUnsupported,
        "overlap",
    );
    refused(
        &with(|d| entries(d).retain(|e| e.number == 4)),
        Code::DiskUnsupported,
        "no slots",
    );
    refused(
        &facts(sda(), "8:0", &line(A, "A")),
        Code::DiskUnsupported,
        "whole disk",
    );
    refused(
        &facts(sda(), "0:31", &line(A, "A")),
        Code::DiskUnsupported,
        "no partition",
    );
    let mut none = facts(sda(), "8:2", &line(A, "A"));
    none.mountinfo.clear();
    refused(&none, Code::DiskUnsupported, "nothing is mounted");

    let mut d = sda();
    d.sector_size = 4096;
    let l = discover(&facts(d, "8:2", &line(A, "A"))).unwrap();
    assert_eq!(l.region(Role::RootB).unwrap().sector_size, 4096);
}

#[test]
fn a_damaged_primary_table_is_a_warning() {
    let mut d = sda();
    if let TableFact::Gpt { primary_damage, .. } = &mut d.table {
        *primary_damage = Some("the GPT header's checksum is wrong".into());
    }
    let l = discover(&facts(d, "8:2", &line(A, "A"))).unwrap();
    assert!(l.warnings()[0].contains("nothing repaired"), "{:?}", l.warnings());
}

#[test]
fn a_damaged_backup_table_is_a_warning_that_says_how_to_mend_it() {
    let mut d = sda();
    if let TableFact::Gpt { backup_damage, .. } = &mut d.table {
        *backup_damage = Some("no GPT header".into());
    }
    let l = discover(&facts(d, "8:2", &line(A, "A"))).unwrap();
    let [w] = l.warnings() else {
        panic!("{:?}", l.warnings())
    };
    assert!(
        w.contains("backup partition table")
            && w.contains("no GPT header")
            && w.contains("sgdisk -e /dev/sda"),
        "{w}"
    );
}

#[test]
fn offline_too_a_partuuid_names_one_partition() {
    let mut d = sda();
    let e = entries(&mut d);
    e[2].part_uuid = e[1].part_uuid;
    let e = offline(&d, Slot::A).unwrap_err();
    assert_eq!(e.code, Code::SlotAmbiguous);
    assert!(e.message.contains("and also partition"), "{}", e.message);
}

#[test]
fn offline_regions_lie_in_the_image() {
    let mut d = sda();
    d.node = "/tmp/system.img".into();
    d.dev = None;
    d.nodes.clear();
    let l = offline(&d, Slot::B).unwrap();
    let r = l.region(Role::RootA).unwrap();
    assert_eq!(
        (r.path.as_str(), r.offset, r.size),
        ("/tmp/system.img", 20 * MIB, 10 * MIB)
    );
    assert_eq!(r.identity, Identity::Within);
    assert_eq!(l.inactive().unwrap().slot(), Slot::A);
}
