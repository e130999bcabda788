//! The program as root over real packages: exit codes of bad repositories, and nothing left on the host, whatever ends it.
//!
//! Needs root, dnf and the fixture's repositories, so it runs only with `SLIPWAY_E2E=1`; `SLIPWAY_FIXTURE` names the
//! directory, else the newest in `~/.cache/slipway` is taken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The fixture, or `None` with a word about it.
fn fixture() -> Option<PathBuf> {
    if std::env::var("SLIPWAY_E2E").as_deref() != Ok("1") {
        eprintln!("skipped: needs root and real packages; SLIPWAY_E2E=1 runs it");
        return None;
    }
    if let Some(dir) = std::env::var_os("SLIPWAY_FIXTURE") {
        return Some(dir.into());
    }
    let home = std::env::var_os("HOME").expect("HOME");
    let mut found: Vec<PathBuf> = fs::read_dir(Path::new(&home).join(".cache/slipway"))
        .expect("~/.cache/slipway; build the fixture first")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.join("repo/repodata/repomd.xml").exists())
        .collect();
    found.sort_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
    Some(found.pop().expect("a fixture in ~/.cache/slipway"))
}

struct Recipe {
    packages: Vec<String>,
    repos: String,
    rest: String,
}

impl Recipe {
    /// The smallest root there is, from the good repository.
    fn tiny(fixture: &Path) -> Recipe {
        Recipe {
            packages: vec!["tiny".to_owned()],
            repos: repo(fixture, "fixture", &fixture.join("repo").to_string_lossy(), true),
            rest: "[boot]\nloader = \"none\"\n[disk]\nslot_mib = 128\n".to_owned(),
        }
    }

    fn package(mut self, name: &str) -> Recipe {
        self.packages.push(name.to_owned());
        self
    }

    fn repo(mut self, text: &str) -> Recipe {
        self.repos.push_str(text);
        self
    }

    fn write(&self, dir: &Path) -> PathBuf {
        let file = dir.join("recipe.toml");
        let text = format!(
            "version = \"1.0\"\n[rootfs]\nfrom = \"packages\"\npackages = {:?}\n{}{}",
            self.packages, self.repos, self.rest
        );
        fs::write(&file, text).unwrap();
        file
    }
}

fn repo(fixture: &Path, id: &str, url: &str, signed: bool) -> String {
    let trust = if signed {
        format!("key = {:?}", fixture.join("keys/RPM-GPG-KEY-slipway-fixture"))
    } else {
        "allow_unsigned = true".to_owned()
    };
    format!("[[rootfs.repos]]\nid = {id:?}\nurl = {url:?}\n{trust}\n")
}

fn imgbuild(recipe: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imgbuild"));
    command.arg("build").arg(recipe).arg("--out").arg(out);
    command
}

fn run(recipe: &Path, out: &Path) -> (i32, String) {
    let Output { status, stderr, .. } = imgbuild(recipe, out).output().unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8_lossy(&stderr).into_owned(),
    )
}

/// What a build must leave alone.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    mounts: String,
    loops: Vec<String>,
    dev: Vec<String>,
    names: Vec<String>,
}

impl Host {
    fn now() -> Host {
        let names = |dir: &str| -> Vec<String> {
            let mut list: Vec<String> = fs::read_dir(dir)
                .map(|d| {
                    d.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()))
                        .collect()
                })
                .unwrap_or_default();
            list.sort();
            list
        };
        let in_use = |name: &String| {
            Path::new("/sys/block")
                .join(name)
                .join("loop/backing_file")
                .exists()
        };
        Host {
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap(),
            loops: names("/sys/block").into_iter().filter(in_use).collect(),
            dev: names("/dev"),
            names: names("/etc"),
        }
    }
}

/// Processes whose command line or root names `needle`.
fn processes(needle: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| {
            let dir = e.ok()?.path();
            let pid: u32 = dir.file_name()?.to_str()?.parse().ok()?;
            let line = fs::read(dir.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let root = fs::read_link(dir.join("root")).unwrap_or_default();
            let ours = pid != std::process::id();
            (ours && (line.contains(needle) || root.to_string_lossy().contains(needle)))
                .then(|| format!("{pid} {line}"))
        })
        .collect()
}

