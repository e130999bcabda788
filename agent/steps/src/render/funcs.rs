//! Functions of templates: sprig's by name and meaning, and what bashible adds.

mod data;
mod lists;
mod numbers;
mod text;

use super::format;
use gotmpl::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// What a function gives.
pub(super) type Out = Result<Value, String>;

/// A function and how many arguments it takes.
#[derive(Clone, Copy)]
pub(super) struct Func {
    least: usize,
    most: usize,
    f: fn(&[Value]) -> Out,
}

impl Func {
    /// Calls it.
    pub(super) fn call(self, args: &[Value]) -> Out {
        if args.len() < self.least || args.len() > self.most {
            let want = if self.least == self.most {
                format!("{}", self.least)
            } else if self.most == MANY {
                format!("at least {}", self.least)
            } else {
                format!("{} to {}", self.least, self.most)
            };
            return Err(format!("expected {want} arguments, found {}", args.len()));
        }
        (self.f)(args)
    }
}

/// No upper limit.
const MANY: usize = usize::MAX;

/// A row of a table.
type Row = (&'static str, usize, usize, fn(&[Value]) -> Out);

/// All functions by name.
pub(super) fn table() -> &'static BTreeMap<&'static str, Func> {
    static TABLE: OnceLock<BTreeMap<&'static str, Func>> = OnceLock::new();
    TABLE.get_or_init(|| {
        [text::ROWS, lists::ROWS, numbers::ROWS, data::ROWS]
            .into_iter()
            .flatten()
            .map(|(name, least, most, f)| {
                (
                    *name,
                    Func {
                        least: *least,
                        most: *most,
                        f: *f,
                    },
                )
            })
            .collect()
    })
}

/// A string value.
fn string(s: impl AsRef<str>) -> Value {
    Value::String(Arc::from(s.as_ref()))
}

/// An argument; absent ones are nil.
fn arg(args: &[Value], i: usize) -> &Value {
    static NIL: Value = Value::Nil;
    args.get(i).unwrap_or(&NIL)
}

/// The string form of an argument (sprig's strval).
fn strval(args: &[Value], i: usize) -> String {
    format::plain(arg(args, i))
}

/// A string argument; Go's functions take nothing else.
fn str_arg(args: &[Value], i: usize) -> Result<&str, String> {
    match arg(args, i) {
        Value::String(s) => Ok(s),
        other => Err(format!(
            "argument {}: expected a string, found {} {}",
            i + 1,
            other.type_name(),
            shown(other)
        )),
    }
}

fn list_arg(args: &[Value], i: usize) -> Result<&[Value], String> {
    match arg(args, i) {
        Value::List(l) => Ok(l),
        other => Err(format!(
            "argument {}: expected a list, found {} {}",
            i + 1,
            other.type_name(),
            shown(other)
        )),
    }
}

fn map_arg(args: &[Value], i: usize) -> Result<&BTreeMap<Arc<str>, Value>, String> {
    match arg(args, i) {
        Value::Map(m) => Ok(m),
        other => Err(format!(
            "argument {}: expected a map, found {} {}",
            i + 1,
            other.type_name(),
            shown(other)
        )),
    }
}

/// A value for messages.
fn shown(v: &Value) -> String {
    format::plain(v).chars().take(60).collect()
}

/// A whole number as sprig's casts make it: text is parsed, anything else is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
fn int_arg(args: &[Value], i: usize) -> i64 {
    match arg(args, i) {
        Value::Int(n) => *n,
        Value::Uint(n) => *n as i64,
        Value::Float(f) => *f as i64,
        Value::Bool(b) => i64::from(*b),
        Value::String(s) => s
            .trim()
            .parse::<i64>()
            .or_else(|_| s.trim().parse::<f64>().map(|f| f as i64))
            .unwrap_or(0),
        _ => 0,
    }
}

#[allow(clippy::cast_precision_loss)]
fn float_arg(args: &[Value], i: usize) -> f64 {
    match arg(args, i) {
        Value::Int(n) => *n as f64,
        Value::Uint(n) => *n as f64,
        Value::Float(f) => *f,
        Value::Bool(b) => f64::from(u8::from(*b)),
        Value::String(s) => s.trim().parse().unwrap_or(0.0),
        _ => 0.0,
    }
}
