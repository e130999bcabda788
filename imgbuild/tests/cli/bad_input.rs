//! Bad input: one clear error, the documented exit code, nothing created.

use super::{Bench, RECIPE};

const UNTOUCHED: [&str; 2] = ["r.toml", "tree"];

#[track_caller]
fn refused(recipe: &str, code: i32, text: &str) {
    let b = Bench::new();
    b.write("r.toml", recipe);
    let run = b.run(&["build", "r.toml", "--out", "out"]);
    run.fails(code, text);
    assert_eq!(b.names(), UNTOUCHED);
    if code == 3 && !text.contains("CFG017") {
        b.run(&["check", "r.toml"]).fails(code, text);
        b.run(&["plan", "r.toml"]).fails(code, text);
    }
}

#[test]
fn no_recipe() {
    let b = Bench::new();
    b.run(&["build", "none.toml"])
        .fails(3, "error[CFG001] none.toml: No such file or directory");
    assert_eq!(b.names(), UNTOUCHED);
}

#[test]
fn misspelt_key() {
    refused(
        &RECIPE.replace("slot_mib", "slot_mb"),
        3,
        "error[CFG003] r.toml:8:1: unknown key \"disk.slot_mb\"; did you mean \"slot_mib\"?",
    );
}

#[test]
fn a_recipe_neither_floods_nor_steers_the_terminal() {
    let b = Bench::new();
    let long = "0".repeat(1_000_000);
    for (what, recipe) in [
        ("one long line", long.clone()),
        ("a long key", format!("{long} = 1\n{RECIPE}")),
        (
            "a long value",
            RECIPE.replace("name =", &format!("arch = \"{long}\"\nname =")),
        ),
        ("a file of a wrong kind", "0".repeat(2_000_000)),
        (
            "escapes in a key",
            format!("\"\\u001b]0;pwn\\u0007\\u009b31m\" = 1\n{RECIPE}"),
        ),
    ] {
        b.write("r.toml", &recipe);
        for args in [&["check", "r.toml"][..], &["check", "--json", "r.toml"]] {
            let run = b.run(args);
            assert_eq!(run.code, Some(3), "{what}");
            let told = format!("{}{}", run.out, run.err);
            assert!(told.contains("CFG0"), "{what}: {told}");
            for told in [&run.out, &run.err] {
                assert!(told.len() < 20_000, "{what}: {} bytes", told.len());
                assert!(
                    !told.contains(|c: char| c.is_control() && c != '\n'),
                    "{what}: {told:?}"
                );
            }
        }
    }
}

#[test]
fn syntax() {
    refused(
        &RECIPE.replace("[boot]", "[boot"),
        3,
        "error[CFG002] r.toml:10:6: ",
    );
}

#[test]
fn missing_version() {
    refused(
        &RECIPE.replace("version = \"1\"", ""),
        3,
        "error[CFG004] r.toml: missing \"version\"",
    );
}

#[test]
fn bad_version() {
    refused(
        &RECIPE.replace("\"1\"", "\"v1;id\""),
        3,
        "error[CFG007] r.toml:2:11: version \"v1;id\": character ';'",
    );
}

#[test]
fn tree_and_packages() {
    refused(
        &RECIPE.replace("[disk]", "packages = [\"a\"]\n[disk]"),
        3,
        "error[CFG005]",
    );
}

#[test]
fn tree_that_is_not_there() {
    refused(
        &RECIPE.replace("= \"tree\"\n[disk]", "= \"tre\"\n[disk]"),
        3,
        "error[CFG010] r.toml:6:8: rootfs.tree \"tre\": not found",
    );
}

#[test]
fn partitions_that_do_not_fit() {
    refused(
        &RECIPE.replace("esp_mib", "size = \"300M\"\nesp_mib"),
        3,
        "error[CFG013] r.toml: partitions need 388 MiB, disk.size is 300 MiB",
    );
}

#[test]
fn root_argument() {
    refused(
        &format!("{RECIPE}args = \"root=LABEL=x\"\n"),
        3,
        "error[CFG015] r.toml:12:8: boot.args: kernel argument \"root=LABEL=x\"",
    );
}

#[test]
fn missing_key_file() {
    let recipe = "version=\"1\"\n[rootfs]\nfrom=\"packages\"\npackages=[\"a\"]\nrepos=[{id=\"x\", url=\"http://h/\", key=\"no.asc\"}]\n";
    refused(
        recipe,
        3,
        "error[SIG002] r.toml:5:38: rootfs.repos[0].key \"no.asc\": not found",
    );
}

#[test]
fn repository_without_key_or_opt_out() {
    let recipe = "version=\"1\"\n[rootfs]\nfrom=\"packages\"\npackages=[\"a\"]\nrepos=[{id=\"x\", url=\"http://h/\"}]\n";
    refused(
        recipe,
        3,
        "rootfs.repos[0].key is required (or allow_unsigned = true",
    );
}

#[test]
fn clear_text_password() {
    refused(
        &format!("{RECIPE}[[users]]\nname=\"a\"\npassword_hash=\"hunter2\"\n"),
        3,
        "error[CFG009]",
    );
}