#[test]
fn bad_packages_have_their_exit_codes() {
    let Some(fixture) = fixture() else { return };
    let before = Host::now();
    for (case, status, code) in [
        ("conflict", 7, "RPM002"),
        ("missing-dep", 7, "RPM002"),
        ("fail-pre", 7, "RPM007"),
        ("fail-post", 7, "RPM007"),
        ("fail-posttrans", 7, "RPM007"),
        ("unknown-owner", 7, "RPM008"),
        ("wrong-arch", 7, "RPM003"),
        ("unsigned", 8, "SIG001"),
        ("wrong-key", 8, "SIG001"),
        ("tampered", 8, "SIG001"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let url = fixture.join("bad").join(case);
        let recipe = Recipe::tiny(&fixture)
            .repo(&repo(&fixture, "bad", &url.to_string_lossy(), true))
            .package(&format!("bad-{case}"));
        let out = dir.path().join("out");
        let (got, stderr) = run(&recipe.write(dir.path()), &out);
        assert_eq!(got, status, "{case}: {stderr}");
        assert!(stderr.contains(&format!("error[{code}]")), "{case}: {stderr}");
        assert_eq!(left_over(dir.path()), Vec::<String>::new(), "{case}");
    }
    assert_eq!(Host::now(), before);
}

/// Told from the lists of files, before the long part.
#[test]
fn packages_that_cannot_boot_are_refused_before_they_are_downloaded() {
    let Some(fixture) = fixture() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut recipe = Recipe::tiny(&fixture).package("kernel").package("systemd");
    recipe.rest = "[disk]\nslot_mib = 512\nesp_mib = 64\n".to_owned();
    let out = dir.path().join("out");
    let (status, stderr) = run(&recipe.write(dir.path()), &out);
    assert_eq!(status, 7, "{stderr}");
    assert!(stderr.contains("error[IMG005]"), "{stderr}");
    for name in ["grub2-tools", "grub2-efi-x64-modules", "grub2-pc-modules"] {
        assert!(
            stderr.contains(&format!("usually in the package {name}")),
            "{stderr}"
        );
    }
    // The kernel requires dracut.
    for name in ["kernel", "dracut"] {
        assert!(!stderr.contains(&format!("package {name}")), "{stderr}");
    }
    assert!(!stderr.contains("imgbuild: download packages"), "{stderr}");
    let (status, stderr) = run(&recipe.package("grub2-tools").write(dir.path()), &out);
    assert_eq!(status, 7, "{stderr}");
    assert!(!stderr.contains("package grub2-tools"), "{stderr}");
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

/// Whatever dnf and rpm say when the output's disk is full, and whenever: exit code 6, and never "/".
#[test]
fn a_full_output_disk_has_one_exit_code_in_every_window() {
    let Some(fixture) = fixture() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe::tiny(&fixture).package("systemd").write(dir.path());
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    for kib in [64, 1024, 4096, 12_000, 24_000, 40_000, 80_000] {
        let script =
            format!("mount -t tmpfs -o size={kib}k none \"$2\" && exec \"$0\" build \"$1\" --out \"$2/out\"");
        let got = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .arg(env!("CARGO_BIN_EXE_imgbuild"))
            .arg(&recipe)
            .arg(&disk)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&got.stderr);
        assert_eq!(got.status.code(), Some(6), "{kib} KiB: {stderr}");
        assert!(stderr.contains("error[IO028]"), "{kib} KiB: {stderr}");
        assert!(stderr.contains(disk.to_str().unwrap()), "{kib} KiB: {stderr}");
        assert!(!stderr.contains("the / filesystem"), "{kib} KiB: {stderr}");
        eprintln!(
            "{kib} KiB: {}",
            stderr.lines().find(|l| l.starts_with("error")).unwrap()
        );
    }
}

/// Entries of a test's directory other than the recipe.
fn left_over(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n != "recipe.toml" && !n.ends_with(".lock"))
        .collect()
}

#[test]
fn repositories_and_names_that_are_wrong() {
    let Some(fixture) = fixture() else { return };
    let fails = |recipe: Recipe, status: i32, words: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let (got, stderr) = run(&recipe.write(dir.path()), &dir.path().join("out"));
        assert_eq!(got, status, "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
        }
    };
    fails(
        Recipe::tiny(&fixture).package("test-packge"),
        7,
        &["error[RPM001] no package matches \"test-packge\"; closest: test-package"],
    );
    fails(
        Recipe::tiny(&fixture).repo(&repo(&fixture, "dead", "http://127.0.0.1:1/r", false)),
        7,
        &[
            "error[REPO002] repo \"dead\": http://127.0.0.1:1/r/repodata/repomd.xml: ",
            "warning[SEC002]",
        ],
    );
    fails(
        Recipe::tiny(&fixture).repo(&repo(&fixture, "gone", "/no/such/dir", false)),
        3,
        &["error[CFG010]", "/no/such/dir"],
    );
    // A .repo file says where packages are; whether they are believed is the recipe's word alone.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.repo");
    let url = fixture.join("bad/unsigned");
    fs::write(
        &file,
        format!(
            "[off]\nenabled=0\nbaseurl=http://h/\n[inside]\nbaseurl=file://{}\ngpgcheck=0\n",
            url.display()
        ),
    )
    .unwrap();
    let by_file = |extra: &str| {
        let key = fixture.join("keys/RPM-GPG-KEY-slipway-fixture");
        Recipe::tiny(&fixture)
            .repo(&format!(
                "[[rootfs.repos]]\nid = \"x\"\nfile = {file:?}\nkey = {key:?}\n"
            ))
            .package(extra)
    };
    fails(
        by_file("bad-unsigned"),
        8,
        &["error[SIG001] bad-unsigned-1.0-1.noarch: unsigned"],
    );
    fs::write(&file, "[off]\nenabled=0\nbaseurl=http://h/\n").unwrap();
    fails(by_file("less"), 3, &["error[REPO001]", "no enabled repository"]);
    // The host's own repositories are never read: what only they have is not found.
    fails(
        Recipe::tiny(&fixture).package("only-on-the-host"),
        7,
        &["error[RPM001]"],
    );
}

