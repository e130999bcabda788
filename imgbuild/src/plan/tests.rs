use super::*;
use camino::Utf8Path;

fn recipe(extra: &str) -> Recipe {
    let text = format!("version = \"1.0\"\n[rootfs]\nfrom = \"tree\"\ntree = \"root\"\n{extra}");
    Recipe::parse(&text, Utf8Path::new("dir/r.toml")).unwrap()
}

fn plan(extra: &str) -> Plan {
    Plan::new(&recipe(extra), 1_700_000_000).unwrap()
}

#[test]
fn the_default_disk() {
    insta::assert_snapshot!(plan("").to_string());
}

#[test]
fn packages_and_everything_else() {
    let text = r#"
version = "2"
name = "Acme OS"
[rootfs]
from = "packages"
packages = ["kernel", "systemd"]
[[rootfs.repos]]
id = "base"
url = "https://mirror.example/base"
key = "keys/base.asc"
[[rootfs.repos]]
id = "extra"
url = "extra"
allow_unsigned = true
[disk]
size = "20G"
[boot]
args = "console=ttyS1 quiet"
[[files]]
text = "hello"
dst = "/etc/motd"
[[users]]
name = "ops"
[units]
enable = ["sshd"]
"#;
    let r = Recipe::parse(text, Utf8Path::new("r.toml")).unwrap();
    insta::assert_snapshot!(Plan::new(&r, 1).unwrap().to_string());
}

#[test]
fn partitions_are_aligned_ordered_and_fill_the_disk() {
    let p = plan("[disk]\nslot_mib = 512\nesp_mib = 64\nsize = \"4G\"\n");
    let mut end = BIOS_START;
    for part in &p.partitions {
        assert_eq!(part.start, end, "{} follows without a gap", part.name);
        end = part.start + part.size;
        assert_eq!(end % MIB, 0);
    }
    assert_eq!(end + TAIL, p.disk_size);
    assert_eq!(p.disk_size, 4 << 30);
}

#[test]
fn a_disk_that_is_too_small_says_what_is_needed() {
    let e = Plan::new(&recipe("[disk]\nsize = \"5G\"\n"), 1).unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Input, "CFG013"));
    assert!(
        e.message
            .contains("partitions need 5892 MiB, disk.size is 5120 MiB"),
        "{e}"
    );
}

#[test]
fn identifiers_depend_on_name_version_and_role_only() {
    let a = plan("");
    assert_eq!(a.disk_guid, plan("[disk]\nslot_mib = 512\n").disk_guid);
    let mut seen: Vec<Uuid> = a.partitions.iter().map(|p| p.guid).collect();
    seen.push(a.disk_guid);
    seen.push(a.ids.root);
    seen.push(a.ids.persist);
    seen.sort();
    let count = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), count);
    assert_ne!(identifier("a", "1", "x"), identifier("a", "2", "x"));
    assert_ne!(identifier("a", "1", "x"), identifier("b", "1", "x"));
}

#[test]
fn json_holds_what_scripts_need() {
    let v = serde_json::to_value(plan("")).unwrap();
    assert_eq!(v["partitions"][0]["name"], "bios");
    assert_eq!(v["partitions"][5]["number"], 4);
    assert_eq!(v["source"]["tree"]["path"], "dir/root");
}
