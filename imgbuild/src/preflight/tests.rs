#![allow(clippy::disallowed_methods)]
use super::*;
use std::os::unix::fs::symlink;

const TREE: &str = "version = \"1\"\n[rootfs]\nfrom = \"tree\"\ntree = \"t\"\n";

struct Bench {
    _dir: tempfile::TempDir,
    at: Utf8PathBuf,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let at = Utf8Path::from_path(dir.path()).unwrap().to_owned();
    std::fs::create_dir_all(at.join("t/usr")).unwrap();
    Bench { _dir: dir, at }
}

impl Bench {
    fn recipe(&self, extra: &str) -> Recipe {
        Recipe::parse(&format!("{TREE}{extra}"), &self.at.join("r.toml")).unwrap()
    }

    fn output(&self, recipe: &Recipe, out: &str) -> Result<()> {
        output(recipe, &Paths::new(&self.at.join(out)).unwrap())
    }
}

#[test]
fn the_agents_place_is_taken() {
    let b = bench();
    for dst in ["/usr/bin/os-agent", "/bin/os-agent"] {
        let entry = format!("[[files]]\ntext = \"x\"\ndst = \"{dst}\"\n");
        assert!(
            files(&b.recipe(&entry)).is_empty(),
            "without [agent] it is the agent"
        );
        let e = files(&b.recipe(&format!("{entry}[agent]\npath = \"a\"\n")));
        assert!(
            e.len() == 1 && e[0].message.contains("[agent] path goes there"),
            "{e:?}"
        );
    }
}

#[test]
fn results_never_lie_in_the_tree_however_it_is_called() {
    let b = bench();
    symlink("t", b.at.join("link")).unwrap();
    symlink("t/usr", b.at.join("deep")).unwrap();
    let r = b.recipe("");
    for out in [
        "t",
        "t/o",
        "t/none/yet/o",
        "link/o",
        "deep",
        "deep/o",
        "x/../t/o",
        "link/../t/usr",
    ] {
        let e = b.output(&r, out).unwrap_err();
        assert_eq!((e.kind, e.code), (Kind::Input, "CFG016"), "{out}");
        assert!(e.message.contains("lies in rootfs.tree"), "{e}");
    }
    for out in ["o", "tt", "t.o/x", "t/../o", "deep/../../o"] {
        b.output(&r, out).unwrap();
    }
}

#[test]
fn a_link_to_the_outside_does_not_hide_the_working_directory() {
    let b = bench();
    std::fs::create_dir(b.at.join("outside")).unwrap();
    symlink("../outside", b.at.join("t/o")).unwrap();
    // The results would lie outside, `t/.o.imgbuild` inside.
    assert_eq!(b.output(&b.recipe(""), "t/o").unwrap_err().code, "CFG016");
}

#[test]
fn directories_of_files_are_looked_at_too() {
    let b = bench();
    std::fs::create_dir(b.at.join("extra")).unwrap();
    let r = b.recipe("[[files]]\ntext = \"\"\ndst = \"/a\"\n[[files]]\nsrc = \"extra\"\ndst = \"/b\"\n");
    let e = b.output(&r, "extra/o").unwrap_err();
    assert!(e.message.contains("lies in files[1].src"), "{e}");
    b.output(&r, "o").unwrap();
}

#[test]
fn the_agent_is_looked_at_with_its_place() {
    let b = bench();
    let r = b.recipe("[agent]\npath = \"a\"\n");
    let why = |bytes: &[u8]| {
        std::fs::write(b.at.join("a"), bytes).unwrap();
        let e = agent(&r).unwrap_err();
        assert_eq!((e.kind, e.code), (Kind::Input, "CFG012"));
        let (place, why) = e.message.rsplit_once(": ").unwrap();
        assert_eq!(place, format!("{0}/r.toml:6:8: agent.path \"{0}/a\"", b.at));
        why.to_owned()
    };
    assert_eq!(why(b""), "is empty");
    assert_eq!(why(b"text\n"), "not an ELF program");
    let other = why(&std::fs::read("/bin/true").unwrap());
    assert!(
        other == "a program, but not Slipway's os-agent" || other.contains("image arch"),
        "{other}"
    );
    agent(&b.recipe("")).unwrap();
}
