//! PURE: values as YAML text.

use serde_json::Value;

/// Words that some YAML reader takes for something else than a string.
const WORDS: [&str; 13] = [
    "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity", "nil",
];

/// A string as a block scalar key or value: bare where every YAML reader takes it for that string, else in double quotes.
pub(super) fn string(s: &str) -> String {
    let mut c = s.chars();
    let bare = c
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '/' || c == '_')
        && c.all(|c| c.is_ascii_alphanumeric() || "/_.-+@".contains(c))
        && !WORDS.contains(&s.to_ascii_lowercase().as_str());
    if bare { s.to_owned() } else { quoted(s) }
}

/// A string in double quotes, as JSON and YAML write it alike.
fn quoted(s: &str) -> String {
    // The one character that JSON leaves and YAML does not allow.
    Value::from(s).to_string().replace('\u{7f}', "\\u007f")
}

/// A value on one line; collections as in JSON, which is YAML too.
pub(super) fn inline(v: &Value) -> String {
    match v {
        Value::String(s) => string(s),
        other => flow(other),
    }
}

/// A value inside a flow collection.
pub(super) fn flow(v: &Value) -> String {
    match v {
        Value::String(s) => quoted(s),
        Value::Array(a) => format!("[{}]", a.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(m) => {
            let list: Vec<String> = m
                .iter()
                .map(|(k, v)| format!("{}: {}", quoted(k), flow(v)))
                .collect();
            format!("{{{}}}", list.join(", "))
        }
        other => other.to_string(),
    }
}

/// Whether a value goes onto lines of its own.
pub(super) fn is_block(v: &Value) -> bool {
    match v {
        Value::Array(a) => !a.is_empty(),
        Value::Object(m) => !m.is_empty(),
        _ => false,
    }
}

/// `key: value` with everything below it, each line ended.
pub(super) fn entry(out: &mut String, indent: usize, key: &str, v: &Value, ending: &str) {
    let pad = " ".repeat(indent);
    if is_block(v) {
        out.push_str(&format!("{pad}{}:{ending}", string(key)));
        below(out, indent, v, ending);
    } else {
        out.push_str(&format!("{pad}{}: {}{ending}", string(key), inline(v)));
    }
}

/// The lines of a collection below a key that stands at `indent`.
pub(super) fn below(out: &mut String, indent: usize, v: &Value, ending: &str) {
    match v {
        Value::Object(m) => {
            for (k, v) in m {
                entry(out, indent + 2, k, v, ending);
            }
        }
        Value::Array(a) => {
            for item in a {
                out.push_str(&format!("{}- {}{ending}", " ".repeat(indent), inline(item)));
            }
        }
        _ => {}
    }
}
