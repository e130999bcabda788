//! PURE: kubernetes.kubelet, kubelet's configuration file in YAML (or JSON).

mod emit;
mod nodes;
mod text;

use super::in_place::Format;
use super::{Item, Verdict};
use serde_json::Value;

const YAML: Format = Format {
    parse,
    apply: text::apply,
    value: |_| Ok(()),
    root: |tree| match tree {
        Value::Object(_) | Value::Null => Ok(()),
        _ => Err("the file holds no map".into()),
    },
    obstacle: "anchors, tags or another notation there",
};

/// Applies entries to the file's text, in order.
pub(super) fn edit(old: &str, items: &[&Item]) -> (String, Vec<Verdict>) {
    YAML.edit(old, old.to_owned(), items)
}

/// The tree of a file; an empty file is null.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if nodes::root(text)?.is_none() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|e| format!("the file is not valid YAML: {}", e.without_snippet()))
}
