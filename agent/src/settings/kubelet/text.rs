//! PURE: one change in a YAML text, which leaves every other byte alone.
//!
//! Good for what configuration files are made of. Whether the result is right is not decided here: the caller parses it again.

use super::emit;
use super::nodes::{self, Kind, Node};
use crate::settings::tree::{Edit, nested};
use serde_json::{Map, Value};
use std::ops::Range;

/// The text with the change made.
///
/// # Errors
/// Why it cannot be made in place.
pub(super) fn apply(text: &str, edit: &Edit) -> Result<String, String> {
    let doc = Doc {
        text,
        ending: if text.contains("\r\n") { "\r\n" } else { "\n" },
    };
    let root = nodes::root(text)?;
    let splices = match edit {
        Edit::Set(path, value) => doc.set(root.as_ref(), path, value)?,
        Edit::Append(path, items) => doc.append(find(root.as_ref(), path)?.1, items)?,
        Edit::Delete(path) => doc.delete(root.as_ref(), path)?,
    };
    Ok(doc.spliced(splices))
}

type Splice = (Range<usize>, String);

fn odd() -> String {
    "the file uses a YAML notation that cannot be changed in place; change it by hand".into()
}

/// Key and value at a path.
fn find<'a>(root: Option<&'a Node>, path: &[String]) -> Result<(&'a Node, &'a Node), String> {
    let mut here = root.ok_or_else(odd)?;
    let mut key = here;
    for part in path {
        let (k, v) = here.get(part).ok_or_else(odd)?;
        (key, here) = (k, v);
    }
    Ok((key, here))
}

struct Doc<'a> {
    text: &'a str,
    ending: &'static str,
}

