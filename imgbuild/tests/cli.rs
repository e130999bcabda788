//! The program as users and scripts see it: exit codes, messages, outputs. Everything here runs as an ordinary user.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::new_without_default,
    missing_docs,
    unreachable_pub
)]

#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/before_a_build.rs"]
mod before_a_build;
#[path = "cli/interrupted.rs"]
mod interrupted;
#[path = "cli/json.rs"]
mod json;
#[path = "cli/readme.rs"]
mod readme;
#[path = "cli/tree_build.rs"]
mod tree_build;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory with a recipe and a small tree.
pub struct Bench {
    dir: tempfile::TempDir,
}

/// Builds quickly: small slots, no boot loader.
pub const RECIPE: &str = r#"
version = "1"
name = "Acme OS"
[rootfs]
from = "tree"
tree = "tree"
[disk]
slot_mib = 32
esp_mib = 64
[boot]
loader = "none"
"#;

impl Bench {
    pub fn new() -> Bench {
        let bench = Bench {
            dir: tempfile::Builder::new()
                .prefix("dir with 'quotes' $x ü ")
                .tempdir()
                .unwrap(),
        };
        bench.tree("tree");
        bench.write("r.toml", RECIPE);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// A tree with what images have: links, modes, holes, odd names.
    pub fn tree(&self, name: &str) {
        let t = self.path(name);
        std::fs::create_dir_all(t.join("usr/lib/a/b/c")).unwrap();
        std::fs::create_dir_all(t.join("etc")).unwrap();
        std::fs::write(
            t.join("usr/lib/os-release"),
            "PRETTY_NAME=\"Acme OS 1\"\nVERSION_ID=1\n",
        )
        .unwrap();
        std::fs::write(t.join("usr/lib/a/b/c/ü 'x' $y"), vec![3; 100_000]).unwrap();
        std::fs::hard_link(t.join("usr/lib/a/b/c/ü 'x' $y"), t.join("usr/lib/a/hard")).unwrap();
        std::os::unix::fs::symlink("../usr/lib/os-release", t.join("etc/os-release")).unwrap();
        std::fs::File::create(t.join("usr/hole"))
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        for i in 0..300 {
            std::fs::write(t.join(format!("etc/{i}")), format!("{i}")).unwrap();
        }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_imgbuild"));
        c.args(args)
            .current_dir(self.dir.path())
            .env_remove("SOURCE_DATE_EPOCH")
            .stdin(Stdio::null());
        c
    }

    pub fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Names in the directory, hidden ones too, sorted.
    pub fn names(&self) -> Vec<String> {
        names(self.dir.path())
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn of(o: Output) -> Run {
        Run {
            code: o.status.code(),
            out: String::from_utf8(o.stdout).unwrap(),
            err: String::from_utf8(o.stderr).unwrap(),
        }
    }

    /// Fails the test unless the program ended so, with this in its first line of errors.
    #[track_caller]
    pub fn fails(&self, code: i32, first_line_has: &str) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let first = self
            .err
            .lines()
            .find(|l| l.starts_with("error[") || !l.starts_with("imgbuild:"));
        assert!(first.unwrap_or("").contains(first_line_has), "{self:#?}");
    }

    #[track_caller]
    pub fn succeeds(&self) -> &Run {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }
}
