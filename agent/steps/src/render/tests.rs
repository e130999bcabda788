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
    context(
        "context.json",
        include_str!("../../../../tests/conformance/context.json"),
    )
    .unwrap()
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
            Ok(got) => !want.error && got.text == want.output,
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
        let e = context("c.yaml", text).unwrap_err();
        assert!(
            e.message.contains(found) && e.message.starts_with("c.yaml: "),
            "{text}: {e}"
        );
    }
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert!(context("c", &format!("{{\"a\": {deep}}}")).is_err());
    assert_eq!(context("c", "a: 1\nb: {c: x}").unwrap()["b"]["c"], "x");
}

#[test]
fn a_context_that_cannot_be_read_is_told_with_its_place_and_in_plain_words() {
    let mut out = Vec::new();
    for (file, text) in [
        ("c.yaml", "a: 1\nb: [1, 2\nc: 3\n"),
        ("c.yaml", "a: 1\n\tb: 2\n"),
        ("c.yaml", "a: b: c\n"),
        ("c.yaml", "a: 1\na: 2\n"),
        ("c.yaml", "a: \"x\n"),
        ("c.yaml", "a: *x\n"),
        ("c.yaml", "a:\n  b: 1\n c: 2\n"),
        ("c.yaml", "a: 1\nb\n"),
        ("c.yaml", "a: {b: 1\n"),
        ("c.yaml", "a: 1\n---\nb: 2\n"),
        ("c.json", "{\"a\": 1,\n \"b\" 2}"),
        ("c.json", "{\"a\": 1,\n \"b\": 2"),
    ] {
        let e = context(file, text).unwrap_err();
        assert_eq!(e.code, os_proto::codes::Code::InvalidArgument);
        for theirs in [
            "<input>", "scalar", "mapping", "sequence", "EOF", "policy", "Options", "-->",
        ] {
            assert!(!e.message.contains(theirs), "{text:?}: {e}");
        }
        assert!(!e.message.contains('\n'), "{e}");
        out.push(e.message);
    }
    let want = [
        "c.yaml:3:2: not YAML: expected \",\" or a closing bracket",
        "c.yaml:1:4: not YAML: in a text without quotes, found a tab",
        "c.yaml:1:5: not YAML: expected text without",
        "c.yaml:2:1: not YAML: expected each key once, found it twice: \"a\"",
        "c.yaml:1:4: not YAML: expected a closing quote, found the end",
        "c.yaml:1:4: not YAML: expected an anchor of that name",
        "c.yaml:3:2: not YAML: expected a key that is indented like its neighbours",
        "c.yaml:2:1: not YAML: expected \":\" after the key",
        "c.yaml:1:4: not YAML: expected a closing bracket, found the end: it is open since '{'",
        "c.yaml:3:1: not YAML: expected one document, found a second one",
        "c.json:2:6: expected \":\"",
        "c.json:2:7: expected more, found the end: something is not closed",
    ];
    assert_eq!(out.len(), want.len());
    for (got, want) in out.iter().zip(want) {
        assert!(got.starts_with(want), "{got}: {want}");
    }
}

/// A value that is not there is no error, as in Go, but is named: file, line, and what the template asked for.
#[test]
fn what_became_no_value_is_named() {
    let c = conformance_context();
    let text = "{{ .cri }}\nx={{ .missing.deep }} y={{ .nothing }}\n{{ range .nodeUsers }}\n{{ .spec.shell }}{{ end }}\n\
                {{ $u := index .nodeUsers 0 }}{{ $u.shell }}{{ .missing | toString }}{{ printf \"%d\" .million }}\n\
                {{ .missing | default \"fine\" }}{{ if .missing }}{{ end }}{{ .missing | quote }}100%!\n\
                {{ tpl \"{{ .inmost }}\" . }}\n";
    let out = GoTemplates::default().render("x.sh.tpl", text, &c).unwrap();
    assert!(out.text.contains("x=<no value> y=<no value>"), "{}", out.text);
    let said: Vec<String> = out.warnings.iter().map(ToString::to_string).collect();
    let want = [
        "x.sh.tpl:2: .missing.deep is missing in the context, or null, and became \"<no value>\"",
        "x.sh.tpl:2: .nothing is",
        "x.sh.tpl:4: .spec.shell is",
        "x.sh.tpl:5: $u.shell is",
        "x.sh.tpl:5: .missing | toString is missing in the context, or null, and became \"<nil>\"",
        "x.sh.tpl:5: printf \"%d\" .million",
        "x.sh.tpl (tpl):1: .inmost is",
    ];
    assert_eq!(said.len(), want.len(), "{said:#?}");
    for (s, w) in said.iter().zip(want) {
        assert!(s.starts_with(w), "{s}: {w}");
    }
    // A loop says it once, and a template that says it of everything has an end.
    let many = "{{ range until 1000 }}{{ $.missing }}{{ end }}";
    assert_eq!(
        GoTemplates::default()
            .render("x", many, &c)
            .unwrap()
            .warnings
            .len(),
        1
    );
    let b = [Template {
        file: "000_a.sh.tpl".into(),
        step: "000_a.sh".into(),
        text: "echo {{ .missing }}\n".into(),
    }];
    let r = render(&GoTemplates::default(), &b, &c);
    assert_eq!(faults(&r).1.len(), 1);
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
    assert_eq!(r["000_a.sh"].as_ref().unwrap().text, "echo ContainerdV2\n");
    assert_eq!(
        r["020_c.sh"].as_ref().unwrap().text,
        "echo {{ not a template }}\n"
    );
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
    assert_eq!(e.render("x", text, &c).unwrap().text, "[content][]\n x");
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
