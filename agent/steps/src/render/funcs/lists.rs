//! Functions over lists and maps.

use super::{MANY, Out, Row, arg, int_arg, list_arg, map_arg, str_arg, string};
use crate::render::format;
use gotmpl::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest list that a function makes.
const MAX_LIST: usize = 100_000;

pub(super) const ROWS: &[Row] = &[
    ("default", 1, 2, |a| {
        Ok(if arg(a, 1).is_truthy() {
            arg(a, 1).clone()
        } else {
            arg(a, 0).clone()
        })
    }),
    ("empty", 1, 1, |a| Ok(Value::Bool(!arg(a, 0).is_truthy()))),
    ("coalesce", 0, MANY, |a| {
        Ok(a.iter().find(|v| v.is_truthy()).cloned().unwrap_or(Value::Nil))
    }),
    ("ternary", 3, 3, |a| match arg(a, 2) {
        Value::Bool(b) => Ok(arg(a, usize::from(!*b)).clone()),
        other => Err(format!(
            "the condition is a {}, expected a bool",
            other.type_name()
        )),
    }),
    ("list", 0, MANY, |a| Ok(Value::List(a.into()))),
    ("tuple", 0, MANY, |a| Ok(Value::List(a.into()))),
    ("append", 2, 2, |a| {
        Ok(Value::List(
            list_arg(a, 0)?.iter().chain(a.get(1)).cloned().collect(),
        ))
    }),
    ("prepend", 2, 2, |a| {
        Ok(Value::List(
            a.get(1).into_iter().chain(list_arg(a, 0)?).cloned().collect(),
        ))
    }),
    ("concat", 0, MANY, |a| {
        let mut all = Vec::new();
        for i in 0..a.len() {
            all.extend_from_slice(list_arg(a, i)?);
            if all.len() > MAX_LIST {
                return Err(format!("the list grows beyond {MAX_LIST} elements"));
            }
        }
        Ok(Value::List(all.into()))
    }),
    ("has", 2, 2, |a| match arg(a, 1) {
        Value::Nil => Ok(Value::Bool(false)),
        _ => Ok(Value::Bool(list_arg(a, 1)?.contains(arg(a, 0)))),
    }),
    ("without", 1, MANY, |a| {
        let drop = a.get(1..).unwrap_or_default();
        Ok(Value::List(
            list_arg(a, 0)?
                .iter()
                .filter(|v| !drop.contains(v))
                .cloned()
                .collect(),
        ))
    }),
    ("uniq", 1, 1, |a| {
        let mut out: Vec<Value> = Vec::new();
        for v in list_arg(a, 0)? {
            if !out.contains(v) {
                out.push(v.clone());
            }
        }
        Ok(Value::List(out.into()))
    }),
    ("compact", 1, 1, |a| {
        Ok(Value::List(
            list_arg(a, 0)?
                .iter()
                .filter(|v| v.is_truthy())
                .cloned()
                .collect(),
        ))
    }),
    ("reverse", 1, 1, |a| {
        Ok(Value::List(list_arg(a, 0)?.iter().rev().cloned().collect()))
    }),
    ("first", 1, 1, |a| {
        Ok(list_arg(a, 0)?.first().cloned().unwrap_or(Value::Nil))
    }),
    ("last", 1, 1, |a| {
        Ok(list_arg(a, 0)?.last().cloned().unwrap_or(Value::Nil))
    }),
    ("rest", 1, 1, |a| {
        Ok(Value::List(list_arg(a, 0)?.iter().skip(1).cloned().collect()))
    }),
    ("initial", 1, 1, |a| {
        let l = list_arg(a, 0)?;
        Ok(Value::List(
            l.iter().take(l.len().saturating_sub(1)).cloned().collect(),
        ))
    }),
    ("sortAlpha", 1, 1, |a| {
        let mut all: Vec<String> = match arg(a, 0) {
            Value::List(l) => l.iter().map(format::plain).collect(),
            other => vec![format::plain(other)],
        };
        all.sort();
        Ok(Value::List(all.into_iter().map(string).collect()))
    }),
    ("until", 1, 1, |a| {
        let n = int_arg(a, 0).max(0);
        if n > MAX_LIST as i64 {
            return Err(format!("a list of {n} elements, at most {MAX_LIST} are made"));
        }
        Ok(Value::List((0..n).map(Value::Int).collect()))
    }),
    ("dict", 0, MANY, |a| {
        let mut m = BTreeMap::new();
        for pair in a.chunks(2) {
            let key = match arg(pair, 0) {
                Value::String(s) => s.clone(),
                other => Arc::from(format::plain(other)),
            };
            m.insert(key, pair.get(1).cloned().unwrap_or_else(|| string("")));
        }
        Ok(Value::Map(Arc::new(m)))
    }),
    ("get", 2, 2, |a| {
        Ok(map_arg(a, 0)?
            .get(str_arg(a, 1)?)
            .cloned()
            .unwrap_or_else(|| string("")))
    }),
    ("set", 3, 3, |a| {
        let mut m = map_arg(a, 0)?.clone();
        m.insert(Arc::from(str_arg(a, 1)?), arg(a, 2).clone());
        Ok(Value::Map(Arc::new(m)))
    }),
    ("unset", 2, 2, |a| {
        let mut m = map_arg(a, 0)?.clone();
        m.remove(str_arg(a, 1)?);
        Ok(Value::Map(Arc::new(m)))
    }),
    ("hasKey", 2, 2, |a| {
        Ok(Value::Bool(map_arg(a, 0)?.contains_key(str_arg(a, 1)?)))
    }),
    ("keys", 0, MANY, |a| {
        // Go gives them in any order; sorted is one of these and always the same.
        let mut all = Vec::new();
        for i in 0..a.len() {
            all.extend(map_arg(a, i)?.keys().map(|k| Value::String(k.clone())));
        }
        Ok(Value::List(all.into()))
    }),
    ("values", 1, 1, |a| {
        Ok(Value::List(map_arg(a, 0)?.values().cloned().collect()))
    }),
    ("pick", 1, MANY, |a| Ok(filtered(map_arg(a, 0)?, a, true))),
    ("omit", 1, MANY, |a| Ok(filtered(map_arg(a, 0)?, a, false))),
    ("merge", 1, MANY, |a| {
        let mut m = map_arg(a, 0)?.clone();
        for i in 1..a.len() {
            merge(&mut m, map_arg(a, i)?);
        }
        Ok(Value::Map(Arc::new(m)))
    }),
    ("dig", 3, MANY, dig),
];

