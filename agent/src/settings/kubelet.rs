//! PURE: kubernetes.kubelet, kubelet's configuration file in YAML (or JSON).

mod emit;
mod nodes;
mod text;

use super::tree::{self, Decision};
use super::{Item, Verdict, keypath};
use serde_json::Value;

/// Applies entries to the file's text, in order. Each change is made in the text itself and believed only when the new text
/// parses to exactly what was meant.
pub(super) fn edit(old: &str, items: &[&Item]) -> (String, Vec<Verdict>) {
    let mut text = old.to_owned();
    let verdicts: Vec<Verdict> = items
        .iter()
        .map(|i| entry(&mut text, i).unwrap_or_else(Verdict::rejected))
        .collect();
    if let (Ok(a), Ok(b)) = (parse(old), parse(&text))
        && a == b
    {
        // The entries cancel each other out.
        return (old.to_owned(), verdicts);
    }
    (text, verdicts)
}

/// The tree of a file; an empty file is null.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if nodes::root(text)?.is_none() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|e| format!("the file is not valid YAML: {}", e.without_snippet()))
}

fn entry(text: &mut String, item: &Item) -> Result<Verdict, String> {
    let path = keypath::parse(&item.key)?;
    let before = parse(text)?;
    if !matches!(before, Value::Object(_) | Value::Null) {
        return Err("the file holds no map".into());
    }
    let edit = match tree::decide(&before, &path, item.op, &item.value)? {
        Decision::Nothing(why) => return Ok(Verdict::unchanged(why)),
        Decision::Do(e) => e,
    };
    let mut meant = before;
    tree::perform(&mut meant, &edit);
    let new = text::apply(text, &edit)?;
    if parse(&new).as_ref() != Ok(&meant) {
        return Err(format!(
            "{} cannot be changed in place: the file uses anchors, tags or another notation there; change it by hand",
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
