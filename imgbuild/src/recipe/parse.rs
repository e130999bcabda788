//! Text → [`Recipe`], pure.

use super::reader::{At, Reader, Table};
use super::{
    Boot, DEFAULT_ESP_MIB, DEFAULT_SLOT_MIB, Disk, FileEntry, FileSource, Loader, MIN_ESP_MIB, PathRef,
    Recipe, Repo, RepoSource, Rootfs, Trust, Units, Want,
};
use crate::error::BuildError;
use crate::suggest;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::layout::{Arch, MIB};
use toml::de::DeTable;

const TOP: [&str; 11] = [
    "version", "name", "arch", "rootfs", "agent", "disk", "boot", "files", "users", "units", "trial",
];

impl Recipe {
    /// Parses recipe text; `file` names it in messages and is where relative paths start from.
    ///
    /// # Errors
    /// Everything that is wrong with the text, in the order in which it stands there.
    pub fn parse(text: &str, file: &Utf8Path) -> Result<Recipe, Vec<BuildError>> {
        let mut r = Reader::new(text, file.as_str());
        let doc = match DeTable::parse(text) {
            Ok(doc) => doc,
            Err(e) => {
                r.syntax(e.message(), e.span());
                return Err(r.errors);
            }
        };
        let mut p = Parser {
            r,
            file,
            paths: Vec::new(),
        };
        match p.recipe(&Reader::root(doc.get_ref())) {
            Some(recipe) if p.r.errors.is_empty() => Ok(recipe),
            _ => Err(p.r.errors),
        }
    }
}

struct Parser<'t> {
    r: Reader<'t>,
    file: &'t Utf8Path,
    paths: Vec<PathRef>,
}

impl<'t> Parser<'t> {
    fn recipe(&mut self, t: &Table<'t>) -> Option<Recipe> {
        let mut top = TOP.to_vec();
        top.push("os");
        self.r.only(t, &top);
        let version = self.version(t);
        let name = self.name(t);
        let arch = self.choice(t, "arch", &[("x86_64", Arch::X86_64), ("aarch64", Arch::Aarch64)]);
        let rootfs = self.rootfs(t);
        let agent = self.r.table(t, "agent").and_then(|a| {
            self.r.only(&a, &["path"]);
            self.path(&a, "path", Want::File)
        });
        let arch = arch.unwrap_or(Arch::X86_64);
        let disk = self.disk(t);
        let boot = self.boot(t, arch);
        let files = self.files(t);
        let users = super::parse_users::users(&mut self.r, t);
        let units = self.units(t);
        let trial_deadline_secs = self.r.table(t, "trial").and_then(|x| {
            self.r.only(&x, &["deadline_secs"]);
            let n = self.r.number(&x, "deadline_secs", 60, 86_400)?;
            u32::try_from(n.value).ok()
        });
        let image_url = self.r.table(t, "os").and_then(|x| {
            self.r.only(&x, &["image_url"]);
            self.r.string(&x, "image_url").map(|s| s.value)
        });
        Some(Recipe {
            file: self.file.to_owned(),
            name: name.unwrap_or_else(|| "Slipway".to_owned()),
            version: version?,
            arch,
            rootfs: rootfs?,
            agent,
            disk,
            boot,
            files,
            users,
            units,
            trial_deadline_secs,
            image_url,
            paths: std::mem::take(&mut self.paths),
            warnings: std::mem::take(&mut self.r.warnings),
        })
    }

    fn version(&mut self, t: &Table<'t>) -> Option<String> {
        if Reader::has(t, "version").is_none() {
            self.r.missing(t, "version");
            return None;
        }
        let v = self.r.string(t, "version")?;
        if let Err(e) = os_proto::version::check(&v.value) {
            self.r.error("CFG007", v.offset, e);
            return None;
        }
        Some(v.value)
    }

    fn name(&mut self, t: &Table<'t>) -> Option<String> {
        let n = self.r.string(t, "name")?;
        let wrong = n
            .value
            .chars()
            .find(|c| !(c.is_ascii_alphanumeric() || " ._+-".contains(*c)));
        if let Some(c) = wrong {
            let m = format!(
                "name {:?}: character {c:?} not allowed (letters, digits, blank and . _ + - are)",
                n.value
            );
            self.r.error("CFG007", n.offset, m);
        } else if n.value.len() > 64 || n.value.trim() != n.value {
            let m = format!(
                "name {:?}: expected at most 64 characters without blanks around them",
                n.value
            );
            self.r.error("CFG007", n.offset, m);
        }
        Some(n.value)
    }

    /// One of a fixed set of words.
    fn choice<T: Copy>(&mut self, t: &Table<'t>, key: &str, words: &[(&str, T)]) -> Option<T> {
        let s = self.r.string(t, key)?;
        if let Some((_, v)) = words.iter().find(|(w, _)| *w == s.value) {
            return Some(*v);
        }
        let list: Vec<String> = words.iter().map(|(w, _)| format!("{w:?}")).collect();
        let hint = suggest::hint(&s.value, words.iter().map(|(w, _)| *w));
        let m = format!("{} is {:?}: expected {}{hint}", s.key, s.value, list.join(" or "));
        self.r.error("CFG014", s.offset, m);
        None
    }

