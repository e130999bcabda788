use super::*;

fn names(text: &str) -> Vec<String> {
    calls(text).into_iter().map(|(_, n)| n).collect()
}

#[test]
fn calls_are_found_where_commands_begin() {
    for text in [
        "bb-x a b",
        "  if bb-x; then :; fi",
        "! bb-x && :",
        "true && bb-x",
        "a=1 bb-x",
        "echo $(bb-x)",
        "echo \"text $(bb-x y) text\"",
        "echo `bb-x`",
        "case $a in\n  b) bb-x ;;\nesac",
        "cat <<EOF\nname: $(bb-x)\nEOF\n",
        "f() {\n  bb-x\n}",
        "(bb-x)",
        "cat file | bb-x - <<'EOF'\nbb-no\nEOF",
        "x=${y:-$(bb-x)}",
        "while bb-x; do :; done < <(true)",
        "cmd 2>&1 | bb-x",
    ] {
        assert_eq!(names(text), ["bb-x"], "{text}");
    }
}

#[test]
fn other_places_are_not_calls() {
    for text in [
        "# bb-x",
        "echo bb-x",
        "echo 'bb-x; bb-x'",
        "echo \"bb-x\"",
        "cat > /x <<'EOF'\nbb-x\n$(bb-x)\nEOF\n",
        "cat <<-EOF\n\tbb-x\n\tEOF\n",
        "a=(\n  bb-x\n  bb-y\n)",
        "bb-x() { :; }",
        "echo $((1 + 2)) bb-x",
        "cp a bb-x",
        "echo a > bb-x",
        "x=bb-x",
        "echo $(true) bb-x",
    ] {
        assert!(names(text).is_empty(), "{text}: {:?}", names(text));
    }
}

#[test]
fn lines_are_named_and_own_functions_are_known() {
    let text = "bb-own() { :; }\nbb-own\n\nbb-flga-set reboot\nbb-flga-set again\n";
    assert_eq!(
        unknown(text, crate::library::knows),
        [(4, "bb-flga-set".to_owned())]
    );
    assert_eq!(calls("a\nb\n\"x\ny\"\nbb-x"), [(5, "bb-x".to_owned())]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_scanned_to_its_end(text in "[a-z$(){}'\"`<\\\\>|&;#= \n-]{0,80}") {
        let _ = calls(&text);
    }
}