fn filtered(m: &BTreeMap<Arc<str>, Value>, args: &[Value], keep: bool) -> Value {
    let named = |k: &str| args.iter().skip(1).any(|a| a.as_str() == Some(k));
    Value::Map(Arc::new(
        m.iter()
            .filter(|(k, _)| named(k) == keep)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    ))
}

/// What the first has stays; maps are merged, empty values are filled.
fn merge(to: &mut BTreeMap<Arc<str>, Value>, from: &BTreeMap<Arc<str>, Value>) {
    for (k, v) in from {
        match (to.get(k), v) {
            (Some(Value::Map(a)), Value::Map(b)) => {
                let mut inner = a.as_ref().clone();
                merge(&mut inner, b);
                to.insert(k.clone(), Value::Map(Arc::new(inner)));
            }
            (Some(have), _) if have.is_truthy() => {}
            _ => {
                to.insert(k.clone(), v.clone());
            }
        }
    }
}

/// `dig KEY… DEFAULT MAP`.
fn dig(a: &[Value]) -> Out {
    let (Some(map), Some(default)) = (a.last(), a.len().checked_sub(2).and_then(|i| a.get(i))) else {
        return Err("expected keys, a default and a map".to_owned());
    };
    let mut at = map.clone();
    for key in a.iter().take(a.len() - 2) {
        let k = key
            .as_str()
            .ok_or_else(|| format!("{} is not a key", format::plain(key)))?;
        at = match &at {
            Value::Map(m) => match m.get(k) {
                Some(v) => v.clone(),
                None => return Ok(default.clone()),
            },
            other => {
                return Err(format!(
                    "{k}: its parent is a {}, expected a map",
                    other.type_name()
                ));
            }
        };
    }
    Ok(at)
}
