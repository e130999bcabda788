//! `--json`: one document on standard output, whatever happens; the text for people on standard error as always.

use super::{Bench, RECIPE, Run};
use serde_json::Value;

#[track_caller]
fn document(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:#?}"))
}

#[track_caller]
fn error(run: &Run, code: &str, class: &str, exit: i32) -> Value {
    assert_eq!(run.code, Some(exit), "{run:#?}");
    assert!(!run.err.trim().is_empty(), "{run:#?}");
    let doc = document(run);
    assert_eq!(
        (&doc["code"], &doc["class"]),
        (&code.into(), &class.into()),
        "{doc}"
    );
    assert_eq!(doc["exit_code"], exit);
    assert!(!doc["message"].as_str().unwrap().is_empty());
    assert_eq!(doc["errors"][0]["message"], doc["message"]);
    doc
}

#[test]
fn every_command_gives_its_errors_as_an_object() {
    let b = Bench::new();
    b.write(
        "r.toml",
        &RECIPE
            .replace("slot_mib", "slot_mb")
            .replace("\"none\"", "\"nine\""),
    );
    for command in ["build", "check", "plan"] {
        let doc = error(&b.run(&[command, "r.toml", "--json"]), "CFG003", "input", 3);
        assert_eq!(doc["errors"].as_array().unwrap().len(), 2, "{doc}");
        assert_eq!(doc["errors"][1]["code"], "CFG014");
        assert!(b.run(&[command, "r.toml"]).out.is_empty());
    }
    error(&b.run(&["verify", "nowhere", "--json"]), "IO001", "input", 3);
    std::fs::create_dir(b.path("o")).unwrap();
    b.write("o/SHA256SUMS", &format!("{}  a\n", "0".repeat(64)));
    b.write("o/a", "x");
    error(&b.run(&["verify", "o", "--json"]), "SUM001", "trust", 8);
}

/// The worker finds this one, its supervisor must not add a second document.
#[test]
fn an_error_in_the_middle_of_a_build_is_one_object() {
    let b = Bench::new();
    std::fs::write(b.path("tree/usr/lib/big"), vec![1; 40 << 20]).unwrap();
    let run = b.run(&["build", "r.toml", "--json"]);
    let doc = error(&run, "SIZE001", "space", 6);
    assert!(doc["message"].as_str().unwrap().starts_with("root tree needs "));
    let missing = b
        .command(&["build", "r.toml", "--json"])
        .env("PATH", "/none")
        .output();
    error(&Run::of(missing.unwrap()), "DEP001", "tools", 10);
}

#[test]
fn a_wrong_command_line_is_an_object_too() {
    let b = Bench::new();
    for args in [
        &["bulid", "--json"][..],
        &["build", "--json"],
        &["--json"],
        &["check", "--json", "r.toml", "more"],
        &["verify", "--json", "--outt"],
    ] {
        let doc = error(&b.run(args), "USE001", "input", 3);
        assert!(!doc["message"].as_str().unwrap().starts_with("error"), "{doc}");
    }
    for args in [&["bulid"][..], &["check", "r.toml", "--", "--json"]] {
        let run = b.run(args);
        assert_eq!((run.code, run.out.as_str()), (Some(3), ""), "{run:?}");
    }
}

#[test]
fn success_is_a_document_of_its_own() {
    let b = Bench::new();
    let doc = document(b.run(&["check", "r.toml", "--json"]).succeeds());
    assert_eq!(doc["pretty_name"], "Acme OS 1");
    assert_eq!(doc["warnings"], Value::Array(Vec::new()));
    std::fs::create_dir(b.path("o")).unwrap();
    let sum = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    b.write("o/SHA256SUMS", &format!("{sum}  a\n"));
    b.write("o/a", "x");
    let doc = document(b.run(&["verify", "o", "--json"]).succeeds());
    assert_eq!(doc["verified"][0], "a");
}
