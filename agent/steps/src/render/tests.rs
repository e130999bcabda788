use super::*;
use crate::testing::Place;
use std::collections::BTreeMap;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    template: String,
}

#[derive(serde::Deserialize)]
struct Expected {
    output: String,
    #[serde(default)]
    error: bool,
}

fn conformance_context() -> serde_json::Value {
    context(include_str!("../../../../tests/conformance/context.json")).unwrap()
}

/// Every case came from Go's text/template with sprig (tests/conformance/go).
#[test]
fn the_conformance_cases_agree_with_go() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/conformance/cases.json")).unwrap();
    let expected: BTreeMap<String, Expected> =
        serde_json::from_str(include_str!("../../../../tests/conformance/expected.json")).unwrap();
    assert!(cases.len() >= 50 && cases.len() == expected.len());
    let context = conformance_context();
    let engine = GoTemplates::default();
    let mut wrong = Vec::new();
    for c in &cases {
        let want = &expected[&c.name];
        let got = engine.render(&c.name, &c.template, &context);
        let agrees = match &got {
            Ok(text) => !want.error && *text == want.output,
            Err(_) => want.error,
        };
        if !agrees {
            let go = if want.error {
                "an error".to_owned()
            } else {
                format!("{:?}", want.output)
            };
            wrong.push(format!("{}: Go gives {go}, we {got:?}", c.name));
        }
    }
    println!(
        "{} of {} cases agree with Go",
        cases.len() - wrong.len(),
        cases.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn fails(text: &str) -> RenderError {
    GoTemplates::default()
        .render("x.sh.tpl", text, &conformance_context())
        .unwrap_err()
}

#[test]
fn errors_name_file_line_and_value() {
    for (text, line, part) in [
        ("a\nb {{ nosuch }}\n", 2, "\"nosuch\" is not defined"),
        ("a\n\n{{ $y }}\n", 3, "$y is not defined"),
        (
            "{{ .cri }}\n{{ if .yes }}\n{{ .cri.x }}\n{{ end }}",
            3,
            "can't evaluate field x",
        ),
        ("\n{{ lower .million }}", 2, "found float"),
        ("\n\n{{ .nothing.x }}", 3, "nil pointer evaluating interface {}.x"),
        ("{{ range .nodeUsers }}\n{{ fail .name }}{{ end }}", 2, "alice"),
        ("\n{{ .cri", 2, ""),
    ] {
        let e = fails(text);
        assert_eq!((e.file.as_str(), e.line), ("x.sh.tpl", line), "{text:?}: {e}");
        assert!(e.message.contains(part), "{text:?}: {e}");
    }
}

#[test]
fn endless_templates_end() {
    for text in [
        "{{ define \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}",
        "{{ range until 100000 }}{{ range until 100000 }}x{{ end }}{{ end }}",
        "{{ $x := list 1 }}{{ range until 30 }}{{ $x = concat $x $x }}{{ end }}{{ len $x }}{{ range $x }}{{ end }}",
        "{{ tpl \"{{ tpl .loop . }}\" . }}{{ tpl `{{ tpl \"{{ fail \\\"deep\\\" }}\" . }}` . }}",
        "{{ repeat 100000000 \"ab\" }}",
    ] {
        let e = fails(text);
        assert!(!e.message.is_empty(), "{text}");
    }
}

#[test]
fn a_context_that_is_no_object_is_refused() {
    for (text, found) in [
        ("[1]", "a list"),
        ("x", "a string"),
        ("", "nothing"),
        ("7", "a number"),
    ] {
        let e = context(text).unwrap_err();
        assert!(e.message.contains(found), "{text}: {e}");
    }
    assert!(context("a: [").unwrap_err().message.contains("not YAML"));
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert!(context(&format!("{{\"a\": {deep}}}")).is_err());
    assert_eq!(context("a: 1\nb: {c: x}").unwrap()["b"]["c"], "x");
}

fn write(p: &Place, files: &[(&str, &str)]) -> camino::Utf8PathBuf {
    let d = p.root.join("templates");
    std::fs::create_dir_all(&d).unwrap();
    for (n, t) in files {
        std::fs::write(d.join(n), t).unwrap();
    }
    d
}

/// Fault 18: one bad template must not take the others with it.
#[test]
fn fault_18_one_bad_template_costs_one_step() {
    let p = Place::new();
    let d = write(
        &p,
        &[
            ("000_a.sh.tpl", "echo {{ .cri }}\n"),
            ("010_user.sh.tpl", "echo {{ nosuch }}\n"),
            ("020_c.sh", "echo {{ not a template }}\n"),
            ("README.md", "ignored"),
        ],
    );
    let all = templates(&d).unwrap();
    let r = render(&GoTemplates::default(), &all, &conformance_context());
    assert_eq!(r["000_a.sh"].as_deref().unwrap(), "echo ContainerdV2\n");
    assert_eq!(r["020_c.sh"].as_deref().unwrap(), "echo {{ not a template }}\n");
    let e = r["010_user.sh"].as_ref().unwrap_err();
    assert_eq!(
        e.to_string(),
        "010_user.sh.tpl:1: function \"nosuch\" is not defined"
    );
    let b = to_bundle(&r, inputs_hash(&all, &conformance_context()), "worker").unwrap();
    assert_eq!(b.manifest.steps.len(), 2);
}

#[test]
fn rendering_is_deterministic_and_lint_finds_all_faults_at_once() {
    let p = Place::new();
    let d = write(
        &p,
        &[
            (
                "000_a.sh.tpl",
                "{{ range $k, $v := .images.registrypackages }}{{ $k }}{{ end }}\n",
            ),
            ("001_b.sh.tpl", ":\n"),
        ],
    );
    let all = templates(&d).unwrap();
    let c = conformance_context();
    let one = to_bundle(
        &render(&GoTemplates::default(), &all, &c),
        inputs_hash(&all, &c),
        "g",
    )
    .unwrap();
    for _ in 0..10 {
        let again = to_bundle(
            &render(&GoTemplates::default(), &all, &c),
            inputs_hash(&all, &c),
            "g",
        )
        .unwrap();
        assert_eq!(again, one);
    }
    let faults = GoTemplates::default()
        .lint("x", "{{ nosuch }}\n{{ $y }}\n{{ template \"t\" }}")
        .unwrap_err();
    let lines: Vec<usize> = faults.iter().map(|f| f.line).collect();
    assert_eq!(lines, [1, 2, 3]);
}

#[test]
fn two_files_for_one_step_are_an_error() {
    let p = Place::new();
    let d = write(&p, &[("000_a.sh.tpl", ":"), ("000_a.sh", ":")]);
    assert!(
        templates(&d)
            .unwrap_err()
            .message
            .contains("become the same step 000_a.sh")
    );
}

#[test]
fn files_get_is_empty_for_absent_files_and_comments_trim_as_in_go() {
    let mut e = GoTemplates::default();
    e.files.insert("a.txt".into(), "content".into());
    let c = conformance_context();
    let text = "[{{ .Files.Get \"a.txt\" }}][{{ $.Files.Get \"b.txt\" }}]\n{{- /* c */}}\n x";
    assert_eq!(e.render("x", text, &c).unwrap(), "[content][]\n x");
}

#[test]
fn explain_names_steps_lines_and_inputs() {
    let old = crate::testing::text_bundle(&[("000_a.sh", "a\nb\nc\n"), ("010_b.sh", ":\n")]);
    let new = crate::testing::text_bundle(&[("000_a.sh", "a\nB\nc\n"), ("020_c.sh", ":\n")]);
    let t = explain::bundles(&old, &new);
    for part in [
        "~ 000_a.sh",
        "-   2  b",
        "+   2  B",
        "- 010_b.sh: removed",
        "+ 020_c.sh: added",
    ] {
        assert!(t.contains(part), "{part} in {t}");
    }
    assert!(!t.contains("  1  a"));
    assert!(explain::bundles(&old, &old).contains("the content is the same"));
    let a = serde_json::json!({"x": {"y": 1, "z": 2}, "k": 1});
    let b = serde_json::json!({"x": {"y": 2}, "n": 1, "k": 1});
    assert_eq!(
        explain::contexts(&a, &b),
        [".n: added", ".x.y: changed", ".x.z: removed"]
    );
}
