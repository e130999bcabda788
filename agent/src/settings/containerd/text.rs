//! PURE: one change in a TOML text. Whether the result is right is not decided here: the caller parses it again.

use crate::settings::tree::Edit;
use serde_json::Value as Json;
use toml_edit::{Array, Document, DocumentMut, Item, Key, Table, TableLike, Value};

/// The text with the change made.
///
/// # Errors
/// Why it cannot be made in place.
pub(super) fn apply(text: &str, edit: &Edit) -> Result<String, String> {
    if let Edit::Delete(path) = edit
        && let Some(new) = cut(text, path)
    {
        return Ok(new);
    }
    let mut doc: DocumentMut = text.parse().map_err(|_| odd())?;
    match edit {
        Edit::Set(path, value) => set(doc.as_table_mut(), path, &convert(value)?)?,
        Edit::Append(path, items) => {
            let item = find(doc.as_item_mut(), path).ok_or_else(odd)?;
            let list = item.as_array_mut().ok_or_else(odd)?;
            for i in items {
                push(list, convert(i)?);
            }
        }
        Edit::Delete(path) => {
            let (last, above) = path.split_last().ok_or_else(odd)?;
            find(doc.as_item_mut(), above)
                .and_then(Item::as_table_like_mut)
                .and_then(|t| t.remove(last))
                .ok_or_else(odd)?;
        }
    }
    Ok(doc.to_string())
}

fn odd() -> String {
    "the file uses a TOML notation that cannot be changed in place; change it by hand".into()
}

fn convert(v: &Json) -> Result<Value, String> {
    Ok(match v {
        Json::String(s) => s.as_str().into(),
        Json::Bool(b) => (*b).into(),
        Json::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => i.into(),
            (None, Some(f)) => f.into(),
            _ => return Err(format!("{n} is no number of TOML")),
        },
        Json::Array(a) => {
            let mut out = Array::new();
            for i in a {
                out.push(convert(i)?);
            }
            out.into()
        }
        Json::Null | Json::Object(_) => return Err(odd()),
    })
}

fn find<'a>(item: &'a mut Item, path: &[String]) -> Option<&'a mut Item> {
    path.iter()
        .try_fold(item, |here, part| here.as_table_like_mut()?.get_mut(part))
}

fn set(root: &mut Table, path: &[String], value: &Value) -> Result<(), String> {
    let (last, above) = path.split_last().ok_or_else(odd)?;
    let mut here: &mut dyn TableLike = root;
    // Inside an inline table everything new is inline too.
    for part in above {
        if here.get(part).is_none() {
            let mut t = Table::new();
            t.set_implicit(true);
            here.insert(part, Item::Table(t));
        }
        here = here
            .get_mut(part)
            .and_then(Item::as_table_like_mut)
            .ok_or_else(odd)?;
    }
    if let Some(Item::Value(old)) = here.get_mut(last) {
        let decor = old.decor().clone();
        *old = value.clone();
        *old.decor_mut() = decor;
        return Ok(());
    }
    let indent = indent(here);
    let mut key = Key::new(last.as_str());
    if !indent.is_empty() {
        key.leaf_decor_mut().set_prefix(indent);
    }
    here.entry_format(&key).or_insert(Item::Value(value.clone()));
    Ok(())
}

/// How far the keys of a table stand from the margin.
fn indent(table: &mut dyn TableLike) -> String {
    let last = table
        .iter()
        .filter(|(_, i)| i.is_value())
        .last()
        .map(|(k, _)| k.to_owned());
    last.and_then(|k| table.key(&k).and_then(|k| k.leaf_decor().prefix().cloned()))
        .and_then(|p| p.as_str().map(str::to_owned))
        .map(|p| p.rsplit('\n').next().unwrap_or_default().to_owned())
        .filter(|p| p.chars().all(char::is_whitespace))
        .unwrap_or_default()
}

/// Adds to a list in the way its last element stands.
fn push(list: &mut Array, mut value: Value) {
    let prefix = list.iter().last().and_then(|l| l.decor().prefix().cloned());
    match prefix.as_ref().and_then(|p| p.as_str()) {
        // Elements on lines of their own: a comment above the last one is not repeated.
        Some(p) if p.contains('\n') => {
            let pad = p.rsplit('\n').next().unwrap_or_default();
            value.decor_mut().set_prefix(format!("\n{pad}"));
            list.push_formatted(value);
        }
        _ => list.push(value),
    }
}

/// Takes out the line of `key = value`, and leaves comments above it where they are. `None` = it is not of that form.
fn cut(text: &str, path: &[String]) -> Option<String> {
    let doc = Document::parse(text).ok()?;
    let (last, above) = path.split_last()?;
    let table = above
        .iter()
        .try_fold(doc.as_table(), |t, part| t.get(part)?.as_table())?;
    if table.is_dotted() {
        return None;
    }
    let value = table.get(last)?.as_value()?.span()?;
    let key = table.key(last)?.span()?;
    let from = text.get(..key.start)?.rfind('\n').map_or(0, |i| i + 1);
    if !text.get(from..key.start)?.trim().is_empty() {
        return None;
    }
    let to = text
        .get(value.end..)?
        .find('\n')
        .map_or(text.len(), |i| value.end + i + 1);
    Some([text.get(..from)?, text.get(to..)?].concat())
}
