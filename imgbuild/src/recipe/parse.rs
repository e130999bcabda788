//! Text → [`Recipe`], pure.

use super::reader::{At, Reader, Table};
use super::{Boot, DEFAULT_ESP_MIB, DEFAULT_SLOT_MIB, Disk, Loader, MIN_ESP_MIB, PathRef, Recipe, Want};
use crate::error::BuildError;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::layout::{Arch, MIB};
use os_proto::suggest;
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
        Recipe::parse_with_paths(text, file).0
    }

    /// As [`Recipe::parse`], and the files that the text names as far as it can be read.
    pub(super) fn parse_with_paths(
        text: &str,
        file: &Utf8Path,
    ) -> (Result<Recipe, Vec<BuildError>>, Vec<PathRef>) {
        let mut r = Reader::new(text, file.as_str());
        let doc = match DeTable::parse(text) {
            Ok(doc) => doc,
            Err(e) => {
                r.syntax(e.message(), e.span());
                return (Err(r.take_errors()), Vec::new());
            }
        };
        let mut p = Parser {
            r,
            file,
            paths: Vec::new(),
        };
        let result = match p.recipe(&Reader::root(doc.get_ref())) {
            Some(recipe) if p.r.error_count() == 0 => Ok(recipe),
            _ => Err(p.r.take_errors()),
        };
        (result, p.paths)
    }
}

/// Reads a recipe; the tables have files of their own.
pub(super) struct Parser<'t> {
    pub(super) r: Reader<'t>,
    pub(super) file: &'t Utf8Path,
    pub(super) paths: Vec<PathRef>,
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
            let url = self.r.string(&x, "image_url")?;
            if let Err(e) = crate::url::check(&url.value) {
                self.r
                    .error("CFG019", url.offset, format!("{} {:?}: {e}", url.key, url.value));
            }
            Some(url.value)
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
            paths: self.paths.clone(),
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
    pub(super) fn choice<T: Copy>(&mut self, t: &Table<'t>, key: &str, words: &[(&str, T)]) -> Option<T> {
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
    pub(super) fn path(&mut self, t: &Table<'t>, key: &str, want: Want) -> Option<Utf8PathBuf> {
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
                self.boot_arg(&a, arch);
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

    fn boot_arg(&mut self, a: &At<String>, arch: Arch) {
        if let Err(e) = crate::boot::image_args(arch, &[&a.value]) {
            self.r.error("CFG015", a.offset, format!("{}: {e}", a.key));
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
