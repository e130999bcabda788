//! `[rootfs]`: packages with their repositories, or a tree.

use super::parse::Parser;
use super::reader::{At, Reader, Table};
use super::{PathRef, Repo, RepoSource, Rootfs, Trust, Want};
use camino::Utf8Path;

impl<'t> Parser<'t> {
    pub(super) fn rootfs(&mut self, top: &Table<'t>) -> Option<Rootfs> {
        if Reader::has(top, "rootfs").is_none() {
            self.r.missing(top, "rootfs");
            return None;
        }
        let t = self.r.table(top, "rootfs")?;
        self.r.only(&t, &["from", "packages", "tree", "repos"]);
        if Reader::has(&t, "from").is_none() {
            self.r.missing(&t, "from");
            return None;
        }
        let tree = self.choice(&t, "from", &[("packages", false), ("tree", true)])?;
        let foreign: &[&str] = if tree { &["packages", "repos"] } else { &["tree"] };
        for key in foreign {
            if let Some(at) = Reader::has(&t, key) {
                let from = if tree { "tree" } else { "packages" };
                self.r.error(
                    "CFG005",
                    at,
                    format!("rootfs.{key} does not go with rootfs.from = \"{from}\""),
                );
            }
        }
        if tree {
            if Reader::has(&t, "tree").is_none() {
                self.r.missing(&t, "tree");
            }
            return self.path(&t, "tree", Want::Dir).map(Rootfs::Tree);
        }
        let packages = self.packages(&t);
        let repos = self.repos(&t);
        Some(Rootfs::Packages { packages, repos })
    }

    fn packages(&mut self, t: &Table<'t>) -> Vec<String> {
        let Some(at) = Reader::has(t, "packages") else {
            self.r.missing(t, "packages");
            return Vec::new();
        };
        let before = self.r.error_count();
        let list = self.r.strings(t, "packages", false).unwrap_or_default();
        if list.is_empty() && before == self.r.error_count() {
            self.r.error("CFG006", at, "rootfs.packages is empty");
        }
        for p in &list {
            let bad = |c: char| c.is_whitespace() || c.is_control();
            if p.value.starts_with('-') || p.value.contains(bad) {
                self.r.error(
                    "CFG008",
                    p.offset,
                    format!("{}: {:?} is not a package name", p.key, p.value),
                );
            }
        }
        list.into_iter().map(|p| p.value).collect()
    }

    fn repos(&mut self, t: &Table<'t>) -> Vec<Repo> {
        if Reader::has(t, "repos").is_none() {
            self.r.missing(t, "repos");
            return Vec::new();
        }
        let mut out: Vec<Repo> = Vec::new();
        let tables = self.r.tables(t, "repos");
        if let (Some(at), true) = (Reader::has(t, "repos"), tables.is_empty()) {
            self.r
                .error("REPO001", at, format!("{}repos names no repository", t.prefix));
        }
        for x in tables {
            self.r.only(&x, &["id", "url", "file", "key", "allow_unsigned"]);
            let id = self.repo_id(&x, &out);
            let source = self.repo_source(&x);
            let trust = self.trust(&x);
            if let (Some(id), Some(source), Some(trust)) = (id, source, trust) {
                out.push(Repo { id, source, trust });
            }
        }
        out
    }

    fn repo_id(&mut self, x: &Table<'t>, seen: &[Repo]) -> Option<String> {
        if Reader::has(x, "id").is_none() {
            self.r.missing(x, "id");
            return None;
        }
        let id = self.r.string(x, "id")?;
        if !id
            .value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        {
            let m = format!("{} {:?}: letters, digits and . _ - are allowed", id.key, id.value);
            self.r.error("REPO001", id.offset, m);
        }
        if seen.iter().any(|r| r.id == id.value) {
            self.r.error(
                "REPO001",
                id.offset,
                format!("{} {:?} is used twice", id.key, id.value),
            );
        }
        Some(id.value)
    }

    fn repo_source(&mut self, x: &Table<'t>) -> Option<RepoSource> {
        match (Reader::has(x, "url"), Reader::has(x, "file")) {
            (Some(_), None) => {
                let u = self.r.string(x, "url")?;
                self.repo_url(u)
            }
            (None, Some(_)) => self.path(x, "file", Want::RepoFile).map(RepoSource::RepoFile),
            (None, None) if self.r.misspelt(x, "url") || self.r.misspelt(x, "file") => None,
            _ => {
                let m = format!("{}url or {}file: exactly one is required", x.prefix, x.prefix);
                self.r.error("CFG005", Reader::start(x), m);
                None
            }
        }
    }

    fn repo_url(&mut self, u: At<String>) -> Option<RepoSource> {
        if u.value.contains(|c: char| c.is_whitespace() || c.is_control()) && u.value.contains("://") {
            self.r.error(
                "REPO001",
                u.offset,
                format!("{} {:?}: blanks are not allowed in a URL", u.key, u.value),
            );
            return None;
        }
        match u.value.split_once("://") {
            Some(("http" | "https" | "file", rest)) if !rest.is_empty() => Some(RepoSource::Url(u.value)),
            Some(_) => {
                let m = format!(
                    "{} {:?}: expected http://, https://, file:// or a directory",
                    u.key, u.value
                );
                self.r.error("REPO001", u.offset, m);
                None
            }
            None => {
                let dir = self.file.parent().unwrap_or(Utf8Path::new(""));
                let path = dir.join(&u.value);
                self.paths.push(PathRef {
                    path: path.clone(),
                    at: self.r.place(u.offset),
                    key: u.key,
                    want: Want::Dir,
                });
                Some(RepoSource::Url(path.into_string()))
            }
        }
    }

    fn trust(&mut self, x: &Table<'t>) -> Option<Trust> {
        let unsigned = self.r.boolean(x, "allow_unsigned");
        let has_key = Reader::has(x, "key").is_some();
        match (has_key, unsigned) {
            (true, Some(u)) if u.value => {
                self.r.error(
                    "CFG005",
                    u.offset,
                    format!("{}key and {} exclude each other", x.prefix, u.key),
                );
                None
            }
            (true, _) => self.path(x, "key", Want::Key).map(Trust::Key),
            (false, Some(u)) if u.value => {
                self.r.warn(
                    "SEC002",
                    u.offset,
                    format!("{}: packages of this repository are not verified", u.key),
                );
                Some(Trust::AllowUnsigned)
            }
            (false, _) if self.r.misspelt(x, "key") || self.r.misspelt(x, "allow_unsigned") => None,
            (false, _) => {
                let m = format!(
                    "{}key is required (or allow_unsigned = true to accept unverified packages)",
                    x.prefix
                );
                self.r.error("CFG004", Reader::start(x), m);
                None
            }
        }
    }
}
