use super::*;
use crate::error::BuildError;

const MINIMAL: &str = "version = \"1\"\n[rootfs]\nfrom = \"tree\"\ntree = \"root\"\n";

fn parse(text: &str) -> Result<Recipe, Vec<BuildError>> {
    Recipe::parse(text, Utf8Path::new("dir/r.toml"))
}

fn errors(text: &str) -> Vec<String> {
    parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn with(extra: &str) -> Vec<String> {
    errors(&format!("{MINIMAL}{extra}"))
}

#[test]
fn defaults() {
    let r = parse(MINIMAL).unwrap();
    assert_eq!(r.name, "Slipway");
    assert_eq!(r.pretty_name(), "Slipway 1");
    assert_eq!(r.os_id(), "slipway");
    assert_eq!((r.disk.slot_mib, r.disk.esp_mib, r.disk.size), (2560, 512, None));
    assert_eq!(r.boot.loader, Loader::Grub);
    assert_eq!(r.rootfs, Rootfs::Tree("dir/root".into()));
    assert!(r.warnings.is_empty());
    assert_eq!(r.paths[0].at, "dir/r.toml:4:8");
}

#[test]
fn everything() {
    let r = parse(
        r#"
version = "1.2-rc1"
name = "Acme OS"
arch = "x86_64"
[rootfs]
from = "packages"
packages = ["kernel", "@core", "vim-9.0"]
repos = [
  { id = "a", url = "http://h/a", key = "k.asc" },
  { id = "b", file = "b.repo", allow_unsigned = true },
  { id = "c", url = "repo", key = "/abs/k.asc", allow_unsigned = false },
]
[agent]
path = "os-agent"
[disk]
size = "20GiB"
slot_mib = 1_024
esp_mib = 0x40
sector_size = 512
[boot]
loader = "grub"
args = ["console=ttyS1", "mitigations=auto quiet"]
menu = false
[[files]]
src = "motd"
dst = "/etc/motd"
mode = "0600"
owner = "root:adm"
[[files]]
text = ""
dst = "/etc/empty"
[[users]]
name = "ops"
uid = 1234
groups = ["wheel"]
shell = "/bin/sh"
home = "/home/ops"
password_hash = "$6$salt$abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./"
ssh_keys = ["ssh-ed25519 AAAA me@here"]
[units]
enable = ["sshd", "a@b.timer"]
disable = ["x.socket"]
[trial]
deadline_secs = 300
[os]
image_url = "https://h/update.img"
"#,
    )
    .unwrap();
    assert_eq!(r.os_id(), "acme-os");
    assert_eq!(r.boot.args, ["console=ttyS1", "mitigations=auto", "quiet"]);
    assert_eq!(
        (r.disk.size, r.disk.slot_mib, r.disk.esp_mib),
        (Some(20 << 30), 1024, 64)
    );
    assert_eq!(r.units.enable, ["sshd.service", "a@b.timer"]);
    assert_eq!(r.files[0].mode, Some(0o600));
    assert_eq!(r.trial_deadline_secs, Some(300));
    let Rootfs::Packages { repos, .. } = &r.rootfs else {
        panic!()
    };
    assert_eq!(repos[1].source, RepoSource::RepoFile("dir/b.repo".into()));
    assert_eq!(repos[2].source, RepoSource::Url("dir/repo".into()));
    assert_eq!(repos[2].trust, Trust::Key("/abs/k.asc".into()));
    assert_eq!(r.warnings.len(), 1);
    assert_eq!(r.warnings[0].code, "SEC002");
    assert!(!format!("{r:?}").contains("$6$"), "no hash in a debug print");
}

#[test]
fn all_errors_of_a_recipe_come_at_once() {
    let text = r#"verison = "1"
name = ""
[rootfs]
from = "packages"
packages = ["", "-x", "a b"]
tree = "t"
repos = [{ id = "a", url = "ftp://h", allow_unsigned = true }, { id = "a" }]
[disk]
slot_mib = "big"
esp_mib = 10
sector_size = 4096
size = "12"
[boot]
loader = "gurb"
args = "root=LABEL=x a;b"
[[files]]
dst = "etc/x"
[[users]]
[[users]]
name = "Bad"
uid = 0
password_hash = "secret-in-clear"
[trial]
deadline_secs = 1
"#;
    insta::assert_snapshot!(errors(text).join("\n"));
}

#[test]
fn a_syntax_error_shows_the_line() {
    insta::assert_snapshot!(errors("version = \"1\"\n[rootfs]\nfrom \"tree\"\n").join("\n"));
}

#[test]
fn misspelt_keys_get_a_suggestion_at_every_level() {
    let e = with("[disk]\nslot_mb = 1\n");
    assert_eq!(
        e,
        ["error[CFG003] dir/r.toml:6:1: unknown key \"disk.slot_mb\"; did you mean \"slot_mib\"?"]
    );
    let e = with("[[users]]\nname = \"a\"\nssh_key = []\n");
    assert!(
        e[0].contains("unknown key \"users[0].ssh_key\"; did you mean \"ssh_keys\"?"),
        "{e:?}"
    );
    let e = with("[colour]\n");
    assert!(e[0].contains("known here: version, name"), "{e:?}");
}

#[test]
fn versions() {
    for bad in ["v1;id", "", "a b", "ü"] {
        assert!(
            parse(&MINIMAL.replace("\"1\"", &format!("{bad:?}"))).is_err(),
            "{bad}"
        );
    }
    assert!(
        errors("[rootfs]\nfrom=\"tree\"\ntree=\"x\"\n")[0]
            .contains("[CFG004] dir/r.toml: missing \"version\"")
    );
    assert!(
        errors("version = 1\n[rootfs]\nfrom=\"tree\"\ntree=\"x\"\n")[0]
            .contains("expected a string, found integer")
    );
}

#[test]
fn secrets_never_appear_in_messages() {
    for bad in [
        "hunter2",
        "$6$x$hunter2",
        "$6$salt$hunter2:aaaaaaaaaaaaaaaaaaaaaaaa",
        "$9$salt$hunter2aaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        let e = with(&format!("[[users]]\nname = \"a\"\npassword_hash = {bad:?}\n"));
        assert!(
            e[0].contains("CFG009") && !e.join("").contains("hunter2"),
            "{e:?}"
        );
    }
    let md5 =
        format!("{MINIMAL}[[users]]\nname = \"a\"\npassword_hash = \"$1$saltsalt$abcdefghijklmnopqrstuv\"\n");
    assert_eq!(parse(&md5).unwrap().warnings[0].code, "SEC001");
}