#[test]
fn a_misspelt_key_is_one_error_and_missing_files_are_said_with_it() {
    let b = Bench::new();
    let errors = |text: &str| -> Vec<String> {
        b.write("r.toml", text);
        let run = b.run(&["check", "r.toml"]);
        assert_eq!(run.code, Some(3), "{run:?}");
        run.err.lines().map(str::to_owned).collect()
    };
    b.write("k.asc", "garbage\n");
    let packages = "version=\"1\"\n[rootfs]\nfrom=\"packages\"\npackages=[\"a\"]\n\
                    repos=[{id=\"x\", url=\"http://h/\", key=\"k.asc\"}]\n";
    let e = errors(packages);
    assert!(
        e.len() == 1 && e[0].contains("error[SIG002]") && e[0].contains("expected an ASCII-armoured"),
        "{e:#?}"
    );
    b.write(
        "k.asc",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n-----END PGP PUBLIC KEY BLOCK-----\n",
    );
    for (right, wrong) in [
        ("packages=", "pakages="),
        ("url=", "ulr="),
        ("key=", "kye="),
        ("from=", "form="),
        ("version=", "verson="),
    ] {
        let e = errors(&packages.replacen(right, wrong, 1));
        assert!(e.len() == 1 && e[0].contains("did you mean"), "{wrong}: {e:#?}");
    }
    let e = errors(
        &(RECIPE
            .replace("slot_mib", "slot_mb")
            .replace("\"tree\"\n[disk]", "\"tre\"\n[disk]")
            + "[agent]\npath = \"no-agent\"\n[[files]]\nsrc = \"no-file\"\ndst = \"/x\"\n"),
    );
    assert_eq!(e.len(), 4, "{e:#?}");
    for word in ["slot_mb", "\"tre\": not found", "no-agent", "no-file"] {
        assert!(e.iter().any(|l| l.contains(word)), "{word}: {e:#?}");
    }
}

#[test]
fn files_that_would_hide_each_other_or_the_builds_own() {
    let twice =
        "[[files]]\ntext = \"a\"\ndst = \"/etc/motd\"\n[[files]]\ntext = \"b\"\ndst = \"/etc//motd\"\n";
    refused(
        &format!("{RECIPE}{twice}"),
        3,
        "error[CFG010] r.toml: files[1].dst \"/etc//motd\": files[0] goes there already",
    );
    refused(
        &RECIPE.replace("\"none\"", "\"grub\""),
        3,
        "error[IMG001] r.toml: rootfs.tree \"tree\": no kernel",
    );
    let grub =
        RECIPE.replace("\"none\"", "\"grub\"") + "[[files]]\ntext = \"a\"\ndst = \"/boot/initramfs.img\"\n";
    refused(
        &grub,
        3,
        "error[CFG010] r.toml: files[0].dst \"/boot/initramfs.img\": the build makes",
    );
    // Two directories may go onto the same one.
    let b = Bench::new();
    for d in ["a", "b"] {
        std::fs::create_dir(b.path(d)).unwrap();
    }
    let dirs = "[[files]]\nsrc = \"a\"\ndst = \"/opt/x\"\n[[files]]\nsrc = \"b\"\ndst = \"/opt/x\"\n";
    b.write("r.toml", &format!("{RECIPE}{dirs}"));
    b.run(&["check", "r.toml"]).succeeds();
}

#[test]
fn every_error_is_printed() {
    let b = Bench::new();
    b.write(
        "r.toml",
        &RECIPE
            .replace("slot_mib", "slot_mb")
            .replace("\"none\"", "\"nine\""),
    );
    let run = b.run(&["check", "r.toml"]);
    run.fails(3, "CFG003");
    assert_eq!(
        run.err.lines().filter(|l| l.starts_with("error[")).count(),
        2,
        "{run:?}"
    );
}

#[test]
fn tree_that_is_too_big() {
    let b = Bench::new();
    std::fs::write(b.path("tree/usr/lib/big"), vec![1; 40 << 20]).unwrap();
    let run = b.run(&["build", "r.toml", "--out", "out"]);
    run.fails(6, "error[SIZE001] root tree needs ");
    assert!(
        run.err
            .contains("partition is 32 MiB; largest: /usr/lib 41 MiB, "),
        "{run:?}"
    );
    assert_eq!(b.names(), UNTOUCHED);
}

