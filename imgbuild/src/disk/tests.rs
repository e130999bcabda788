#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use crate::cmd::Cmd;
use crate::progress::Silent;
use crate::recipe::Recipe;

fn plan() -> Plan {
    let text =
        "version = \"1\"\n[rootfs]\nfrom = \"tree\"\ntree = \"x\"\n[disk]\nslot_mib = 16\nesp_mib = 64\n";
    Plan::new(
        &Recipe::parse(text, Utf8Path::new("r.toml")).unwrap(),
        1_700_000_000,
    )
    .unwrap()
}

#[test]
fn the_table_is_clean_and_as_planned() {
    let dir = tempfile::tempdir().unwrap();
    let image = Utf8Path::from_path(dir.path()).unwrap().join("disk");
    let plan = plan();
    let root = image.with_file_name("root");
    crate::files::write(&root, &[9; 5000]).unwrap();
    let contents = [
        (Role::OsState, Content::Bytes(vec![7; 2 << 20])),
        (Role::RootA, Content::File(root)),
    ];
    let core = vec![0xccu8; 200_000];
    let bios = BiosBoot {
        boot_img: &[0x11; 512],
        core_img: &core,
    };
    write(&image, &plan, &contents, Some(bios), &Silent).unwrap();
    let out = Cmd::new("sgdisk")
        .arg("-v")
        .arg(&image)
        .run()
        .unwrap()
        .stdout_text();
    assert!(out.contains("No problems found."), "{out}");
    for p in &plan.partitions {
        let out = Cmd::new("sgdisk")
            .args(["-i", &p.number.to_string()])
            .arg(&image)
            .run()
            .unwrap()
            .stdout_text();
        for want in [
            format!("Partition unique GUID: {}", p.guid.to_string().to_uppercase()),
            format!("GUID code: {}", p.type_guid.to_string().to_uppercase()),
            format!("First sector: {} ", p.start / 512),
            format!("Partition size: {} sectors", p.size / 512),
            format!("Partition name: '{}'", p.name),
        ] {
            assert!(out.contains(&want), "{want} in {out}");
        }
    }
    let bytes = std::fs::read(&image).unwrap();
    let at = |role| plan.partition(role).unwrap().start as usize;
    assert_eq!(bytes[at(Role::OsState)], 7);
    assert_eq!(bytes[at(Role::RootA) + 4999..at(Role::RootA) + 5001], [9, 0]);
    assert_eq!(
        bytes[0x1fe..0x200],
        [0x11, 0x11],
        "boot.img brings its own signature"
    );
    assert_eq!(bytes[0x1c2], 0xee, "the protective entry stays");
    assert_eq!(u64::from_le_bytes(bytes[0x5c..0x64].try_into().unwrap()), 40);
    let list = at(Role::Bios) + 0x1f4;
    assert_eq!(u64::from_le_bytes(bytes[list..list + 8].try_into().unwrap()), 41);
    assert_eq!(
        bytes[list + 8..list + 12],
        [(390u16).to_le_bytes()[0], 1, 0xcc, 0xcc],
        "390 sectors, segment kept"
    );
}

#[test]
fn content_that_is_too_long_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let image = Utf8Path::from_path(dir.path()).unwrap().join("disk");
    let contents = [(Role::OsState, Content::Bytes(vec![7; (2 << 20) + 1]))];
    assert_eq!(
        write(&image, &plan(), &contents, None, &Silent).unwrap_err().code,
        "DSK001"
    );
    let core = vec![0; 2 << 20];
    let bios = BiosBoot {
        boot_img: &[0; 512],
        core_img: &core,
    };
    assert_eq!(
        write(&image, &plan(), &[], Some(bios), &Silent).unwrap_err().code,
        "DSK002"
    );
}