#[test]
fn an_unsigned_package_is_taken_where_the_recipe_says_so() {
    let Some(fixture) = fixture() else { return };
    let dir = tempfile::Builder::new()
        .prefix("dir with 'quotes' $x ü ")
        .tempdir()
        .unwrap();
    // The repository lies in a directory with such a name too.
    let url = dir.path().join("my repo, 100%");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(fixture.join("bad/unsigned"))
        .arg(&url)
        .status()
        .unwrap();
    assert!(copied.success());
    let recipe = Recipe::tiny(&fixture)
        .repo(&repo(&fixture, "bad", &url.to_string_lossy(), false))
        .package("bad-unsigned");
    let out = dir.path().join("out");
    let (status, stderr) = run(&recipe.write(dir.path()), &out);
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("SEC002"), "{stderr}");
    let packages = fs::read_to_string(out.join("packages.txt")).unwrap();
    assert!(
        packages.contains("bad-unsigned") && packages.contains("tiny"),
        "{packages}"
    );
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o700, 0o700);
}

/// Stops the build when stderr has shown `stage` (or after some milliseconds more) with `signal`.
fn interrupted(recipe: &Path, out: &Path, stage: &str, extra: Duration, signal: &str) -> Option<i32> {
    let log = out.with_extension("log");
    let mut child = imgbuild(recipe, out)
        .stderr(Stdio::from(fs::File::create(&log).unwrap()))
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(300);
    while !fs::read_to_string(&log).unwrap().contains(stage) {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended early: {}",
            fs::read_to_string(&log).unwrap()
        );
        assert!(Instant::now() < limit, "{stage:?} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(extra);
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap()
            .success()
    );
    let begun = Instant::now();
    let status = child.wait().unwrap();
    // A few seconds on a quiet machine; on one that is busy with other tests the disk decides how long removing takes.
    eprintln!("{stage} {signal}: ended after {:?}", begun.elapsed());
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "took {:?} to end",
        begun.elapsed()
    );
    fs::remove_file(&log).unwrap();
    status.code()
}

#[test]
fn nothing_stays_after_a_kill_in_any_phase() {
    let Some(fixture) = fixture() else { return };
    let before = Host::now();
    let mut recipe = Recipe::tiny(&fixture);
    // Enough to have every phase, dracut and GRUB included.
    let list = fs::read_to_string(fixture.join("list.txt")).unwrap();
    recipe.packages = list
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .map(str::to_owned)
        .collect();
    recipe.rest = "[disk]\nslot_mib = 512\nesp_mib = 64\n".to_owned();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().to_string_lossy().into_owned();
    let file = recipe.write(dir.path());
    let out = dir.path().join("out");
    for (stage, extra, signal, status) in [
        ("resolve packages", 300, "KILL", None),
        ("install packages", 1500, "KILL", None),
        ("install packages", 4000, "INT", Some(130)),
        ("complete the root", 200, "KILL", None),
        ("initramfs", 3000, "KILL", None),
        ("initramfs", 1000, "TERM", Some(143)),
    ] {
        let got = interrupted(&file, &out, stage, Duration::from_millis(extra), signal);
        assert_eq!(got, status, "{stage} {signal}");
        // The kernel takes the namespace down on its own time, but soon.
        let limit = Instant::now() + Duration::from_secs(5);
        while !processes(&mark).is_empty() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(processes(&mark), Vec::<String>::new(), "{stage} {signal}");
        assert_eq!(Host::now(), before, "{stage} {signal}");
        assert!(!out.exists(), "{stage} {signal}");
        if signal != "KILL" {
            assert_eq!(left_over(dir.path()), Vec::<String>::new(), "{stage} {signal}");
        }
    }
    // What a SIGKILL left is an ordinary directory on the same file system.
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(
            fs::metadata(&path).unwrap().dev(),
            fs::metadata(dir.path()).unwrap().dev()
        );
    }
    dir.close().unwrap();
}