#[test]
fn tools_that_are_missing_are_all_named() {
    let b = Bench::new();
    let out = b
        .command(&["build", "r.toml"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let run = super::Run::of(out);
    run.fails(10, "error[DEP001] missing: ");
    for tool in ["mke2fs", "debugfs", "e2fsck", "qemu-img"] {
        assert!(run.err.contains(tool), "{run:?}");
    }
    assert_eq!(b.names(), UNTOUCHED);
}

#[test]
fn output_that_is_a_file() {
    let b = Bench::new();
    b.run(&["build", "r.toml", "--out", "r.toml"])
        .fails(3, "expected a directory, found a file");
    assert_eq!(b.names(), UNTOUCHED);
}

#[test]
fn wrong_command_lines_are_bad_input_and_help_is_not() {
    let b = Bench::new();
    b.run(&["bulid"]).fails(3, "");
    b.run(&["build"]).fails(3, "");
    b.run(&["build", "r.toml", "--outt", "x"]).fails(3, "");
    for args in [&["--help"][..], &["build", "--help"], &["--version"]] {
        assert!(!b.run(args).succeeds().out.is_empty());
    }
    for command in ["build", "plan", "check", "verify"] {
        let help = b.run(&[command, "--help"]).out;
        assert!(
            help.contains(&format!("Examples:\n  imgbuild {command} ")),
            "{help}"
        );
    }
    let help = b.run(&["--help"]).out;
    assert!(help.contains("129, 130 and 143 interrupted (SIGHUP"), "{help}");
    let help = b.run(&["build", "--help"]).out;
    assert!(help.contains("PARENT/.NAME.imgbuild. Only SIGKILL"), "{help}");
}

#[test]
fn a_reader_that_leaves_early_is_no_panic() {
    let b = Bench::new();
    for args in [
        &["plan", "r.toml"][..],
        &["check", "r.toml", "--json"],
        &["--help"],
    ] {
        let mut c = b.command(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        c.stdout(writer);
        assert_eq!(c.status().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let b = Bench::new();
    std::fs::create_dir(b.path("o")).unwrap();
    b.write("o/a", "x");
    b.write(
        "o/SHA256SUMS",
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  a\n",
    );
    let full = |args: &[&str]| {
        let mut c = b.command(args);
        c.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        super::Run::of(c.stderr(std::process::Stdio::piped()).output().unwrap())
    };
    for args in [
        &["plan", "r.toml"][..],
        &["plan", "r.toml", "--json"],
        &["check", "r.toml"],
        &["check", "r.toml", "--json"],
        &["verify", "o"],
        &["verify", "o", "--json"],
        &["--help"],
        &["--version"],
    ] {
        full(args).fails(
            6,
            "error[IO028] writing to standard output: No space left on device",
        );
    }
    let run = full(&["build", "r.toml", "--out", "done"]);
    assert_eq!(run.code, Some(6), "{run:?}");
    assert!(
        run.err.contains("the build itself is done and lies in "),
        "{run:?}"
    );
    b.run(&["verify", "done"]).succeeds();
    // A command that failed keeps its own code.
    full(&["check", "none.toml", "--json"]).fails(3, "error[CFG001]");
}

#[test]
fn outputs_where_nothing_can_be_written() {
    let b = Bench::new();
    for (out, why) in [
        ("", "is empty; give a directory"),
        (" ", "is empty; give a directory"),
        ("/proc/x", "cannot write to /proc"),
        ("/proc/x/y", "cannot write to /proc/x"),
        ("r.toml/x", "Not a directory"),
        ("r.toml/x/y", "Not a directory"),
    ] {
        let run = b.run(&["build", "r.toml", "--out", out]);
        run.fails(3, "error[CFG016] --out ");
        assert!(run.err.contains(why), "{out:?}: {run:?}");
        assert!(run.err.contains("give "), "{out:?}: {run:?}");
        assert_eq!(b.names(), UNTOUCHED);
    }
    // Read-only for root as well as for others: a directory of sysfs, and for others one without w.
    let run = b.run(&["build", "r.toml", "--out", "/sys/kernel/x"]);
    run.fails(3, "error[CFG016] --out ");
    if !rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(b.path("ro/out")).unwrap();
        for (mode_of, out) in [("ro", "ro/new"), ("ro/out", "ro/out")] {
            let mode =
                |m| std::fs::set_permissions(b.path(mode_of), std::fs::Permissions::from_mode(m)).unwrap();
            mode(0o555);
            let run = b.run(&["build", "r.toml", "--out", out]);
            mode(0o755);
            run.fails(3, "error[CFG016] --out ");
            assert!(run.err.contains("Permission denied"), "{run:?}");
        }
    }
}

#[test]
fn verify_finds_every_change() {
    let b = Bench::new();
    b.run(&["verify", "nowhere"]).fails(
        3,
        "error[IO001] reading nowhere/SHA256SUMS: No such file or directory",
    );
    std::fs::create_dir(b.path("o")).unwrap();
    b.write("o/a", "x");
    let sum = |digest: &str| b.write("o/SHA256SUMS", &format!("{digest}  a\n"));
    sum("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    b.run(&["verify", "o"]).succeeds();
    b.write("o/a", "y");
    b.run(&["verify", "o"])
        .fails(8, "error[SUM001] o/a: SHA-256 expected 2d71");
    std::fs::remove_file(b.path("o/a")).unwrap();
    b.run(&["verify", "o"])
        .fails(8, "error[SUM001] opening o/a: No such file or directory");
    b.write("o/SHA256SUMS", "nonsense\n");
    b.run(&["verify", "o"])
        .fails(8, "error[SUM001] o/SHA256SUMS: line 1:");
}
