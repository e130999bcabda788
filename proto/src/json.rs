//! What is wrong with JSON that people wrote, in their words: file, line, column, what was expected and what was found.

/// `FILE:LINE:COLUMN: expected …, found …` for an error of the JSON reader.
pub fn fault(file: &str, e: &serde_json::Error) -> String {
    let text = e.to_string();
    let place = format!(" at line {} column {}", e.line(), e.column());
    let said = translated(text.strip_suffix(&place).unwrap_or(&text));
    if e.line() == 0 {
        // The reader knows no place once it has read everything.
        format!("{file}: {said}")
    } else {
        format!("{file}:{}:{}: {said}", e.line(), e.column())
    }
}

fn translated(text: &str) -> String {
    let pair = |rest: &str| {
        rest.rsplit_once(", expected ")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    if let Some(key) = text.strip_prefix("missing field ") {
        return format!("expected the key {}, found none of that name", quoted(key));
    }
    if let Some(key) = text.strip_prefix("duplicate field ") {
        return format!("expected each key once, found {} twice", quoted(key));
    }
    for head in ["invalid type: ", "invalid value: "] {
        if let Some((found, want)) = text.strip_prefix(head).and_then(pair) {
            return format!("expected {}, found {}", kind(&want), value(&found));
        }
    }
    for (head, what) in [("unknown field ", "the unknown key "), ("unknown variant ", "")] {
        if let Some((found, want)) = text.strip_prefix(head).and_then(pair) {
            let want = want.trim_start_matches("one of ").replace('`', "");
            return format!("expected one of {want}, found {what}{}", quoted(&found));
        }
    }
    match text {
        t if t.starts_with("EOF while parsing") => {
            "expected more, found the end: something is not closed".into()
        }
        "expected value" => "expected a value".into(),
        "trailing characters" => "expected the end, found more text".into(),
        "trailing comma" => "expected another value after the comma, found none".into(),
        "key must be a string" => "expected a key in double quotes".into(),
        t => t.replace('`', "\""),
    }
}

/// A name that the reader put in backquotes.
fn quoted(name: &str) -> String {
    format!("{:?}", name.trim_matches('`'))
}

/// A type as the reader names it.
fn kind(name: &str) -> String {
    match name {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a map" => "an object",
        "a sequence" => "a list",
        n if n.starts_with("struct ") => "an object",
        n => n,
    }
    .to_owned()
}

/// A value as the reader shows it.
fn value(text: &str) -> String {
    match text {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" => "null".to_owned(),
        _ => text
            .replace("string ", "")
            .replace("integer ", "")
            .replace("floating point ", "")
            .replace("boolean ", "")
            .replace('`', ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Attributes, Manifest};

    fn of<T: serde::de::DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        fault("x.json", &serde_json::from_str::<T>(text).unwrap_err())
    }

    #[test]
    fn people_are_told_place_expectation_and_finding() {
        for (found, want) in [
            (
                of::<Manifest>("{}"),
                "x.json:1:2: expected the key \"schema\", found none of that name",
            ),
            (
                of::<Manifest>("{\n \"schema\": \"one\"}"),
                "x.json:2:16: expected a whole number, 0 or more, found \"one\"",
            ),
            (
                of::<Manifest>("{\"schema\": 1, \"steps\": {}}"),
                "x.json:1:23: expected a list, found an object",
            ),
            (
                of::<Manifest>("[\n"),
                "x.json:2:0: expected more, found the end: something is not closed",
            ),
            (
                of::<Manifest>("{\"schema\": 1,}"),
                "x.json:1:14: expected another value after the comma, found none",
            ),
            (
                of::<Manifest>("{\"schema\": 1 \"steps\"}"),
                "x.json:1:14: expected \",\" or \"}\"",
            ),
            (
                of::<Attributes>("{\"retires\": 3}"),
                "x.json:1:10: expected one of timeoutSec, retries, parallelGroup, onFailure, mayDisrupt, phase, \
                 found the unknown key \"retires\"",
            ),
            (
                of::<Attributes>("{\"phase\": \"early\"}"),
                "x.json:1:17: expected one of pre-approval, main, late, found \"early\"",
            ),
            (
                of::<Attributes>("{\"mayDisrupt\": 1}"),
                "x.json:1:16: expected a boolean, found 1",
            ),
            (
                of::<bool>("true x"),
                "x.json:1:6: expected the end, found more text",
            ),
        ] {
            assert_eq!(found, want);
        }
    }
}
