//! What imgbuild leaves: clean file systems and tables, the same bytes twice, one clear error for bad input and nothing left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::fixture;
use os_e2e::images::{images, recipe, recipe_dir};
use os_e2e::proc::{self, Ended};
use os_e2e::product::{product, sha256};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn clean(argv: &[&str]) -> String {
    let e = proc::status(proc::command(argv[0]).args(&argv[1..]).env("PATH", PATH)).unwrap();
    assert_eq!(e.code, 0, "{argv:?}: {}{}", e.out, e.err);
    e.out + &e.err
}

/// First byte and size of a partition.
fn part(disk: &Utf8Path, number: u32) -> (u64, u64) {
    let out = clean(&["sgdisk", "-i", &number.to_string(), disk.as_str()]);
    let sector = |what: &str| -> u64 {
        let line = out.lines().find(|l| l.starts_with(what)).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    };
    let (first, last) = (sector("First sector"), sector("Last sector"));
    (first * 512, (last - first + 1) * 512)
}

fn cut_out(disk: &Utf8Path, number: u32, to: &Utf8Path) {
    let (start, size) = part(disk, number);
    clean(&[
        "dd",
        &format!("if={disk}"),
        &format!("of={to}"),
        "bs=1M",
        "conv=sparse",
        "iflag=skip_bytes,count_bytes",
        &format!("skip={start}"),
        &format!("count={size}"),
        "status=none",
    ]);
}

