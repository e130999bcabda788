#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use super::*;
use crate::progress::Silent;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn tree() -> (tempfile::TempDir, camino::Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = camino::Utf8PathBuf::from_path_buf(dir.path().join("root")).unwrap();
    for d in [
        "etc/ssh",
        "usr/lib/systemd/system",
        "var/log/sub",
        "var/cache/x",
        "tmp",
    ] {
        std::fs::create_dir_all(root.join(d)).unwrap();
    }
    for (file, text) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/machine-id", "0123\n"),
        ("etc/ssh/ssh_host_rsa_key", "secret"),
        ("etc/ssh/sshd_config", "x"),
        ("etc/passwd-", "old"),
        ("etc/os-release", "ID=base\n"),
        ("var/log/sub/a.log", "x"),
        ("var/cache/x/y", "x"),
        ("tmp/z", "x"),
    ] {
        std::fs::write(root.join(file), text).unwrap();
    }
    (dir, root)
}

fn recipe(extra: &str) -> Recipe {
    let text = format!(
        "version = \"1.0\"\n[rootfs]\nfrom = \"tree\"\ntree = \"/t\"\n[boot]\nloader = \"none\"\n{extra}"
    );
    Recipe::parse(&text, Utf8Path::new("r.toml")).unwrap()
}

#[test]
fn the_table_is_that_of_the_readme() {
    let readme = include_str!("../../../../systemd/README.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|c| c.trim().trim_matches('`').to_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = readme
        .lines()
        .filter(|l| l.starts_with("|`"))
        .map(cells)
        .collect();
    let files: Vec<(String, String, u32)> = rows
        .iter()
        .filter(|r| r.len() == 3)
        .map(|r| {
            (
                r[0].clone(),
                r[1].clone(),
                if r[2].is_empty() {
                    0o644
                } else {
                    u32::from_str_radix(&r[2], 8).unwrap()
                },
            )
        })
        .collect();
    let ours: Vec<_> = embedded::FILES
        .iter()
        .map(|(f, t, m, _)| ((*f).to_owned(), (*t).to_owned(), *m))
        .collect();
    assert_eq!(files, ours);
    let links: Vec<(String, String)> = rows
        .iter()
        .filter(|r| r.len() == 2)
        .map(|r| (r[0].clone(), r[1].clone()))
        .collect();
    let ours: Vec<_> = embedded::LINKS
        .iter()
        .map(|(p, t)| ((*p).to_owned(), (*t).to_owned()))
        .collect();
    assert_eq!(links, ours);
}

#[test]
fn a_tree_is_completed_and_cleaned() {
    let (_dir, root) = tree();
    let work = root.parent().unwrap();
    let extra =
        "[trial]\ndeadline_secs = 300\n[[files]]\ntext = \"hello\"\ndst = \"/opt/x/motd\"\nmode = \"0640\"\n";
    finish(&recipe(extra), &root, work, &Silent).unwrap();
    let read = |p: &str| std::fs::read_to_string(root.join(p)).unwrap();
    assert_eq!(read("etc/machine-id"), "");
    assert!(read("etc/os-release").contains("PRETTY_NAME=\"Slipway 1.0\"\nID_LIKE=\"base\"\n"));
    assert!(read("usr/lib/systemd/system/os-agent-trial-deadline.timer.d/20-recipe.conf").contains("=300\n"));
    assert!(
        root.join("usr/lib/systemd/system/multi-user.target.wants/os-agent.service")
            .exists()
    );
    assert_eq!(read("opt/x/motd"), "hello");
    assert_eq!(
        root.join("opt/x/motd").metadata().unwrap().permissions().mode() & 0o7777,
        0o640
    );
    for gone in [
        "etc/ssh/ssh_host_rsa_key",
        "etc/passwd-",
        "var/log/sub/a.log",
        "var/cache/x",
        "tmp/z",
    ] {
        assert!(!root.join(gone).exists(), "{gone}");
    }
    assert!(root.join("etc/ssh/sshd_config").exists() && root.join("var/log/sub").is_dir());
    assert_eq!(root.join("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    assert!(root.join("persist").metadata().unwrap().mtime() <= 1_700_000_000);
}

#[test]
fn bad_recipes() {
    let fails = |extra: &str| {
        let (_dir, root) = tree();
        finish(&recipe(extra), &root, root.parent().unwrap(), &Silent).unwrap_err()
    };
    let e = fails("[units]\nenable = [\"os-agnt.service\"]\n");
    assert_eq!((e.code, e.kind), ("IMG004", Kind::Build));
    assert_eq!(
        e.message,
        "unit \"os-agnt.service\" not found; did you mean \"os-agent.service\"?"
    );
    let e = fails("[[files]]\ntext = \"\"\ndst = \"/x\"\nowner = \"nobody:nogroup\"\n");
    assert_eq!(
        e.message,
        "files[0].owner: user \"nobody\" not provided by any package"
    );
    let e = fails("[[files]]\ntext = \"\"\ndst = \"/etc\"\n");
    assert_eq!((e.code, e.kind), ("CFG010", Kind::Input));
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("agent");
    std::fs::write(&agent, "#!/bin/sh\n").unwrap();
    let e = fails(&format!("[agent]\npath = \"{}\"\n", agent.display()));
    assert_eq!((e.code, e.kind), ("CFG012", Kind::Input));
}

#[test]
fn owners_by_name_and_number() {
    let (_dir, root) = tree();
    assert_eq!(owner(&root, "root"), Ok((0, 0)));
    assert_eq!(owner(&root, "5:6"), Ok((5, 6)));
    assert!(
        owner(&root, "root:wheel")
            .unwrap_err()
            .contains("group \"wheel\"")
    );
}
