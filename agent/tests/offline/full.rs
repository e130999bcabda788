//! An offline disk whose state directory lies on the same file system, which has no room left.

use super::*;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A small file system in memory that an ordinary user may mount: it lives in a mount namespace of its own, held by a child.
struct SmallFs {
    child: Child,
    hold: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
    at: Utf8PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallFs {
    /// `None` where an ordinary user may not make one; said on standard error.
    fn new(kib: u64) -> Option<SmallFs> {
        let dir = tempfile::tempdir().unwrap();
        // A line on standard input makes it read-only; the end of it ends it.
        let mount = "mount -t tmpfs -o size=\"$1\" none \"$2\" && echo ready && read x && \
                     mount -o remount,bind,ro \"$2\" && echo ready && exec cat";
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"])
            .arg(format!("{kib}k"))
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut says = BufReader::new(child.stdout.take().unwrap());
        says.read_line(&mut line).unwrap();
        if line.trim() != "ready" {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            child.wait().unwrap();
            assert!(!rustix::process::geteuid().is_root(), "{why}");
            eprintln!("not run: no user namespaces here: {why}");
            return None;
        }
        let at = Utf8PathBuf::from(format!("/proc/{}/root{}", child.id(), dir.path().display()));
        Some(SmallFs {
            hold: child.stdin.take(),
            says,
            child,
            at,
            _dir: dir,
        })
    }

    /// From here on nothing can be written to it.
    fn read_only(&mut self) {
        self.hold.as_mut().unwrap().write_all(b"now\n").unwrap();
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
    }

    /// Fills it up but for `kib` KiB.
    fn fill_but(&self, kib: u64) -> Utf8PathBuf {
        let hog = self.at.join("hog");
        let mut f = std::fs::File::create(&hog).unwrap();
        while f.write_all(&[1; 4096]).is_ok() {}
        let len = f.metadata().unwrap().len();
        f.set_len(len.saturating_sub(kib << 10)).unwrap();
        hog
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        drop(self.hold.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_full_file_system_below_disk_and_state_is_one_error_and_the_same_command_goes_through_later() {
    let mut two = image("2");
    two.resize(3 << 20, 7);
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), &two).unwrap();
    let file = image.path().to_str().unwrap();
    let sum = sha256(&two).to_string();
    let stage = ["stage", "--image", file, "--sha256", &sum];
    // KiB that are free: nothing, room for a part of the state, for the state and a part of the image, for nearly all.
    let mut begun = 0;
    for free in [0, 4, 8, 64, 160, 200, 260, 700, 1300, 3000, 3150] {
        let Some(fs) = SmallFs::new(24 << 10) else { return };
        let b = Bench::at(fs.at.clone(), 512);
        let (before, env) = (b.bytes(), b.env());
        let slot_b = b.region(Slot::B);
        let hog = fs.fill_but(free);
        let r = b.run(&stage);
        let code = r.json()["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            r.stderr.lines().filter(|l| l.starts_with("os-agent: ")).count(),
            1,
            "{free}: {}",
            r.stderr
        );
        assert!(r.stderr.contains("No space left"), "{free}: {}", r.stderr);
        let (after, status) = (b.bytes(), b.good(&["status"]));
        match (code.as_str(), r.exit) {
            // Not begun.
            ("StateWriteFailed", 5) => {
                assert!(after == before, "{free}: the disk was touched");
                assert!(r.stderr.contains("--state"), "{free}: {}", r.stderr);
                assert_eq!(
                    (&status["slots"][1]["state"], &status["operation"]),
                    (&Value::from("unknown"), &Value::Null),
                    "{free}"
                );
            }
            // The slot does not fit: said in the state, whose room was there before.
            ("SlotTooSmall", 3) => {
                begun += 1;
                assert!(
                    after[..slot_b.start] == before[..slot_b.start]
                        && after[slot_b.end..] == before[slot_b.end..],
                    "{free}: more than slot B was touched"
                );
                assert_eq!(
                    (&status["slots"][1]["state"], &status["last_failure"]["code"]),
                    (&Value::from("dirty"), &Value::from("SlotTooSmall")),
                    "{free}"
                );
                assert_eq!(status["interrupted"], false);
            }
            other => panic!("{free}: {other:?}: {}", r.stderr),
        }
        assert_eq!(b.env(), env);
        b.refused(
            &["activate"],
            if code == "SlotTooSmall" {
                "NotStaged"
            } else {
                "StateWriteFailed"
            },
            r.exit,
        );
        // However often it is repeated.
        for _ in 0..6 {
            assert_eq!(b.run(&stage).json()["code"], code.as_str(), "{free}");
        }
        std::fs::remove_file(hog).unwrap();
        assert_eq!(b.good(&stage)["version"], "2", "{free}");
        b.good(&["activate"]);
    }
    assert!((2..10).contains(&begun), "both kinds were seen: {begun}");
}

#[test]
fn a_state_directory_that_is_read_only_is_read_and_stops_what_would_write() {
    let Some(mut fs) = SmallFs::new(8 << 10) else {
        return;
    };
    let b = Bench::new();
    let state = fs.at.join("state");
    let with = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--state", state.as_str()]);
        b.run(&all)
    };
    let (file, sum) = b.file("v2.img", &image("2"));
    let stage = ["stage", "--image", &file, "--sha256", &sum];
    with(&stage).good();
    fs.read_only();
    let before = b.bytes();
    let three = b.file("v3.img", &image("3"));
    for args in [
        &["stage", "--image", &three.0, "--sha256", &three.1][..],
        &["activate"],
        &["rollback"],
        &["commit"],
    ] {
        let r = with(args);
        assert_eq!(
            (r.exit, r.json()["code"].as_str()),
            (5, Some("StateWriteFailed")),
            "{args:?}: {}",
            r.stderr
        );
        assert!(
            r.stderr.contains("Read-only") && r.stderr.contains("--state"),
            "{}",
            r.stderr
        );
        assert!(b.bytes() == before, "{args:?}");
    }
    let s = with(&["status"]).good();
    assert_eq!(
        (&s["slots"][1]["version"], &s["persist_available"]),
        (&Value::from("2"), &Value::Bool(false))
    );
    assert!(s["problems"].to_string().contains("Read-only"), "{s:#}");
    let d = with(&["doctor"]).json();
    let told = d["checks"].to_string();
    assert!(
        told.contains("Read-only")
            && told.contains("--state; until then every command that changes something"),
        "{d:#}"
    );
    assert_eq!(d["sound"], false);
}
