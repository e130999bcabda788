//! PURE: container.containerd, containerd's configuration file in TOML.

mod text;

use super::tree::{self, Decision};
use super::{Item, Op, Verdict, keypath};
use serde_json::Value;

/// Applies entries to the file's text, in order. Each change is made in the text itself and believed only when the new text
/// parses to exactly what was meant.
pub(super) fn edit(old: &str, items: &[&Item]) -> (String, Vec<Verdict>) {
    let mut text = if old.trim().is_empty() {
        format!("{old}{}", version_line(items))
    } else {
        old.to_owned()
    };
    let verdicts: Vec<Verdict> = items
        .iter()
        .map(|i| entry(&mut text, i).unwrap_or_else(Verdict::rejected))
        .collect();
    if let (Ok(a), Ok(b)) = (parse(old), parse(&text))
        && a == b
    {
        return (old.to_owned(), verdicts);
    }
    (text, verdicts)
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

fn entry(text: &mut String, item: &Item) -> Result<Verdict, String> {
    let path = keypath::parse(&item.key)?;
    if item.op == Op::Set {
        possible(&item.value)?;
    }
    let before = parse(text)?;
    let edit = match tree::decide(&before, &path, item.op, &item.value)? {
        Decision::Nothing(why) => return Ok(Verdict::unchanged(why)),
        Decision::Do(e) => e,
    };
    let mut meant = before;
    tree::perform(&mut meant, &edit);
    let new = text::apply(text, &edit)?;
    if parse(&new).as_ref() != Ok(&meant) {
        return Err(format!(
            "{} cannot be changed in place: the file uses a notation there that is not understood; change it by hand",
            keypath::show(&path)
        ));
    }
    *text = new;
    Ok(Verdict::changed(match edit {
        tree::Edit::Set(..) => "",
        tree::Edit::Append(..) => "added to the list",
        tree::Edit::Delete(_) => "deleted",
    }))
}
