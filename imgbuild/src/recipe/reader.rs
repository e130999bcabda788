//! Walks a TOML document with positions and collects errors instead of stopping at the first.

use super::Warning;
use crate::error::{BuildError, Kind};
use os_proto::suggest;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Collects what is wrong with one document.
pub(super) struct Reader<'t> {
    text: &'t str,
    file: &'t str,
    errors: Vec<(usize, BuildError)>,
    /// Full names of keys that an unknown key probably means.
    meant: Vec<String>,
    pub(super) warnings: Vec<Warning>,
}

/// A table of the document and how to name it in messages.
#[derive(Clone)]
pub(super) struct Table<'t> {
    map: &'t DeTable<'t>,
    /// Prefix of its keys: empty, or `users[0].`.
    pub(super) prefix: String,
    /// `[users]`, or the file itself.
    title: String,
    start: usize,
    root: bool,
}

/// A value with the place where it stands.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) offset: usize,
    /// Full key, e.g. `users[0].name`.
    pub(super) key: String,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, file: &'t str) -> Self {
        Reader {
            text,
            file,
            errors: Vec::new(),
            meant: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// How many errors there are so far.
    pub(super) fn error_count(&self) -> usize {
        self.errors.len()
    }

    /// All errors in the order in which the text has them.
    pub(super) fn take_errors(&mut self) -> Vec<BuildError> {
        let mut errors = std::mem::take(&mut self.errors);
        errors.sort_by_key(|(offset, _)| *offset);
        errors.into_iter().map(|(_, e)| e).collect()
    }

    /// `FILE:LINE:COLUMN`; columns count characters from 1.
    pub(super) fn place(&self, offset: usize) -> String {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        format!("{}:{line}:{column}", self.file)
    }

    /// Adds an error at an offset.
    pub(super) fn error(&mut self, code: &'static str, offset: usize, message: impl std::fmt::Display) {
        let text = format!("{}: {}", self.place(offset), shortened(&message.to_string()));
        self.errors
            .push((offset, BuildError::new(Kind::Input, code, text)));
    }

    /// Adds a warning at an offset.
    pub(super) fn warn(&mut self, code: &'static str, offset: usize, message: impl std::fmt::Display) {
        let message = format!("{}: {message}", self.place(offset));
        self.warnings.push(Warning { code, message });
    }

    /// Adds a syntax error with the line and a caret below it.
    pub(super) fn syntax(&mut self, message: &str, span: Option<Range<usize>>) {
        let offset = span.map_or(0, |s| s.start).min(self.text.len());
        let before = self.text.get(..offset).unwrap_or("");
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = self.text.get(start..).unwrap_or("").lines().next().unwrap_or("");
        let column = before.get(start..).unwrap_or("").chars().count();
        // A line that is no recipe's may be as long as the file.
        let skipped = column.saturating_sub(QUOTED / 2);
        let shown: String = line.chars().skip(skipped).take(QUOTED).collect();
        let caret = " ".repeat(column - skipped);
        self.error(
            "CFG002",
            offset,
            format!(
                "{}\n  {shown}\n  {caret}^",
                shortened(&message.trim().replace('\n', ", "))
            ),
        );
    }

    /// The document's own table.
    pub(super) fn root(map: &'t DeTable<'t>) -> Table<'t> {
        Table {
            map,
            prefix: String::new(),
            title: String::new(),
            start: 0,
            root: true,
        }
    }

    /// Reports keys that are not in `known`.
    pub(super) fn only(&mut self, t: &Table<'t>, known: &[&str]) {
        for (k, _) in t.map.iter() {
            let name: &str = k.get_ref();
            if !known.contains(&name) {
                if let Some(key) = suggest::closest(name, known.iter().copied()) {
                    self.meant.push(format!("{}{key}", t.prefix));
                }
                let hint = suggest::hint(name, known.iter().copied());
                let hint = if hint.is_empty() {
                    format!("; known here: {}", known.join(", "))
                } else {
                    hint
                };
                self.error(
                    "CFG003",
                    k.span().start,
                    format!("unknown key \"{}{name}\"{hint}", t.prefix),
                );
            }
        }
    }

    fn raw(t: &Table<'t>, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        t.map
            .iter()
            .find(|(k, _)| k.get_ref().as_ref() == key)
            .map(|(_, v)| v)
    }

    /// Whether a key is present, whatever its type.
    pub(super) fn has(t: &Table<'t>, key: &str) -> Option<usize> {
        Self::raw(t, key).map(|v| v.span().start)
    }

    /// Whether an unknown key of the table, reported already, probably is this one.
    pub(super) fn misspelt(&self, t: &Table<'t>, key: &str) -> bool {
        self.meant.contains(&format!("{}{key}", t.prefix))
    }

    /// Reports a required key as missing, unless it is there with a mistake in its name.
    pub(super) fn missing(&mut self, t: &Table<'t>, key: &str) {
        if self.misspelt(t, key) {
            return;
        }
        if t.root {
            let m = format!("{}: missing {key:?}", self.file);
            self.errors.push((0, BuildError::new(Kind::Input, "CFG004", m)));
        } else {
            self.error("CFG004", t.start, format!("{} missing {key:?}", t.title));
        }
    }

    fn wrong_type(&mut self, key: &str, v: &Spanned<DeValue<'_>>, expected: &str) {
        let found = v.get_ref().type_str();
        self.error(
            "CFG014",
            v.span().start,
            format!("{key}: expected {expected}, found {found}"),
        );
    }

    fn typed<T>(
        &mut self,
        t: &Table<'t>,
        key: &str,
        expected: &str,
        get: impl Fn(&'t DeValue<'t>) -> Option<T>,
    ) -> Option<At<T>> {
        let v = Self::raw(t, key)?;
        let full = format!("{}{key}", t.prefix);
        match get(v.get_ref()) {
            Some(value) => Some(At {
                value,
                offset: v.span().start,
                key: full,
            }),
            None => {
                self.wrong_type(&full, v, expected);
                None
            }
        }
    }

    /// A string that is not blank.
    pub(super) fn string(&mut self, t: &Table<'t>, key: &str) -> Option<At<String>> {
        let s = self.text(t, key)?;
        if s.value.trim().is_empty() {
            self.error("CFG006", s.offset, format!("{} is empty", s.key));
            return None;
        }
        Some(s)
    }

    /// A string that may be empty.
    pub(super) fn text(&mut self, t: &Table<'t>, key: &str) -> Option<At<String>> {
        self.typed(t, key, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// A boolean.
    pub(super) fn boolean(&mut self, t: &Table<'t>, key: &str) -> Option<At<bool>> {
        self.typed(t, key, "true or false", DeValue::as_bool)
    }

    /// A whole number within limits.
    pub(super) fn number(&mut self, t: &Table<'t>, key: &str, min: u64, max: u64) -> Option<At<u64>> {
        let n = self.typed(t, key, "a whole number", |v| {
            let i = v.as_integer()?;
            i128::from_str_radix(&i.as_str().replace('_', ""), i.radix()).ok()
        })?;
        match u64::try_from(n.value) {
            Ok(value) if (min..=max).contains(&value) => Some(At {
                value,
                offset: n.offset,
                key: n.key,
            }),
            _ => {
                let m = format!("{} is {}: expected {min} to {max}", n.key, n.value);
                self.error("CFG014", n.offset, m);
                None
            }
        }
    }

    /// A list of non-blank strings; where `single` is set, one string stands for a list of one.
    pub(super) fn strings(&mut self, t: &Table<'t>, key: &str, single: bool) -> Option<Vec<At<String>>> {
        let v = Self::raw(t, key)?;
        let full = format!("{}{key}", t.prefix);
        if single && v.get_ref().is_str() {
            return Some(self.string(t, key).into_iter().collect());
        }
        let Some(list) = v.get_ref().as_array() else {
            self.wrong_type(&full, v, "a list of strings");
            return None;
        };
        let mut out = Vec::new();
        for (i, item) in list.iter().enumerate() {
            let key = format!("{full}[{i}]");
            let offset = item.span().start;
            match item.get_ref().as_str() {
                None => self.wrong_type(&key, item, "a string"),
                Some(s) if s.trim().is_empty() => self.error("CFG006", offset, format!("{key} is empty")),
                Some(s) => out.push(At {
                    value: s.to_owned(),
                    offset,
                    key,
                }),
            }
        }
        Some(out)
    }

    /// A sub-table.
    pub(super) fn table(&mut self, t: &Table<'t>, key: &str) -> Option<Table<'t>> {
        let found = self.typed(t, key, "a table", DeValue::as_table)?;
        Some(Table {
            map: found.value,
            prefix: format!("{}.", found.key),
            title: format!("[{}]", found.key),
            start: found.offset,
            root: false,
        })
    }

    /// A list of tables.
    pub(super) fn tables(&mut self, t: &Table<'t>, key: &str) -> Vec<Table<'t>> {
        let Some(v) = Self::raw(t, key) else {
            return Vec::new();
        };
        let full = format!("{}{key}", t.prefix);
        let Some(list) = v.get_ref().as_array() else {
            self.wrong_type(&full, v, &format!("a list of tables ([[{full}]])"));
            return Vec::new();
        };
        let mut out = Vec::new();
        for (i, item) in list.iter().enumerate() {
            match item.get_ref().as_table() {
                Some(map) => out.push(Table {
                    map,
                    prefix: format!("{full}[{i}]."),
                    title: format!("[[{full}]] number {}", i + 1),
                    start: item.span().start,
                    root: false,
                }),
                None => self.wrong_type(&format!("{full}[{i}]"), item, "a table"),
            }
        }
        out
    }

    /// Where a table begins.
    pub(super) fn start(t: &Table<'t>) -> usize {
        t.start
    }
}

/// Characters of a line that are quoted around a syntax error.
const QUOTED: usize = 120;
/// Characters of a message; keys and values in it are as long as the recipe has them.
const MESSAGE: usize = 1000;

/// A message that fits a screen.
fn shortened(message: &str) -> String {
    let length = message.chars().count();
    if length <= MESSAGE {
        return message.to_owned();
    }
    let head: String = message.chars().take(MESSAGE / 2).collect();
    format!("{head}… ({length} characters)")
}
