//! A build from a tree without a boot loader: whole, clean, reproducible, and the tree is not touched.

use super::{Bench, RECIPE, names};
use std::process::Command;

const OUTPUTS: [&str; 7] = [
    "SHA256SUMS",
    "build.json",
    "os.yaml",
    "packages.txt",
    "system.img",
    "system.qcow2",
    "update.img",
];

fn tool(program: &str, args: &[&str], file: &std::path::Path) -> String {
    let out = Command::new(program).args(args).arg(file).output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success(), "{program}: {text}");
    text
}

/// Names, sizes, modes and times of the tree.
fn listing(b: &Bench) -> String {
    let out = Command::new("find")
        .arg(b.path("tree"))
        .args(["-printf", "%p %s %m %T@\\n"])
        .output()
        .unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap()
}

/// Copies a partition of a disk image into a file.
fn partition(b: &Bench, image: &str, number: u64) -> std::path::PathBuf {
    use std::io::{Read, Seek, SeekFrom};
    let plan = b.run(&["plan", "r.toml", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    let p = plan["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|p| p["number"] == number)
        .unwrap();
    let mut bytes = vec![0; p["size"].as_u64().unwrap() as usize];
    let mut f = std::fs::File::open(b.path(image)).unwrap();
    f.seek(SeekFrom::Start(p["start"].as_u64().unwrap())).unwrap();
    f.read_exact(&mut bytes).unwrap();
    let to = b.path(&format!("part{number}"));
    std::fs::write(&to, bytes).unwrap();
    to
}

#[test]
fn everything_is_clean_and_a_second_build_is_the_same() {
    let b = Bench::new();
    let before = listing(&b);
    b.run(&["build", "r.toml", "--out", "one/1"]).succeeds();
    assert_eq!(names(&b.path("one")), ["1"], "nothing but the results");
    assert_eq!(names(&b.path("one/1")), OUTPUTS);
    assert_eq!(listing(&b), before);

    tool("e2fsck", &["-fn"], &b.path("one/1/update.img"));
    assert!(tool("sgdisk", &["-v"], &b.path("one/1/system.img")).contains("No problems found"));
    tool(
        "qemu-img",
        &["check", "-f", "qcow2"],
        &b.path("one/1/system.qcow2"),
    );
    tool("fsck.fat", &["-n"], &partition(&b, "one/1/system.img", 1));
    tool("fsck.fat", &["-n"], &partition(&b, "one/1/system.img", 6));
    let persist = partition(&b, "one/1/system.img", 4);
    tool("e2fsck", &["-fn"], &persist);
    let root = std::fs::read(partition(&b, "one/1/system.img", 2)).unwrap();
    assert!(
        root == std::fs::read(b.path("one/1/update.img")).unwrap(),
        "slot A holds the update image"
    );

    // Another directory, another copy of the tree made later and in another order, another umask.
    let c = Bench::new();
    std::fs::remove_dir_all(c.path("tree")).unwrap();
    let copied = Command::new("cp")
        .arg("-a")
        .arg(b.path("tree"))
        .arg(c.path("tree"))
        .status()
        .unwrap();
    assert!(copied.success());
    let mut sh = Command::new("sh");
    sh.args([
        "-c",
        "umask 077; TZ=Asia/Tokyo LC_ALL=C \"$0\" build r.toml --out x/y/z --quiet",
    ])
    .arg(env!("CARGO_BIN_EXE_imgbuild"))
    .current_dir(c.path(""))
    .env_remove("SOURCE_DATE_EPOCH");
    assert!(sh.status().unwrap().success());
    for name in OUTPUTS {
        let (x, y) = (
            std::fs::read(b.path("one/1").join(name)).unwrap(),
            std::fs::read(c.path("x/y/z").join(name)).unwrap(),
        );
        assert!(x == y, "{name} differs");
    }
    c.run(&["verify", "x/y/z"]).succeeds();
}

#[test]
fn persist_knows_what_slot_a_holds() {
    let b = Bench::new();
    let run = b.run(&["build", "r.toml", "--json", "--base-url", "https://h/1/"]);
    let build: serde_json::Value = serde_json::from_str(&run.succeeds().out).unwrap();
    let persist = partition(&b, "out/1/system.img", 4);
    let record = tool("debugfs", &["-R", "cat /os-agent/slots/A.json"], &persist);
    let record: serde_json::Value = serde_json::from_str(record.split("debugfs").next().unwrap()).unwrap();
    assert_eq!(record["version"], "1");
    assert_eq!(record["os_image"], "Acme OS 1");
    assert_eq!(record["image_size"], 32 << 20);
    assert_eq!(record["image_sha256"], build["image_sha256"]);
    assert_eq!(record["payload_digests"][0], build["image_sha256"]);
    assert_eq!(record["content"], "factory");
    for (path, mode) in [("/os-agent", "0700"), ("/os-agent/slots/A.json", "0600")] {
        let stat = tool("debugfs", &["-R", &format!("stat {path}")], &persist);
        assert!(
            stat.contains(&format!("Mode:  {mode}")) && stat.contains("User:     0"),
            "{stat}"
        );
    }
    let yaml = std::fs::read_to_string(b.path("out/1/os.yaml")).unwrap();
    assert!(
        yaml.contains("imageurl: \"https://h/1/update.img\"") && yaml.contains("osversion: \"Acme OS 1\""),
        "{yaml}"
    );
    assert!(yaml.contains(build["image_sha256"].as_str().unwrap()));
}

#[test]
fn links_modes_and_holes_survive() {
    let b = Bench::new();
    b.run(&["build", "r.toml", "--out", "o", "-q"]).succeeds();
    let image = b.path("o/update.img");
    let stat = tool("debugfs", &["-R", "stat /usr/lib/a/hard"], &image);
    assert!(stat.contains("Links: 2"), "{stat}");
    let stat = tool("debugfs", &["-R", "stat /usr/hole"], &image);
    assert!(
        stat.contains("Size: 8388608") && stat.contains("Blockcount: 0"),
        "{stat}"
    );
    let stat = tool("debugfs", &["-R", "stat /etc/os-release"], &image);
    assert!(
        stat.contains("Fast link dest: \"../usr/lib/os-release\""),
        "{stat}"
    );
    use std::os::unix::fs::MetadataExt;
    assert!(
        std::fs::metadata(&image).unwrap().blocks() * 512 < 16 << 20,
        "sparse"
    );
}

#[test]
fn a_tree_with_additions_is_copied_and_left_alone() {
    let b = Bench::new();
    b.write(
        "r.toml",
        &format!("{RECIPE}[[files]]\ntext = \"hello\"\ndst = \"/etc/motd\"\nmode = \"0640\"\n"),
    );
    b.run(&["build", "r.toml", "--out", "o", "-q"]).succeeds();
    assert!(!b.path("tree/etc/motd").exists());
    let text = tool("debugfs", &["-R", "cat /etc/motd"], &b.path("o/update.img"));
    assert!(text.starts_with("hello"), "{text}");
}

/// Where no initramfs is made, the tree's own is the image's, and a node refuses an image without one.
#[test]
fn an_initramfs_of_the_tree_or_the_recipe_stays() {
    let b = Bench::new();
    std::fs::create_dir(b.path("tree/boot")).unwrap();
    b.write("tree/boot/initramfs.img", "of the tree");
    let cat = |b: &Bench| {
        b.run(&["build", "r.toml", "--out", "o", "-q"]).succeeds();
        tool(
            "debugfs",
            &["-R", "cat /boot/initramfs.img"],
            &b.path("o/update.img"),
        )
    };
    assert!(cat(&b).starts_with("of the tree"), "as it is");
    b.write(
        "r.toml",
        &format!("{RECIPE}[[files]]\ntext = \"hello\"\ndst = \"/etc/motd\"\n"),
    );
    assert!(cat(&b).starts_with("of the tree"), "copied");
    b.write(
        "r.toml",
        &format!("{RECIPE}[[files]]\ntext = \"of the recipe\"\ndst = \"/boot/initramfs.img\"\n"),
    );
    assert!(cat(&b).starts_with("of the recipe"), "put there");
}

#[test]
fn files_that_cleaning_takes_out_are_named() {
    let b = Bench::new();
    b.write(
        "r.toml",
        &format!(
            "{RECIPE}[[files]]\ntext = \"a\"\ndst = \"/tmp/x\"\n[[files]]\ntext = \"b\"\ndst = \"/etc/motd\"\n\
             [[files]]\ntext = \"k\"\ndst = \"/etc/ssh/ssh_host_rsa_key\"\n"
        ),
    );
    let run = b.run(&["build", "r.toml", "--out", "o"]);
    let err = &run.succeeds().err;
    assert!(err.contains("warning[IMG011] files[0].dst \"/tmp/x\": "), "{err}");
    assert!(err.contains("warning[IMG011] files[2].dst "), "{err}");
    assert!(!err.contains("files[1]"), "{err}");
}

/// Runs a build as an ordinary user; none where we are one ourselves.
fn as_user(b: &Bench, uid: u32, args: &[&str]) -> Option<super::Run> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    // The program of the tests may lie where only root looks.
    let program = b.path("imgbuild-of-all");
    std::fs::copy(env!("CARGO_BIN_EXE_imgbuild"), &program).unwrap();
    let owner = format!("{uid}:{}", uid + 1);
    let chown = Command::new("chown")
        .args(["-Rh", &owner])
        .arg(b.path(""))
        .status()
        .unwrap();
    assert!(chown.success());
    let out = Command::new("setpriv")
        .args([
            &format!("--reuid={uid}"),
            &format!("--regid={}", uid + 1),
            "--clear-groups",
        ])
        .arg(&program)
        .args(args)
        .current_dir(b.path(""))
        .env_remove("SOURCE_DATE_EPOCH")
        .output()
        .unwrap();
    std::fs::remove_file(program).unwrap();
    Some(super::Run::of(out))
}

#[test]
fn files_of_an_ordinary_builder_are_roots_in_the_image() {
    let recipe = format!("{RECIPE}[[files]]\ntext = \"x\"\ndst = \"/etc/motd\"\n");
    let mut images = Vec::new();
    for (copied, text) in [(false, RECIPE), (true, recipe.as_str())] {
        for uid in [0, 12_345, 65_534] {
            let b = Bench::new();
            b.write("r.toml", text);
            let args = ["build", "r.toml", "--out", "o", "-q"];
            if uid == 0 {
                b.run(&args).succeeds();
            } else {
                let Some(run) = as_user(&b, uid, &args) else {
                    continue;
                };
                run.succeeds();
            }
            let image = b.path("o/update.img");
            for file in ["/", "/etc/5", "/usr/lib/a/hard", "/etc/os-release"] {
                let stat = tool("debugfs", &["-R", &format!("stat {file}")], &image);
                assert!(
                    stat.contains("User:     0   Group:     0 "),
                    "{uid} {file}: {stat}"
                );
            }
            if !copied {
                images.push(std::fs::read(image).unwrap());
            }
        }
    }
    // The benches are made at different seconds, and the times of a tree are kept: sizes only.
    assert!(images.iter().all(|i| i.len() == images[0].len()));
}

#[test]
fn two_users_get_the_same_bytes() {
    let b = Bench::new();
    let mut sums = Vec::new();
    for uid in [0, 12_345, 65_534] {
        let out = format!("o{uid}");
        let args = ["build", "r.toml", "--out", &out, "-q"];
        if uid == 0 {
            b.run(&args).succeeds();
        } else {
            let Some(run) = as_user(&b, uid, &args) else {
                eprintln!("skipped: only root can become two users");
                return;
            };
            run.succeeds();
        }
        sums.push(std::fs::read_to_string(b.path(&out).join("SHA256SUMS")).unwrap());
    }
    assert!(sums.iter().all(|s| *s == sums[0]), "{sums:#?}");
}

#[test]
fn another_owner_needs_root() {
    let b = Bench::new();
    for owner in ["1000:1000", "12345:12346", "0:5"] {
        let files = format!("[[files]]\ntext = \"x\"\ndst = \"/etc/motd\"\nowner = \"{owner}\"\n");
        b.write("r.toml", &format!("{RECIPE}{files}"));
        let args = ["build", "r.toml", "--out", "o"];
        let run = as_user(&b, 12_345, &args).unwrap_or_else(|| b.run(&args));
        run.fails(3, "error[CFG017] ");
        assert!(run.err.contains("run imgbuild with sudo"), "{run:?}");
        assert!(!b.path("o").exists());
    }
}

#[test]
fn plan_touches_nothing_and_names_every_partition() {
    let b = Bench::new();
    let run = b.run(&["plan", "r.toml"]);
    for name in ["BOOT", "ROOT-A", "ROOT-B", "PERSIST", "bios", "os-state"] {
        assert!(run.succeeds().out.contains(name), "{run:?}");
    }
    b.run(&["check", "r.toml"]).succeeds();
    assert_eq!(b.names(), ["r.toml", "tree"]);
}

#[test]
fn a_tree_that_calls_itself_something_else_gets_a_warning() {
    let b = Bench::new();
    b.write(
        "tree/usr/lib/os-release",
        "PRETTY_NAME=\"Other 7\"\nVERSION_ID=7\n",
    );
    let run = b.run(&["build", "r.toml", "--out", "o"]);
    assert!(run.succeeds().err.contains("warning[IMG010]"), "{run:?}");
    assert!(
        std::fs::read_to_string(b.path("o/os.yaml"))
            .unwrap()
            .contains("osversion: \"Other 7\"")
    );
}
