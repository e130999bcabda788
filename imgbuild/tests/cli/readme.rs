//! The recipe of README.md is one that builds: what the image of the boot tests needs to boot is in it as well.

use super::Bench;
use imgbuild::recipe::{Recipe, Rootfs};

/// What demo.toml has for the tests and their users only.
const NOT_NEEDED: [&str; 9] = [
    "curl",
    "cryptsetup",
    "gdisk",
    "less",
    "libnss-systemd",
    "procps-ng",
    "tar",
    "test-",
    "zstd",
];

fn root(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn recipe() -> String {
    let text = root("README.md");
    let block = text.split("```toml\n").nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

fn packages(text: &str) -> Vec<String> {
    let recipe = Recipe::parse(text, "r.toml".into()).unwrap();
    match recipe.rootfs {
        Rootfs::Packages { packages, .. } => packages,
        Rootfs::Tree(_) => panic!("expected packages"),
    }
}

#[test]
fn its_packages_are_complete() {
    let ours = packages(&recipe());
    let needed: Vec<String> = packages(&root("tests/recipes/demo.toml"))
        .into_iter()
        .filter(|p| !NOT_NEEDED.iter().any(|n| p.starts_with(n)))
        .collect();
    assert!(needed.len() >= 14, "{needed:?}");
    let missing: Vec<&String> = needed.iter().filter(|p| !ours.contains(p)).collect();
    assert!(missing.is_empty(), "README.md lacks {missing:?}");
}

#[test]
fn it_has_no_mistake() {
    let b = Bench::new();
    b.write("r.toml", &recipe());
    let run = b.run(&["check", "r.toml"]);
    // Only the files of its reader are not there.
    assert!(
        run.err
            .lines()
            .all(|l| l.contains("RPM-GPG-KEY-lab\": not found") || l.contains("os-agent\": not found")),
        "{run:#?}"
    );
}
