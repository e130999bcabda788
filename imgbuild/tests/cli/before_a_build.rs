//! What is refused before a build begins: agents that are none, addresses, times, outputs inside the tree.

use super::{Bench, RECIPE, Run};

const UNTOUCHED: [&str; 2] = ["r.toml", "tree"];

#[test]
fn check_refuses_every_agent_that_a_build_refuses() {
    let b = Bench::new();
    b.write("r.toml", &format!("{RECIPE}[agent]\npath = \"os-agent\"\n"));
    let this = std::fs::read(env!("CARGO_BIN_EXE_imgbuild")).unwrap();
    for (bytes, why) in [
        (Vec::new(), "is empty"),
        (b"text\n".to_vec(), "not an ELF program"),
        (
            std::fs::read("/bin/true").unwrap(),
            "a program, but not Slipway's os-agent",
        ),
        (this, "a program, but not Slipway's os-agent"),
    ] {
        std::fs::write(b.path("os-agent"), bytes).unwrap();
        let text = format!("error[CFG012] r.toml:13:8: agent.path \"os-agent\": {why}");
        for command in ["check", "plan", "build"] {
            b.run(&[command, "r.toml"]).fails(3, &text);
        }
        assert_eq!(b.names(), ["os-agent", "r.toml", "tree"]);
    }
    std::fs::remove_file(b.path("os-agent")).unwrap();
    b.run(&["check", "r.toml"])
        .fails(3, "error[CFG010] r.toml:13:8: agent.path \"os-agent\": not found");
}

/// A tree's C library is known before a build: an agent that is newer is refused by `check` as well.
#[test]
fn check_knows_the_c_library_of_a_tree() {
    let b = Bench::new();
    b.write("r.toml", &format!("{RECIPE}[agent]\npath = \"os-agent\"\n"));
    // A head with one INTERP segment, our mark and a version name.
    let mut agent = vec![0; 120];
    agent[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (agent[18], agent[32], agent[54], agent[56]) = (62, 64, 56, 1);
    (agent[64], agent[72], agent[96]) = (3, 120, 13);
    agent.extend_from_slice(b"/lib64/ld.so\0\0GLIBC_2.38\0slipway-os-agent-v1\0");
    std::fs::write(b.path("os-agent"), agent).unwrap();
    b.run(&["check", "r.toml"])
        .fails(3, "needs glibc 2.38, the image has none");
    std::fs::create_dir_all(b.path("tree/usr/lib64")).unwrap();
    b.write("tree/usr/lib64/libc.so.6", "\0GLIBC_2.36\0");
    b.run(&["check", "r.toml"])
        .fails(3, "needs glibc 2.38, the image has 2.36");
    b.write("tree/usr/lib64/libc.so.6", "\0GLIBC_2.39\0");
    b.run(&["check", "r.toml"]).succeeds();
}

#[test]
fn addresses_that_nodes_cannot_fetch_from() {
    let b = Bench::new();
    for (url, why) in [
        ("nota", "expected an absolute URL"),
        ("", "expected an absolute URL"),
        ("ftp://x", "expected an absolute URL"),
        ("https://h/a b", "character ' ' is not allowed"),
        ("x\"\nfoo: bar", "character '\"' is not allowed"),
        ("https://h/1?x=y", "query"),
    ] {
        let run = b.run(&["build", "r.toml", "--base-url", url]);
        run.fails(3, &format!("error[CFG019] --base-url {url:?}: "));
        assert!(run.err.contains(why), "{run:?}");
        assert_eq!(b.names(), UNTOUCHED);
    }
    b.write("r.toml", &format!("{RECIPE}[os]\nimage_url = \"nota\"\n"));
    for command in ["build", "check", "plan"] {
        b.run(&[command, "r.toml"]).fails(
            3,
            "error[CFG019] r.toml:13:13: os.image_url \"nota\": expected an absolute URL",
        );
    }
    assert_eq!(b.names(), UNTOUCHED);
}

#[test]
fn times_that_an_image_cannot_carry() {
    let b = Bench::new();
    let with = |command: &str, epoch: &str| {
        let mut c = b.command(&[command, "r.toml", "--json"]);
        Run::of(c.env("SOURCE_DATE_EPOCH", epoch).output().unwrap())
    };
    for epoch in ["abc", "-5", "99999999999999", "2147483648", "0", "", " 5"] {
        for command in ["build", "check", "plan"] {
            with(command, epoch).fails(
                3,
                &format!("error[CFG018] SOURCE_DATE_EPOCH is {epoch:?}: expected"),
            );
        }
        assert_eq!(b.names(), UNTOUCHED);
    }
    for (epoch, n) in [("1", 1), ("2147483647", 2_147_483_647)] {
        let run = with("build", epoch);
        let build: serde_json::Value = serde_json::from_str(&run.succeeds().out).unwrap();
        assert_eq!(build["source_date_epoch"], n);
    }
}

#[test]
fn outputs_inside_the_tree() {
    let b = Bench::new();
    std::os::unix::fs::symlink("tree/etc", b.path("link")).unwrap();
    let before = b.names();
    for out in [
        "tree",
        "tree/o",
        "tree/usr/new/o",
        "link",
        "link/o",
        "./tree/../tree/o",
    ] {
        b.run(&["build", "r.toml", "--out", out])
            .fails(3, "error[CFG016] the output directory ");
        assert_eq!(b.names(), before);
        for inside in ["tree/o", "tree/usr/new", "tree/etc/o", "tree/.o.imgbuild"] {
            assert!(!b.path(inside).exists(), "{out}: {inside}");
        }
    }
    b.run(&["build", "r.toml", "--out", "tree.out/../o", "-q"])
        .succeeds();

    b.write("r.toml", &RECIPE.replace("tree = \"tree\"", "tree = \".\""));
    let before = b.names();
    for args in [&["build", "r.toml"][..], &["build", "r.toml", "--out", "o4"]] {
        let run = b.run(args);
        run.fails(3, "lies in rootfs.tree \".\", which goes into the image");
        assert_eq!(b.names(), before);
    }
}
