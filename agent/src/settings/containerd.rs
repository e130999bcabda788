//! PURE: container.containerd, containerd's configuration file in TOML.

mod text;

use super::in_place::Format;
use super::{Item, Op, Verdict};
use serde_json::Value;

const TOML: Format = Format {
    parse,
    apply: text::apply,
    value: |i| match i.op {
        Op::Set => possible(&i.value),
        Op::Delete => Ok(()),
    },
    root: |_| Ok(()),
    obstacle: "a notation there that is not understood",
};

/// Applies entries to the file's text, in order.
pub(super) fn edit(old: &str, items: &[&Item]) -> (String, Vec<Verdict>) {
    let start = if old.trim().is_empty() {
        format!("{old}{}", version_line(items))
    } else {
        old.to_owned()
    };
    TOML.edit(old, start, items)
}

/// A new file must say which version its plugin names are of: without that containerd takes it for version 1.
fn version_line(items: &[&Item]) -> &'static str {
    let names = |n: &str| items.iter().any(|i| i.op == Op::Set && i.key.contains(n));
    if items.iter().any(|i| i.key == "version") {
        ""
    } else if names("io.containerd.cri.v1") {
        "version = 3\n"
    } else if names("io.containerd.") {
        "version = 2\n"
    } else {
        ""
    }
}

/// The tree of a file.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    toml::from_str(text).map_err(|e| format!("the file is not valid TOML: {}", e.message()))
}

/// What TOML can hold.
fn possible(v: &Value) -> Result<(), String> {
    match v {
        Value::Null => Err("TOML has no null; expected a string, a number, a boolean or a list".into()),
        Value::Object(_) => Err("a map is not accepted; name each key by its own path".into()),
        Value::Array(a) => a.iter().try_for_each(possible),
        Value::Number(n) if n.is_u64() && n.as_i64().is_none() => Err(format!(
            "{n} is above the largest whole number of TOML, {}",
            i64::MAX
        )),
        Value::Number(_) | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}