impl Doc<'_> {
    fn spliced(&self, mut splices: Vec<Splice>) -> String {
        splices.sort_by_key(|(r, _)| std::cmp::Reverse((r.start, r.end)));
        let mut out = self.text.to_owned();
        for (range, new) in splices {
            if out.is_char_boundary(range.start) && out.is_char_boundary(range.end) {
                out.replace_range(range, &new);
            }
        }
        out
    }

    fn line_start(&self, at: usize) -> usize {
        self.text
            .get(..at)
            .and_then(|t| t.rfind('\n'))
            .map_or(0, |i| i + 1)
    }

    /// Behind the line break of the line on which content that ends at `at` ends.
    fn line_end(&self, at: usize) -> usize {
        if at > 0 && self.text.get(..at).is_some_and(|t| t.ends_with('\n')) {
            return at;
        }
        self.text
            .get(at..)
            .and_then(|t| t.find('\n'))
            .map_or(self.text.len(), |i| at + i + 1)
    }

    fn column(&self, at: usize) -> usize {
        at - self.line_start(at)
    }

    /// Lines to put in at `at`, which is the start of a line or the end of a text that lacks its last line break.
    fn lines_at(&self, at: usize, lines: String) -> Splice {
        let open = at > 0 && self.text.get(..at).is_some_and(|t| !t.ends_with('\n'));
        let lead = if open { self.ending } else { "" };
        (at..at, format!("{lead}{lines}"))
    }

    /// Behind the colon of a key.
    fn colon(&self, key: &Node) -> Result<usize, String> {
        let rest = self.text.get(key.end..).unwrap_or_default();
        let skip = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        match rest.as_bytes().get(skip) {
            Some(b':') => Ok(key.end + skip + 1),
            _ => Err(odd()),
        }
    }

    fn set(&self, root: Option<&Node>, path: &[String], value: &Value) -> Result<Vec<Splice>, String> {
        let Some(root) = root else {
            let mut lines = String::new();
            let (first, rest) = path.split_first().ok_or_else(odd)?;
            emit::entry(&mut lines, 0, first, &nested(rest, value), self.ending);
            return Ok(vec![self.lines_at(self.text.len(), lines)]);
        };
        let mut here = root;
        let mut key: Option<&Node> = None;
        let mut flow = matches!(root.kind, Kind::Map { flow: true, .. });
        for (i, part) in path.iter().enumerate() {
            let rest = path.get(i..).unwrap_or_default();
            let hollow =
                here.null(self.text) || matches!(&here.kind, Kind::Map { entries, .. } if entries.is_empty());
            if hollow && let Some(k) = key {
                return self.replace(k, here, &nested(rest, value), flow);
            }
            match here.get(part) {
                Some((k, v)) => {
                    flow = matches!(here.kind, Kind::Map { flow: true, .. });
                    (key, here) = (Some(k), v);
                }
                None => return self.insert(here, part, &nested(rest.get(1..).unwrap_or_default(), value)),
            }
        }
        self.replace(key.ok_or_else(odd)?, here, value, flow)
    }

    /// Another value for a key that exists; `flow` = the key stands in a flow map.
    fn replace(&self, key: &Node, old: &Node, value: &Value, flow: bool) -> Result<Vec<Splice>, String> {
        let colon = self.colon(key)?;
        if flow {
            let text = emit::flow(value);
            return Ok(vec![if old.absent() {
                (colon..colon, format!(" {text}"))
            } else {
                (old.start..old.end, text)
            }]);
        }
        let mut out = Vec::new();
        let key_line = self.line_end(key.end);
        if old.block_collection() {
            out.push((
                self.line_start(old.start)..self.line_end(old.content_end()),
                String::new(),
            ));
            if self.line_start(old.start) < key_line {
                return Err(odd());
            }
        } else if let Kind::Scalar { block: true, .. } = old.kind {
            let end = self.line_end(old.end);
            out.push((colon..end, self.ending.to_owned()));
        } else if !old.absent() {
            let from = if emit::is_block(value) { colon } else { old.start };
            out.push((from..old.end, String::new()));
        }
        if emit::is_block(value) {
            let mut lines = String::new();
            emit::below(&mut lines, self.column(key.start), value, self.ending);
            // Behind the key's own line, or behind everything that is taken away.
            let at = match &old.kind {
                Kind::Scalar { absent: true, .. } => key_line,
                _ if old.block_collection() => self.line_start(old.start),
                _ => self.line_end(old.end),
            };
            out.push(self.lines_at(at, lines));
        } else {
            let inline = emit::inline(value);
            let at = if old.absent()
                || old.block_collection()
                || matches!(old.kind, Kind::Scalar { block: true, .. })
            {
                out.push((colon..colon, format!(" {inline}")));
                return Ok(out);
            } else {
                old.start
            };
            out.push((at..at, inline));
        }
        Ok(out)
    }

    /// A key that a map lacks.
    fn insert(&self, map: &Node, key: &str, value: &Value) -> Result<Vec<Splice>, String> {
        match &map.kind {
            Kind::Map { flow: true, entries } => {
                let pair = format!("{}: {}", emit::flow(&Value::from(key)), emit::flow(value));
                Ok(vec![match entries.last() {
                    Some((k, v)) => {
                        let at = if v.absent() {
                            self.colon(k)?
                        } else {
                            v.content_end()
                        };
                        (at..at, format!(", {pair}"))
                    }
                    None => (map.start + 1..map.start + 1, pair),
                }])
            }
            Kind::Map { entries, .. } => {
                let (first, _) = entries.first().ok_or_else(odd)?;
                let mut lines = String::new();
                emit::entry(&mut lines, self.column(first.start), key, value, self.ending);
                Ok(vec![self.lines_at(self.line_end(map.content_end()), lines)])
            }
            _ => Err(odd()),
        }
    }

    fn append(&self, list: &Node, items: &[Value]) -> Result<Vec<Splice>, String> {
        let Kind::Seq { flow, items: old } = &list.kind else {
            return Err(odd());
        };
        let Some(last) = old.last() else {
            let text: Vec<String> = items.iter().map(emit::flow).collect();
            return Ok(vec![(list.start + 1..list.start + 1, text.join(", "))]);
        };
        if *flow {
            let text: String = items.iter().map(|i| format!(", {}", emit::flow(i))).collect();
            let at = last.content_end();
            return Ok(vec![(at..at, text)]);
        }
        let before = self.text.get(..last.start).unwrap_or_default();
        let dash = before
            .trim_end_matches([' ', '\t'])
            .len()
            .checked_sub(1)
            .ok_or_else(odd)?;
        if self.text.as_bytes().get(dash) != Some(&b'-') {
            return Err(odd());
        }
        let pad = " ".repeat(self.column(dash));
        let lines = items
            .iter()
            .map(|i| format!("{pad}- {}{}", emit::inline(i), self.ending))
            .collect();
        Ok(vec![self.lines_at(self.line_end(list.content_end()), lines)])
    }

    fn delete(&self, root: Option<&Node>, path: &[String]) -> Result<Vec<Splice>, String> {
        let (last, above) = path.split_last().ok_or_else(odd)?;
        let (key_above, map) = find(root, above)?;
        let Kind::Map { flow, entries } = &map.kind else {
            return Err(odd());
        };
        let n = entries
            .iter()
            .position(|(k, _)| matches!(&k.kind, Kind::Scalar { text, .. } if text == last))
            .ok_or_else(odd)?;
        let (key, value) = entries.get(n).ok_or_else(odd)?;
        let end = if value.absent() {
            self.colon(key)?
        } else {
            value.content_end()
        };
        if *flow {
            let next = entries.get(n + 1).map(|(k, _)| k.start);
            let before = n
                .checked_sub(1)
                .and_then(|p| entries.get(p))
                .map(|(k, v)| if v.absent() { k.end } else { v.content_end() });
            return Ok(vec![(
                match (next, before) {
                    (Some(next), _) => key.start..next,
                    (None, Some(before)) => before..end,
                    (None, None) => key.start..end,
                },
                String::new(),
            )]);
        }
        if entries.len() == 1 && !above.is_empty() {
            // A key without anything below it would be null, not an empty map.
            return self.replace(key_above, map, &Value::Object(Map::new()), false);
        }
        let from = self.line_start(key.start);
        if self
            .text
            .get(from..key.start)
            .is_some_and(|t| !t.trim().is_empty())
        {
            return Err(odd());
        }
        let new = if entries.len() == 1 {
            format!("{{}}{}", self.ending)
        } else {
            String::new()
        };
        Ok(vec![(from..self.line_end(end), new)])
    }
}
