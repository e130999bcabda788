//! Contexts: YAML or JSON → JSON → the engine's values. Every number is a float, as Go's JSON makes it.

use crate::error::{Result, StepsError};
use gotmpl::Value;
use os_proto::codes::Code;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Deepest nesting of a context.
const MAX_DEPTH: usize = 64;

/// Reads a context; JSON is YAML.
///
/// # Errors
/// `InvalidArgument` when it is not an object, nested too deeply, or not YAML.
pub fn context(text: &str) -> Result<serde_json::Value> {
    let fail = |m: String| StepsError::new(Code::InvalidArgument, format!("context: {m}"));
    let v: serde_json::Value = serde_json::from_str(text)
        .or_else(|_| yaml(text))
        .map_err(|e| fail(format!("not YAML: {e}")))?;
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

/// YAML as Go reads it: `y`, `on` and the like are text.
///
/// # Errors
/// A message with the place.
pub(super) fn yaml(text: &str) -> std::result::Result<serde_json::Value, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| e.to_string())
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
