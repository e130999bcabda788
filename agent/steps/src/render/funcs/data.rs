//! Data in and out of text: JSON, YAML, TOML.

use super::{MANY, Out, Row, arg, str_arg, string};
use crate::render::{format, value};
use gotmpl::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

pub(super) const ROWS: &[Row] = &[
    ("toJson", 1, 1, |a| Ok(string(format::json(arg(a, 0))))),
    ("toRawJson", 1, 1, |a| Ok(string(format::raw_json(arg(a, 0))))),
    ("fromJson", 1, 1, |a| Ok(parsed(str_arg(a, 0)?))),
    ("fromJsonArray", 1, 1, |a| Ok(parsed(str_arg(a, 0)?))),
    ("toYaml", 1, 1, |a| {
        let mut out = String::new();
        yaml(&value::to_json(arg(a, 0)), 0, &mut out);
        Ok(string(out.trim_end_matches('\n')))
    }),
    ("fromYaml", 1, 1, |a| from_yaml(str_arg(a, 0)?)),
    ("fromYamlArray", 1, 1, |a| from_yaml(str_arg(a, 0)?)),
    ("toToml", 1, 1, |a| toml(&value::to_json(arg(a, 0))).map(string)),
    ("include", 1, MANY, |_| Ok(string(""))),
    ("lookup", 0, MANY, |_| Ok(Value::Map(Arc::new(BTreeMap::new())))),
];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).map_or(Value::Nil, |v| value::from_json(&v))
}

fn from_yaml(text: &str) -> Out {
    let v = value::yaml(text).map_err(|e| format!("the text is not YAML: {e}"))?;
    Ok(value::from_json(&v))
}

/// YAML as Go's yaml.v3 writes it through JSON: sorted keys, two blanks, lists at the level of their key.
fn yaml(v: &serde_json::Value, level: usize, out: &mut String) {
    let pad = "  ".repeat(level);
    match v {
        serde_json::Value::Object(m) if !m.is_empty() => {
            let sorted: BTreeMap<&String, &serde_json::Value> = m.iter().collect();
            for (k, v) in sorted {
                let _ = write!(out, "{pad}{}:", scalar(k));
                nested(v, level, out);
            }
        }
        serde_json::Value::Array(a) if !a.is_empty() => {
            for v in a {
                let _ = write!(out, "{pad}-");
                match v {
                    serde_json::Value::Object(m) if !m.is_empty() => {
                        let mut inner = String::new();
                        yaml(v, level + 1, &mut inner);
                        let _ = write!(out, " {}", inner.trim_start());
                    }
                    serde_json::Value::Array(l) if !l.is_empty() => {
                        let mut inner = String::new();
                        yaml(v, level + 1, &mut inner);
                        let _ = write!(out, " {}", inner.trim_start());
                    }
                    other => flat(other, level, out),
                }
            }
        }
        other => {
            let _ = writeln!(out, "{pad}{}", one(other));
        }
    }
}

fn nested(v: &serde_json::Value, level: usize, out: &mut String) {
    match v {
        serde_json::Value::Object(m) if !m.is_empty() => {
            out.push('\n');
            yaml(v, level + 1, out);
        }
        serde_json::Value::Array(a) if !a.is_empty() => {
            out.push('\n');
            yaml(v, level, out);
        }
        other => flat(other, level, out),
    }
}

/// A scalar after its key; text of several lines as a block.
fn flat(v: &serde_json::Value, level: usize, out: &mut String) {
    if let serde_json::Value::String(s) = v
        && s.contains('\n')
        && !s.trim().is_empty()
    {
        let keep = match (s.ends_with('\n'), s.ends_with("\n\n")) {
            (false, _) => "-",
            (true, false) => "",
            (true, true) => "+",
        };
        let _ = writeln!(out, " |{keep}");
        let pad = "  ".repeat(level + 1);
        for l in s.strip_suffix('\n').unwrap_or(s).split('\n') {
            if l.is_empty() {
                out.push('\n');
            } else {
                let _ = writeln!(out, "{pad}{l}");
            }
        }
        return;
    }
    let _ = writeln!(out, " {}", one(v));
}

fn one(v: &serde_json::Value) -> String {
    match v {
        serde_json::Value::String(s) => scalar(s),
        serde_json::Value::Array(_) => "[]".to_owned(),
        serde_json::Value::Object(_) => "{}".to_owned(),
        other => other.to_string(),
    }
}

/// Plain where YAML reads it back as the same text, else quoted.
fn scalar(s: &str) -> String {
    let special = s.is_empty()
        || s.starts_with(|c: char| "-?:,[]{}#&*!|>'\"%@` ".contains(c))
        || s.ends_with([' ', ':'])
        || s.contains(": ")
        || s.contains(" #")
        || s.parse::<f64>().is_ok()
        || matches!(
            s.to_lowercase().as_str(),
            "true" | "false" | "null" | "~" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if s.chars().any(char::is_control) {
        return format::quote(s);
    }
    if !special || (s.starts_with('-') && s.len() > 1 && !s.starts_with("- ") && s.parse::<f64>().is_err()) {
        return s.to_owned();
    }
    if s.contains('\'') || s.is_empty() || s.parse::<f64>().is_ok() || s.chars().all(char::is_alphabetic) {
        return format::quote(s);
    }
    format!("'{s}'")
}

/// TOML of a map: plain keys first, then tables.
fn toml(v: &serde_json::Value) -> Result<String, String> {
    let serde_json::Value::Object(m) = v else {
        return Err("toToml: expected a map".to_owned());
    };
    let mut out = String::new();
    table(m, "", &mut out)?;
    Ok(out)
}

fn table(m: &serde_json::Map<String, serde_json::Value>, path: &str, out: &mut String) -> Result<(), String> {
    let sorted: BTreeMap<&String, &serde_json::Value> = m.iter().collect();
    for (k, v) in sorted.iter().filter(|(_, v)| !v.is_object() && !v.is_null()) {
        let _ = writeln!(out, "{} = {}", key(k), toml_value(v)?);
    }
    for (k, v) in sorted {
        if let serde_json::Value::Object(inner) = v {
            let at = if path.is_empty() {
                key(k)
            } else {
                format!("{path}.{}", key(k))
            };
            if !out.is_empty() {
                out.push('\n');
            }
            let _ = writeln!(out, "[{at}]");
            table(inner, &at, out)?;
        }
    }
    Ok(())
}

fn key(k: &str) -> String {
    if !k.is_empty()
        && k.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    {
        k.to_owned()
    } else {
        format::quote(k)
    }
}

fn toml_value(v: &serde_json::Value) -> Result<String, String> {
    Ok(match v {
        serde_json::Value::String(s) => format::quote(s),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => v.to_string(),
        serde_json::Value::Array(a) => {
            let parts: Result<Vec<String>, String> = a.iter().map(toml_value).collect();
            format!("[{}]", parts?.join(", "))
        }
        serde_json::Value::Object(m) => {
            let parts: Result<Vec<String>, String> = m
                .iter()
                .map(|(k, v)| Ok(format!("{} = {}", key(k), toml_value(v)?)))
                .collect();
            format!("{{{}}}", parts?.join(", "))
        }
        serde_json::Value::Null => return Err("toToml: a list holds null".to_owned()),
    })
}
