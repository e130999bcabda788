//! `[[files]]` and `[units]`.

use super::parse::Parser;
use super::reader::{Reader, Table};
use super::{FileEntry, FileSource, Units, Want};
use camino::Utf8PathBuf;

impl<'t> Parser<'t> {
    pub(super) fn files(&mut self, top: &Table<'t>) -> Vec<FileEntry> {
        let mut out: Vec<FileEntry> = Vec::new();
        for t in self.r.tables(top, "files") {
            self.r.only(&t, &["src", "text", "dst", "mode", "owner"]);
            let source = match (Reader::has(&t, "src"), Reader::has(&t, "text")) {
                (Some(_), None) => self.path(&t, "src", Want::Any).map(FileSource::Path),
                (None, Some(_)) => self.r.text(&t, "text").map(|s| FileSource::Text(s.value)),
                (None, None) if self.r.misspelt(&t, "src") || self.r.misspelt(&t, "text") => None,
                _ => {
                    let m = format!("{}src or {}text: exactly one is required", t.prefix, t.prefix);
                    self.r.error("CFG005", Reader::start(&t), m);
                    None
                }
            };
            let dst = self.dst(&t);
            let mode = self.mode(&t);
            let owner = self.owner(&t);
            if let (Some(source), Some(dst)) = (source, dst) {
                out.push(FileEntry {
                    source,
                    dst,
                    mode,
                    owner,
                });
            }
        }
        out
    }

    fn dst(&mut self, t: &Table<'t>) -> Option<Utf8PathBuf> {
        if Reader::has(t, "dst").is_none() {
            self.r.missing(t, "dst");
            return None;
        }
        let d = self.r.string(t, "dst")?;
        let path = Utf8PathBuf::from(&d.value);
        let parts_ok = !path.as_str().contains(char::is_control)
            && path.components().all(|c| c.as_str() != ".." && c.as_str() != ".");
        if !path.is_absolute() || !parts_ok || path.as_str() == "/" {
            self.r.error(
                "CFG010",
                d.offset,
                format!(
                    "{} {:?}: expected an absolute path without \"..\"",
                    d.key, d.value
                ),
            );
            return None;
        }
        if path.starts_with("/var") || path.starts_with("/persist") || path.starts_with("/run") {
            let m = format!(
                "{} {:?} is hidden on a node by a mount over that directory",
                d.key, d.value
            );
            self.r.warn("SHADOW", d.offset, m);
        }
        Some(path)
    }

    fn mode(&mut self, t: &Table<'t>) -> Option<u32> {
        let m = self.r.string(t, "mode")?;
        match u32::from_str_radix(m.value.trim_start_matches("0o"), 8) {
            Ok(n) if n <= 0o7777 => Some(n),
            _ => {
                let text = format!("{} {:?}: expected an octal mode such as \"0644\"", m.key, m.value);
                self.r.error("CFG014", m.offset, text);
                None
            }
        }
    }

    fn owner(&mut self, t: &Table<'t>) -> String {
        let Some(o) = self.r.string(t, "owner") else {
            return "root:root".to_owned();
        };
        let word =
            |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let ok = match o.value.split_once(':') {
            Some((u, g)) => word(u) && word(g),
            None => word(&o.value),
        };
        if !ok {
            self.r.error(
                "CFG014",
                o.offset,
                format!("{} {:?}: expected \"user\" or \"user:group\"", o.key, o.value),
            );
        }
        o.value
    }

    pub(super) fn units(&mut self, top: &Table<'t>) -> Units {
        let Some(t) = self.r.table(top, "units") else {
            return Units::default();
        };
        self.r.only(&t, &["enable", "disable"]);
        let mut list = |key: &str| -> Vec<String> {
            let names = self.r.strings(&t, key, false).unwrap_or_default();
            let mut out = Vec::new();
            for n in names {
                if n.value
                    .contains(|c: char| !(c.is_ascii_alphanumeric() || ".:_-@\\".contains(c)))
                {
                    let m = format!("{} {:?} is not a unit name", n.key, n.value);
                    self.r.error("CFG014", n.offset, m);
                }
                out.push(if n.value.contains('.') {
                    n.value
                } else {
                    n.value + ".service"
                });
            }
            out
        };
        Units {
            enable: list("enable"),
            disable: list("disable"),
        }
    }
}
