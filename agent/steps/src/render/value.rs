//! Contexts: YAML or JSON → JSON → the engine's values. Every number is a float, as Go's JSON makes it.

use crate::error::{Result, StepsError};
use gotmpl::Value;
use os_proto::codes::Code;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Deepest nesting of a context.
const MAX_DEPTH: usize = 64;

/// Reads a context, YAML or JSON, that comes from `file`.
///
/// # Errors
/// `InvalidArgument` with file, line and column when it is not an object, nested too deeply, or neither YAML nor JSON.
pub fn context(file: &str, text: &str) -> Result<serde_json::Value> {
    let fail = |m: String| StepsError::new(Code::InvalidArgument, format!("{file}: {m}"));
    let v: serde_json::Value = match serde_json::from_str(text) {
        Ok(v) => v,
        Err(json) => yaml(text).map_err(|wrong| {
            // What begins like an object of JSON was meant to be JSON; YAML would complain at another place.
            let message = if file.ends_with(".json") || text.trim_start().starts_with('{') {
                os_proto::json::fault(file, &json)
            } else {
                wrong.at(file)
            };
            StepsError::new(Code::InvalidArgument, message)
        })?,
    };
    if !v.is_object() {
        let found = match &v {
            serde_json::Value::Null => "nothing",
            serde_json::Value::Bool(_) => "a boolean",
            serde_json::Value::Number(_) => "a number",
            serde_json::Value::String(_) => "a string",
            serde_json::Value::Array(_) => "a list",
            serde_json::Value::Object(_) => "an object",
        };
        return Err(fail(format!("expected an object, found {found}")));
    }
    if depth(&v) > MAX_DEPTH {
        return Err(fail(format!("nested more than {MAX_DEPTH} deep")));
    }
    Ok(v)
}

/// Where and why a text is not YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotYaml {
    /// Line and column from 1, where they are known.
    place: Option<(u64, u64)>,
    /// What was expected.
    message: String,
}

impl NotYaml {
    /// With the file that it is in.
    pub(super) fn at(&self, file: &str) -> String {
        match self.place {
            Some((line, column)) => format!("{file}:{line}:{column}: not YAML: {}", self.message),
            None => format!("{file}: not YAML: {}", self.message),
        }
    }
}

impl std::fmt::Display for NotYaml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// YAML as Go reads it: `y`, `on` and the like are text.
///
/// # Errors
/// With the place.
pub(super) fn yaml(text: &str) -> std::result::Result<serde_json::Value, NotYaml> {
    use serde_saphyr::MessageFormatter;
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let e = e.without_snippet();
        NotYaml {
            place: e.location().map(|l| (l.line(), l.column())),
            message: in_our_words(&serde_saphyr::UserMessageFormatter.format_message(e)),
        }
    })
}

/// The reader's terms → what people call these things.
const WORDS: [(&str, &str); 26] = [
    (
        "illegal placement of ':' indicator",
        "expected \",\" or a closing bracket, found \":\": a bracket before it is not closed, or the text must be quoted",
    ),
    (
        "while parsing a block mapping, did not find expected key",
        "expected a key that is indented like its neighbours",
    ),
    (
        "only single YAML document expected but multiple found",
        "expected one document, found a second one",
    ),
    ("while scanning a plain scalar", "in a text without quotes"),
    (
        "mapping values are not allowed in this context",
        "expected text without \": \" or a key on a line of its own (text that holds \": \" must be quoted)",
    ),
    (
        "mapping keys are not allowed in this context",
        "expected a value, found a key: it is indented differently from its neighbours, or stands behind another value",
    ),
    (
        "block sequence entries are not allowed in this context",
        "expected a value, found a list item: it is indented differently from its neighbours, or stands behind its key",
    ),
    ("simple key expected ':'", "expected \":\" after the key"),
    (
        "simple key is no longer valid",
        "expected \":\" after the key, on the same line",
    ),
    ("tabs disallowed", "expected blanks, found a tab"),
    (
        "tab cannot be used as indentation",
        "expected blanks as indentation, found a tab",
    ),
    ("unclosed quote", "expected a closing quote, found the end"),
    (
        "unclosed bracket",
        "expected a closing bracket, found the end: it is open since",
    ),
    (
        "reference to unknown value",
        "expected an anchor of that name before this alias, found none",
    ),
    ("duplicate mapping key", "expected each key once, found it twice:"),
    (" is not allowed here", ""),
    ("unexpected EOF", "unexpected end"),
    ("unexpected eof", "unexpected end"),
    (", did not find expected", ": expected"),
    ("did not find expected", "expected"),
    ("flow sequence, expected", "[ ] list: expected"),
    ("flow sequence", "[ ] list"),
    ("flow mapping", "{ } map"),
    ("block mapping", "map"),
    ("block sequence", "list"),
    ("plain scalar", "text"),
];

/// Without the reader's terms and without control characters.
fn in_our_words(said: &str) -> String {
    let mut text: String = said
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    for (theirs, ours) in WORDS {
        text = text.replace(theirs, ours);
    }
    text.replace('`', "\"")
}

fn depth(v: &serde_json::Value) -> usize {
    match v {
        serde_json::Value::Array(a) => 1 + a.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(m) => 1 + m.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// JSON → the engine's value.
pub(super) fn from_json(v: &serde_json::Value) -> Value {
    match v {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => Value::Float(n.as_f64().unwrap_or(0.0)),
        serde_json::Value::String(s) => Value::String(Arc::from(s.as_str())),
        serde_json::Value::Array(a) => Value::List(a.iter().map(from_json).collect()),
        serde_json::Value::Object(m) => Value::Map(Arc::new(
            m.iter()
                .map(|(k, v)| (Arc::from(k.as_str()), from_json(v)))
                .collect::<BTreeMap<Arc<str>, Value>>(),
        )),
    }
}

/// The engine's value → JSON; functions become null.
pub(super) fn to_json(v: &Value) -> serde_json::Value {
    match v {
        Value::Bool(b) => (*b).into(),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Float(f) => float_json(*f),
        Value::String(s) => s.as_ref().into(),
        Value::List(l) => l.iter().map(to_json).collect(),
        Value::Map(m) => {
            serde_json::Value::Object(m.iter().map(|(k, v)| (k.to_string(), to_json(v))).collect())
        }
        _ => serde_json::Value::Null,
    }
}

/// Whole floats are written without a point, as Go does.
fn float_json(f: f64) -> serde_json::Value {
    #[allow(clippy::cast_possible_truncation)]
    let whole = f as i64;
    #[allow(clippy::cast_precision_loss)]
    if f.abs() < 1e15 && whole as f64 == f {
        return whole.into();
    }
    serde_json::Number::from_f64(f).map_or(serde_json::Value::Null, serde_json::Value::Number)
}

/// JSON with sorted keys, for hashes.
pub(super) fn canonical(v: &serde_json::Value) -> String {
    match v {
        serde_json::Value::Object(m) => {
            let sorted: BTreeMap<&String, &serde_json::Value> = m.iter().collect();
            let parts: Vec<String> = sorted
                .into_iter()
                .map(|(k, v)| format!("{}:{}", serde_json::Value::String(k.clone()), canonical(v)))
                .collect();
            format!("{{{}}}", parts.join(","))
        }
        serde_json::Value::Array(a) => {
            let parts: Vec<String> = a.iter().map(canonical).collect();
            format!("[{}]", parts.join(","))
        }
        other => other.to_string(),
    }
}