fn scratch() -> (tempfile::TempDir, Utf8PathBuf) {
    let t = tempfile::tempdir_in("/var/tmp").unwrap();
    let p = Utf8PathBuf::from_path_buf(t.path().to_owned()).unwrap();
    (t, p)
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn file_systems_and_tables_are_clean() {
    let images = images().unwrap();
    let (_t, dir) = scratch();
    let disk = images.disk("1");
    let said = clean(&["sgdisk", "-v", disk.as_str()]);
    assert!(said.contains("No problems found"), "{said}");
    let qcow2 = disk.with_extension("qcow2");
    clean(&["qemu-img", "check", qcow2.as_str()]);
    clean(&[
        "qemu-img",
        "compare",
        "-f",
        "raw",
        "-F",
        "qcow2",
        disk.as_str(),
        qcow2.as_str(),
    ]);
    for (number, check) in [
        (1, &["fsck.fat", "-n"][..]),
        (6, &["fsck.fat", "-n"]),
        (2, &["e2fsck", "-fn"]),
        (4, &["e2fsck", "-fn"]),
    ] {
        let file = dir.join(format!("p{number}"));
        cut_out(&disk, number, &file);
        let mut argv = check.to_vec();
        argv.push(file.as_str());
        clean(&argv);
    }
    clean(&["e2fsck", "-fn", images.update("1").as_str()]);
    // Slot A of the disk is the update image.
    let update = images.update("1");
    let size = fs_err::metadata(&update).unwrap().len();
    let slot = dir.join("p2");
    fs_err::OpenOptions::new()
        .write(true)
        .open(&slot)
        .unwrap()
        .set_len(size)
        .unwrap();
    assert_eq!(sha256(&slot).unwrap(), sha256(&update).unwrap());
    let sums = proc::run(
        proc::command("sha256sum")
            .args(["-c", "--strict", "SHA256SUMS"])
            .current_dir(images.dir.join("1")),
    );
    sums.unwrap();
    let yaml = fs_err::read_to_string(images.dir.join("1/os.yaml")).unwrap();
    assert!(yaml.contains(&sha256(&update).unwrap()), "{yaml}");
    let packages = fs_err::read_to_string(images.dir.join("1/packages.txt")).unwrap();
    assert!(packages.contains("test-package"), "{packages}");
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn a_second_build_elsewhere_is_the_same() {
    let images = images().unwrap();
    let (_t, dir) = scratch();
    let file = recipe_dir(&dir.join("elsewhere"), &recipe("1").unwrap(), &images.product).unwrap();
    let out = dir.join("out");
    let start = Instant::now();
    let e = build(&file, &out);
    assert_eq!(e.code, 0, "{}{}", e.out, e.err);
    println!("second build: {:.0} s", start.elapsed().as_secs_f64());
    for name in ["system.img", "update.img"] {
        let (a, b) = (images.dir.join("1").join(name), out.join(name));
        clean(&["cmp", a.as_str(), b.as_str()]);
    }
}

fn build(recipe: &Utf8Path, out: &Utf8Path) -> Ended {
    let p = product().unwrap();
    proc::status(proc::command(&p.imgbuild).args(["build", recipe.as_str(), "--out", out.as_str()])).unwrap()
}

/// A small recipe (no kernel, no loader) with one change; builds it and expects an exit code and a text.
fn bad(text: &str, exit: i32, says: &[&str]) {
    let (_t, dir) = scratch();
    let file = recipe_dir(&dir, text, &product().unwrap()).unwrap();
    let out = dir.join("out");
    let before = host();
    let e = build(&file, &out);
    let all = format!("{}{}", e.out, e.err);
    assert_eq!(e.code, exit, "{all}");
    for s in says {
        assert!(all.contains(s), "expected {s:?} in: {all}");
    }
    assert!(!out.exists(), "an output was left");
    assert_eq!(host(), before, "mounts or devices were left");
    let left: Vec<String> = fs_err::read_dir(&dir)
        .unwrap()
        .map(|f| f.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n.contains("imgbuild"))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Mounts and loop devices of this host.
fn host() -> (BTreeSet<String>, String) {
    let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap();
    let loops = proc::sh(&["losetup", "-a"]).unwrap_or_default();
    (mounts.lines().map(ToOwned::to_owned).collect(), loops)
}

fn small(packages: &str, repo: &str, extra: &str) -> String {
    format!(
        "version = \"1\"\n{extra}[rootfs]\nfrom = \"packages\"\npackages = [{packages}]\n\n[[rootfs.repos]]\n{repo}\n\
         [boot]\nloader = \"none\"\n\n[disk]\nslot_mib = 256\nesp_mib = 64\n"
    )
}

const GOOD: &str = "id = \"fixture\"\nurl = \"repo\"\nkey = \"keys/RPM-GPG-KEY-slipway-fixture\"\n";

fn bad_repo(case: &str) -> String {
    let f = fixture::ensure().unwrap();
    format!(
        "{GOOD}\n[[rootfs.repos]]\nid = \"bad\"\nurl = \"{}\"\nkey = \"keys/RPM-GPG-KEY-slipway-fixture\"\n",
        f.dir.join("bad").join(case)
    )
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn missing_package() {
    bad(
        &small("\"tiny\", \"no-such-thing\"", GOOD, ""),
        7,
        &["no-such-thing"],
    );
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn unreachable_repository() {
    let repo = "id = \"far\"\nurl = \"http://127.0.0.1:9/repo\"\nallow_unsigned = true\n";
    bad(&small("\"tiny\"", repo, ""), 7, &["127.0.0.1:9"]);
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn unsigned_package() {
    bad(
        &small("\"tiny\", \"bad-unsigned\"", &bad_repo("unsigned"), ""),
        8,
        &["bad-unsigned"],
    );
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn unknown_key_with_line_and_suggestion() {
    bad(
        &small("\"tiny\"", GOOD, "nmae = \"x\"\n"),
        3,
        &["nmae", "recipe.toml:2", "name"],
    );
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn failing_scriptlet() {
    bad(
        &small("\"tiny\", \"bad-fail-post\"", &bad_repo("fail-post"), ""),
        7,
        &["bad-fail-post"],
    );
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn full_disk_in_mid_build() {
    let (_t, dir) = scratch();
    let text = small("\"tiny\"", GOOD, "");
    let file = recipe_dir(&dir.join("recipe"), &text, &product().unwrap()).unwrap();
    let small_disk = dir.join("small");
    fs_err::create_dir_all(&small_disk).unwrap();
    clean(&[
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=60m",
        "tmpfs",
        small_disk.as_str(),
    ]);
    let e = build(&file, &small_disk.join("out"));
    let left: Vec<_> = fs_err::read_dir(&small_disk)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    clean(&["umount", small_disk.as_str()]);
    assert_eq!(e.code, 6, "{}{}", e.out, e.err);
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
#[ignore = "needs root and the fixture: tests/run image"]
fn ctrl_c_and_sigkill_leave_nothing_mounted() {
    for (signal, exit) in [("INT", 130), ("TERM", 143), ("KILL", 137)] {
        let (_t, dir) = scratch();
        let text = small("\"tiny\"", GOOD, "");
        let file = recipe_dir(&dir, &text, &product().unwrap()).unwrap();
        let out = dir.join("out");
        let before = host();
        let p = product().unwrap();
        let mut c = proc::command(&p.imgbuild);
        c.args(["build", file.as_str(), "--out", out.as_str()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut child = c.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        assert!(child.try_wait().unwrap().is_none(), "too fast for this test");
        clean(&["kill", &format!("-{signal}"), &child.id().to_string()]);
        let start = Instant::now();
        let status = child.wait().unwrap();
        let code =
            std::os::unix::process::ExitStatusExt::signal(&status).map_or(status.code(), |s| Some(128 + s));
        assert_eq!(code, Some(exit), "{signal}");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{signal} took {:?}",
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(host(), before, "{signal}: mounts or devices were left");
        assert!(!out.exists(), "{signal}: an output was left");
        // A build that was cut off is no obstacle to the next.
        let e = build(&file, &out);
        assert_eq!(e.code, 0, "{signal}, then again: {}{}", e.out, e.err);
    }
}
