//! PURE: entries applied to a file that is a tree, by edits of its text; the same for kubelet's YAML and containerd's TOML,
//! which say only what is theirs.

use super::tree::{self, Decision, Edit};
use super::{Item, Verdict, keypath};
use serde_json::Value;

/// What is a format's own.
#[derive(Debug)]
pub(super) struct Format {
    /// The tree of a file.
    pub parse: fn(&str) -> Result<Value, String>,
    /// Makes one change in the text.
    pub apply: fn(&str, &Edit) -> Result<String, String>,
    /// Why such a file cannot hold this entry's value.
    pub value: fn(&Item) -> Result<(), String>,
    /// Why entries cannot be applied to this tree.
    pub root: fn(&Value) -> Result<(), String>,
    /// What in a text keeps it from being edited in place.
    pub obstacle: &'static str,
}

impl Format {
    /// Applies entries in order to `start`, which is `old` or what an empty file begins with. Each change is made in the text
    /// itself and believed only when the new text parses to exactly what was meant. Entries that cancel each other out leave
    /// `old` as it was.
    pub(super) fn edit(&self, old: &str, start: String, items: &[&Item]) -> (String, Vec<Verdict>) {
        let mut text = start;
        let verdicts: Vec<Verdict> = items
            .iter()
            .map(|i| self.entry(&mut text, i).unwrap_or_else(Verdict::rejected))
            .collect();
        if let (Ok(a), Ok(b)) = ((self.parse)(old), (self.parse)(&text))
            && a == b
        {
            return (old.to_owned(), verdicts);
        }
        (text, verdicts)
    }

    fn entry(&self, text: &mut String, item: &Item) -> Result<Verdict, String> {
        let path = keypath::parse(&item.key)?;
        (self.value)(item)?;
        let before = (self.parse)(text)?;
        (self.root)(&before)?;
        let edit = match tree::decide(&before, &path, item.op, &item.value)? {
            Decision::Nothing(why) => return Ok(Verdict::unchanged(why)),
            Decision::Do(e) => e,
        };
        let mut meant = before;
        tree::perform(&mut meant, &edit);
        let new = (self.apply)(text, &edit)?;
        if (self.parse)(&new).as_ref() != Ok(&meant) {
            return Err(format!(
                "{} cannot be changed in place: the file uses {}; change it by hand",
                keypath::show(&path),
                self.obstacle
            ));
        }
        *text = new;
        Ok(Verdict::changed(match edit {
            Edit::Set(..) => "",
            Edit::Append(..) => "added to the list",
            Edit::Delete(_) => "deleted",
        }))
    }
}
