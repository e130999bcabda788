//! PURE: what an entry changes in a tree of maps, lists and scalars; the same for kubelet's YAML and containerd's TOML.

use super::{Op, keypath};
use serde_json::{Map, Value};

/// One change, to be made in the text as well.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Edit {
    /// The value at the path becomes this; missing maps are made.
    Set(Vec<String>, Value),
    /// These are added to the list at the path.
    Append(Vec<String>, Vec<Value>),
    /// The key is removed.
    Delete(Vec<String>),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Nothing, and why.
    Nothing(String),
    /// This.
    Do(Edit),
}

fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Decides what an entry changes.
///
/// # Errors
/// Why it cannot be.
pub(super) fn decide(tree: &Value, path: &[String], op: Op, value: &Value) -> Result<Decision, String> {
    let mut here = tree;
    for (i, part) in path.iter().enumerate() {
        let next = match here {
            Value::Object(m) => m.get(part),
            Value::Null => None,
            // Whatever lies below something that is no map does not exist: nothing to delete there.
            _ if op == Op::Delete => None,
            other => {
                return Err(format!(
                    "{} is {}, which cannot hold {part:?}",
                    keypath::show(path.get(..i).unwrap_or_default()),
                    kind(other)
                ));
            }
        };
        match next {
            Some(n) => here = n,
            None if op == Op::Delete => {
                return Ok(Decision::Nothing(format!(
                    "there is no {}",
                    keypath::show(path.get(..=i).unwrap_or_default())
                )));
            }
            None => return Ok(Decision::Do(Edit::Set(path.to_vec(), value.clone()))),
        }
    }
    if op == Op::Delete {
        return Ok(Decision::Do(Edit::Delete(path.to_vec())));
    }
    match (here, value) {
        (Value::Array(old), Value::Array(new)) => {
            let mut missing: Vec<Value> = Vec::new();
            for v in new {
                if !old.contains(v) && !missing.contains(v) {
                    missing.push(v.clone());
                }
            }
            if missing.is_empty() {
                Ok(Decision::Nothing(String::new()))
            } else {
                Ok(Decision::Do(Edit::Append(path.to_vec(), missing)))
            }
        }
        (Value::Array(_), other) => Err(format!(
            "{} is a list, to which a list can be added; found {}",
            keypath::show(path),
            kind(other)
        )),
        (old, new) if old == new => Ok(Decision::Nothing(String::new())),
        (Value::Object(_), Value::Object(_)) => Ok(Decision::Do(Edit::Set(path.to_vec(), value.clone()))),
        (Value::Object(_), other) => Err(format!("{} is a map; found {}", keypath::show(path), kind(other))),
        _ => Ok(Decision::Do(Edit::Set(path.to_vec(), value.clone()))),
    }
}

/// Makes a change in the tree.
pub(super) fn perform(tree: &mut Value, edit: &Edit) {
    match edit {
        Edit::Set(path, value) => {
            if let Some(v) = at(tree, path, true) {
                *v = value.clone();
            }
        }
        Edit::Append(path, items) => {
            if let Some(Value::Array(a)) = at(tree, path, false) {
                a.extend(items.iter().cloned());
            }
        }
        Edit::Delete(path) => {
            if let Some((last, above)) = path.split_last()
                && let Some(Value::Object(m)) = at(tree, above, false)
            {
                m.remove(last);
            }
        }
    }
}

fn at<'a>(tree: &'a mut Value, path: &[String], make: bool) -> Option<&'a mut Value> {
    let mut here = tree;
    for part in path {
        if make && here.is_null() {
            *here = Value::Object(Map::new());
        }
        let map = here.as_object_mut()?;
        here = if make {
            map.entry(part.clone()).or_insert(Value::Null)
        } else {
            map.get_mut(part)?
        };
    }
    Some(here)
}

/// `value` below the maps of `path`.
pub(super) fn nested(path: &[String], value: &Value) -> Value {
    path.iter().rev().fold(value.clone(), |inner, part| {
        Value::Object(Map::from_iter([(part.clone(), inner)]))
    })
}
