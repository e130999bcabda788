//! Functions over numbers and versions.

use super::{MANY, Out, Row, arg, float_arg, int_arg, str_arg, string};
use gotmpl::Value;

pub(super) const ROWS: &[Row] = &[
    ("int", 1, 1, |a| Ok(Value::Int(int_arg(a, 0)))),
    ("int64", 1, 1, |a| Ok(Value::Int(int_arg(a, 0)))),
    ("float64", 1, 1, |a| Ok(Value::Float(float_arg(a, 0)))),
    ("atoi", 1, 1, |a| {
        Ok(Value::Int(str_arg(a, 0)?.parse().unwrap_or(0)))
    }),
    ("add", 0, MANY, |a| {
        Ok(Value::Int(
            (0..a.len()).fold(0i64, |s, i| s.wrapping_add(int_arg(a, i))),
        ))
    }),
    ("add1", 1, 1, |a| Ok(Value::Int(int_arg(a, 0).wrapping_add(1)))),
    ("sub", 2, 2, |a| {
        Ok(Value::Int(int_arg(a, 0).wrapping_sub(int_arg(a, 1))))
    }),
    ("mul", 1, MANY, |a| {
        Ok(Value::Int(
            (0..a.len()).fold(1i64, |s, i| s.wrapping_mul(int_arg(a, i))),
        ))
    }),
    ("div", 2, 2, |a| divided(a, i64::checked_div)),
    ("mod", 2, 2, |a| divided(a, i64::checked_rem)),
    ("max", 1, MANY, |a| {
        Ok(Value::Int((0..a.len()).map(|i| int_arg(a, i)).max().unwrap_or(0)))
    }),
    ("min", 1, MANY, |a| {
        Ok(Value::Int((0..a.len()).map(|i| int_arg(a, i)).min().unwrap_or(0)))
    }),
    ("semverCompare", 2, 2, |a| {
        Ok(Value::Bool(satisfies(str_arg(a, 0)?, str_arg(a, 1)?)?))
    }),
    ("fail", 1, 1, |a| Err(str_arg(a, 0)?.to_owned())),
    ("required", 2, 2, |a| match arg(a, 1) {
        Value::Nil => Err(str_arg(a, 0)?.to_owned()),
        Value::String(s) if s.is_empty() => Err(str_arg(a, 0)?.to_owned()),
        v => Ok(v.clone()),
    }),
    ("kindIs", 2, 2, |a| {
        Ok(Value::Bool(str_arg(a, 0)? == kind(arg(a, 1))))
    }),
    ("kindOf", 1, 1, |a| Ok(string(kind(arg(a, 0))))),
];

fn divided(a: &[Value], f: fn(i64, i64) -> Option<i64>) -> Out {
    f(int_arg(a, 0), int_arg(a, 1))
        .map(Value::Int)
        .ok_or_else(|| "division by zero".to_owned())
}

fn kind(v: &Value) -> &'static str {
    match v {
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::List(_) => "slice",
        Value::Map(_) => "map",
        _ => "invalid",
    }
}

/// A version with missing parts as 0 and an optional `v`.
fn version(text: &str) -> Option<(semver::Version, usize)> {
    let bare = text.trim().trim_start_matches('v');
    let end = bare.find(['-', '+']).unwrap_or(bare.len());
    let (core, tail) = bare.split_at(end);
    let given = core.split('.').count();
    let parts: Vec<&str> = core
        .split('.')
        .chain(["0", "0"])
        .take(3)
        .map(|p| if matches!(p, "x" | "X" | "*" | "") { "0" } else { p })
        .collect();
    let wild = core.split('.').position(|p| matches!(p, "x" | "X" | "*"));
    let v = semver::Version::parse(&format!("{}{tail}", parts.join("."))).ok()?;
    Some((v, wild.unwrap_or(given).min(3)))
}

/// Masterminds' constraints: `||` of groups, in each all of the blank- or comma-separated comparisons.
fn satisfies(constraint: &str, found: &str) -> Result<bool, String> {
    let (v, _) = version(found).ok_or_else(|| format!("{found:?} is not a version"))?;
    let mut any = false;
    for group in constraint.split("||") {
        let mut all = true;
        // An operator may stand apart from its version.
        let mut text = group.replace(',', " ");
        for op in [">=", "<=", "!=", "=", ">", "<", "~", "^"] {
            while text.contains(&format!("{op} ")) {
                text = text.replace(&format!("{op} "), op);
            }
        }
        for one in text.split_whitespace() {
            all &= holds(one, &v).ok_or_else(|| format!("{one:?} is not a constraint of a version"))?;
        }
        any |= all;
    }
    Ok(any)
}

fn holds(one: &str, v: &semver::Version) -> Option<bool> {
    let split = one.find(|c: char| !"<>=!~^".contains(c)).unwrap_or(one.len());
    let (op, text) = one.split_at(split);
    let (want, given) = version(text)?;
    // Pre-releases only match where the constraint names one.
    if !v.pre.is_empty() && want.pre.is_empty() {
        return Some(false);
    }
    let same = |n: usize| {
        (n < 1 || v.major == want.major)
            && (n < 2 || v.minor == want.minor)
            && (n < 3 || (v.patch == want.patch && v.pre == want.pre))
    };
    Some(match op {
        "" | "=" => same(given),
        "!=" => !same(given),
        // Above a version with parts left out is above all that begin with it.
        ">" if given < 3 => *v > want && !same(given),
        ">" => *v > want,
        "<" => *v < want,
        ">=" | "=>" => *v >= want,
        "<=" | "=<" if given < 3 => *v < want || same(given),
        "<=" | "=<" => *v <= want,
        "~" | "~>" => *v >= want && same(given.min(2)),
        "^" => {
            let n = if want.major > 0 || given < 2 {
                1
            } else if want.minor > 0 || given < 3 {
                2
            } else {
                3
            };
            *v >= want && same(n)
        }
        _ => return None,
    })
}