#[test]
fn users_are_checked() {
    for (bad, part) in [
        ("name = \"nobody\"", "is reserved"),
        ("name = \"a\"\nuid = 0", "belongs to root"),
        ("name = \"root\"\nuid = 7", "belongs to root"),
        ("name = \"a\"\nhome = \"home\"", "absolute path"),
        ("name = \"a\"\nshell = \"/bin/a:b\"", "absolute path"),
        ("name = \"a\"\ngroups = [\"Whe el\"]", "not a group name"),
        ("name = \"a\"\nssh_keys = [\"AAAA\"]", "authorized_keys"),
        ("name = \"a\"\n[[users]]\nname = \"a\"", "given twice"),
    ] {
        let e = with(&format!("[[users]]\n{bad}\n"));
        assert!(e.join("\n").contains(part), "{bad}: {e:?}");
    }
}

#[test]
fn destinations_are_checked() {
    for bad in ["etc/x", "/etc/../x", "/", "/a\\nb"] {
        assert!(
            with(&format!("[[files]]\ntext = \"\"\ndst = \"{bad}\"\n"))[0].contains("CFG010"),
            "{bad}"
        );
    }
    let text = format!("{MINIMAL}[[files]]\ntext = \"\"\ndst = \"/var/lib/x\"\n");
    assert_eq!(parse(&text).unwrap().warnings[0].code, "SHADOW");
}

#[test]
fn sources_must_fit_their_kind() {
    let e = errors("version = \"1\"\n[rootfs]\nfrom = \"tree\"\ntree = \"x\"\npackages = [\"a\"]\n");
    assert_eq!(
        e,
        ["error[CFG005] dir/r.toml:5:12: rootfs.packages does not go with rootfs.from = \"tree\""]
    );
    let e = errors("version = \"1\"\n[rootfs]\nfrom = \"packages\"\npackages = []\nrepos = []\n");
    assert!(
        e[0].contains("[CFG006]") && e[0].contains("rootfs.packages is empty"),
        "{e:?}"
    );
    assert!(
        e[1].contains("[REPO001]") && e[1].contains("no repository"),
        "{e:?}"
    );
}

#[test]
fn missing_files_are_reported_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = Utf8Path::from_path(dir.path()).unwrap().join("r.toml");
    #[allow(clippy::disallowed_methods)]
    std::fs::write(
        &file,
        "version=\"1\"\n[rootfs]\nfrom=\"packages\"\npackages=[\"a\"]\nrepos=[{id=\"r\",url=\"nodir\",key=\"k.asc\"}]\n[agent]\npath=\"no\"\n",
    )
    .unwrap();
    let e: Vec<String> = Recipe::load(&file)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(e.len(), 3);
    assert!(
        e[0].contains(":5:20: rootfs.repos[0].url") && e[0].ends_with("not found"),
        "{e:?}"
    );
    assert!(e[1].contains("[SIG002]") && e[2].contains("agent.path"), "{e:?}");
    let none = Recipe::load(&file.with_file_name("none.toml")).unwrap_err();
    assert!(
        none[0]
            .to_string()
            .ends_with("none.toml: No such file or directory"),
        "{none:?}"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(version|rootfs|\\[|\\]|=|\"|from|tree|users|files|\n|[ -~é])*") {
        drop(parse(&text));
    }
}

#[test]
fn image_url_is_a_url() {
    for (url, why) in [
        ("nota", "expected an absolute URL"),
        ("ftp://x", "expected an absolute URL"),
        ("https://h/a b", "character ' '"),
        ("x\\\"\\nfoo: bar", "character '\"'"),
    ] {
        let found = with(&format!("[os]\nimage_url = \"{url}\"\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("error[CFG019] dir/r.toml:6:13: os.image_url \""),
            "{found:?}"
        );
        assert!(found[0].contains(why), "{found:?}");
    }
}