    /// A path, joined with the recipe's directory and noted for the later check.
    fn path(&mut self, t: &Table<'t>, key: &str, want: Want) -> Option<Utf8PathBuf> {
        let s = self.r.string(t, key)?;
        let dir = self.file.parent().unwrap_or(Utf8Path::new(""));
        let path = dir.join(&s.value);
        self.paths.push(PathRef {
            path: path.clone(),
            at: self.r.place(s.offset),
            key: s.key,
            want,
        });
        Some(path)
    }

    fn rootfs(&mut self, top: &Table<'t>) -> Option<Rootfs> {
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
        let before = self.r.errors.len();
        let list = self.r.strings(t, "packages", false).unwrap_or_default();
        if list.is_empty() && before == self.r.errors.len() {
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
        for x in self.r.tables(t, "repos") {
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

    fn disk(&mut self, top: &Table<'t>) -> Disk {
        let mut disk = Disk {
            size: None,
            slot_mib: DEFAULT_SLOT_MIB,
            esp_mib: DEFAULT_ESP_MIB,
            sector_size: 512,
        };
        let Some(t) = self.r.table(top, "disk") else {
            return disk;
        };
        self.r.only(&t, &["size", "slot_mib", "esp_mib", "sector_size"]);
        if let Some(s) = self.r.string(&t, "size") {
            match parse_size(&s.value) {
                Ok(n) => disk.size = Some(n),
                Err(e) => self
                    .r
                    .error("CFG014", s.offset, format!("{} {:?}: {e}", s.key, s.value)),
            }
        }
        if let Some(n) = self.r.number(&t, "slot_mib", 8, 1 << 20) {
            disk.slot_mib = n.value;
        }
        if let Some(n) = self.r.number(&t, "esp_mib", MIN_ESP_MIB, 4096) {
            disk.esp_mib = n.value;
        }
        if let Some(n) = self.r.number(&t, "sector_size", 1, 1 << 20)
            && n.value != 512
        {
            self.r.error(
                "CFG014",
                n.offset,
                format!("{} is {}: only 512 can be built so far", n.key, n.value),
            );
        }
        disk
    }

    fn boot(&mut self, top: &Table<'t>, arch: Arch) -> Boot {
        let mut boot = Boot {
            loader: Loader::Grub,
            args: Vec::new(),
            menu: true,
        };
        if let Some(t) = self.r.table(top, "boot") {
            self.r.only(&t, &["loader", "args", "menu"]);
            if let Some(l) = self.choice(&t, "loader", &[("grub", Loader::Grub), ("none", Loader::None)]) {
                boot.loader = l;
            }
            for a in self.r.strings(&t, "args", true).unwrap_or_default() {
                self.boot_arg(&a);
                boot.args.extend(a.value.split_whitespace().map(str::to_owned));
            }
            boot.menu = self.r.boolean(&t, "menu").is_none_or(|m| m.value);
        }
        if arch == Arch::Aarch64 && boot.loader == Loader::Grub {
            let at = Reader::has(top, "arch").unwrap_or(0);
            let m = "arch \"aarch64\" needs [boot] loader = \"none\": GRUB is built for x86_64 only so far";
            self.r.error("CFG014", at, m);
        }
        boot
    }

    fn boot_arg(&mut self, a: &At<String>) {
        if let Some(c) = a
            .value
            .chars()
            .find(|c| !(' '..='~').contains(c) || "\"'\\`$;|&<>{}".contains(*c))
        {
            let m = format!(
                "{} {:?}: character {c:?} cannot be passed through the boot loader",
                a.key, a.value
            );
            self.r.error("CFG015", a.offset, m);
        }
        for word in a.value.split_whitespace() {
            let key = word.split('=').next().unwrap_or(word);
            if matches!(key, "root" | "ro" | "rw" | "os.slot" | "os.boot" | "os.trial") {
                let m = format!(
                    "{}: {word:?} is set by the boot loader for the slot it starts",
                    a.key
                );
                self.r.error("CFG015", a.offset, m);
            }
        }
    }

    fn files(&mut self, top: &Table<'t>) -> Vec<FileEntry> {
        let mut out: Vec<FileEntry> = Vec::new();
        for t in self.r.tables(top, "files") {
            self.r.only(&t, &["src", "text", "dst", "mode", "owner"]);
            let source = match (Reader::has(&t, "src"), Reader::has(&t, "text")) {
                (Some(_), None) => self.path(&t, "src", Want::Any).map(FileSource::Path),
                (None, Some(_)) => self.r.text(&t, "text").map(|s| FileSource::Text(s.value)),
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

    fn units(&mut self, top: &Table<'t>) -> Units {
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

/// `20G`, `512MiB`, `1.5` is not one; binary units, a whole number of MiB.
fn parse_size(s: &str) -> Result<u64, String> {
    let digits = s.len() - s.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = s.split_at(digits);
    let unit_bytes = match unit.trim().trim_end_matches("iB") {
        "M" => MIB,
        "G" => MIB << 10,
        "T" => MIB << 20,
        _ => return Err("expected a whole number and M, G or T (binary), such as \"20G\"".to_owned()),
    };
    let n: u64 = number
        .parse()
        .map_err(|_| "expected a number first, such as \"20G\"".to_owned())?;
    n.checked_mul(unit_bytes)
        .filter(|b| *b > 0 && *b <= MIB << 24)
        .ok_or_else(|| "out of range".to_owned())
}
