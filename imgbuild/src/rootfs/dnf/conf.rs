//! dnf's own configuration for one build: text (pure) and the directory that holds it.

use super::io;
use super::repofile;
use crate::error::{BuildError, Kind, Result};
use crate::recipe::{Recipe, Repo, RepoSource, Trust};
use crate::rootfs::write_new;
use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};

/// Where the image keeps its package database: below /usr, so that a persistent /var cannot hide it.
pub(super) const DB_PATH: &str = "/usr/lib/sysimage/rpm";

/// Short, plain names for directories whose paths dnf cannot quote: it takes `$` for a variable, splits at blanks and does not
/// decode `%20` in local URLs. The names go through our own open directories and last as long as this value.
#[derive(Debug, Default)]
pub(super) struct Aliases(RefCell<Vec<OwnedFd>>);

impl Aliases {
    /// `dir` itself where it is plain, else an alias.
    fn plain(&self, dir: &Utf8Path) -> Result<Utf8PathBuf> {
        if is_plain(dir.as_str()) {
            return Ok(dir.to_owned());
        }
        let fd = rustix::fs::open(
            dir.as_str(),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| io(&format!("cannot open {dir}"), &e.into()))?;
        // We are PID 1 of the namespace in which dnf runs.
        let alias = format!("/proc/1/fd/{}", fd.as_raw_fd());
        self.0.borrow_mut().push(fd);
        Ok(alias.into())
    }
}

fn is_plain(path: &str) -> bool {
    path.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"/._+-:@~".contains(&b))
}

/// One repository as dnf will see it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    id: String,
    settings: Vec<(String, String)>,
    /// URL of the key; none = signatures are not checked.
    key: Option<String>,
}

/// Writes configuration, keys and rpm macros below `dir`; returns the path of the configuration file.
pub(super) fn prepare(
    recipe: &Recipe,
    repos: &[Repo],
    dir: &Utf8Path,
    aliases: &Aliases,
) -> Result<Utf8PathBuf> {
    for sub in ["state/cache", "state/log", "state/persist", "home", "keys"] {
        let at = dir.join(sub);
        fs_err::create_dir_all(&at).map_err(|e| io("cannot prepare dnf", &e))?;
    }
    let keys = aliases.plain(&dir.join("keys"))?;
    let mut entries = Vec::new();
    for (number, repo) in repos.iter().enumerate() {
        let key = match &repo.trust {
            Trust::AllowUnsigned => None,
            Trust::Key(path) => {
                let name = format!("{number}.asc");
                write_new(&dir.join("keys").join(&name), &read_key(repo, path)?, 0o644)?;
                Some(format!("file://{keys}/{name}"))
            }
        };
        for (id, settings) in locations(repo, aliases)? {
            entries.push(Entry {
                id,
                settings,
                key: key.clone(),
            });
        }
    }
    check(recipe, &entries)?;
    write_new(&dir.join("home/.rpmmacros"), macros().as_bytes(), 0o644)?;
    let file = dir.join("dnf.conf");
    write_new(&file, text(&entries).as_bytes(), 0o644)?;
    Ok(file)
}

fn read_key(repo: &Repo, path: &Utf8Path) -> Result<Vec<u8>> {
    let fail = |what: &str| {
        BuildError::new(
            Kind::Input,
            "SIG002",
            format!("repo {:?}: key {path}: {what}", repo.id),
        )
    };
    let bytes = fs_err::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => fail("not found"),
        _ => fail(&e.to_string()),
    })?;
    let marker = b"-----BEGIN PGP PUBLIC KEY BLOCK-----";
    if bytes.windows(marker.len()).any(|w| w == marker) {
        Ok(bytes)
    } else {
        Err(fail(
            "expected an ASCII-armoured OpenPGP public key (gpg --armor --export KEY)",
        ))
    }
}

type Location = (String, Vec<(String, String)>);

fn locations(repo: &Repo, aliases: &Aliases) -> Result<Vec<Location>> {
    let fail = |message: String| BuildError::new(Kind::Input, "REPO001", message);
    match &repo.source {
        RepoSource::Url(url) => {
            let url = match local_path(url) {
                Some(path) if !path.is_dir() => {
                    return Err(BuildError::new(
                        Kind::Build,
                        "REPO002",
                        format!("repo {:?}: {path}: no such directory", repo.id),
                    ));
                }
                Some(path) => {
                    let path = path
                        .canonicalize_utf8()
                        .map_err(|e| io(&format!("cannot open {path}"), &e))?;
                    format!("file://{}", aliases.plain(&path)?)
                }
                None => url.clone(),
            };
            Ok(vec![(repo.id.clone(), vec![("baseurl".to_owned(), url)])])
        }
        RepoSource::RepoFile(path) => {
            let text = fs_err::read_to_string(path).map_err(|e| fail(format!("{path}: {e}")))?;
            let sections = repofile::parse(&text).map_err(|what| fail(format!("{path}: {what}")))?;
            Ok(sections.into_iter().map(|s| (s.id, s.settings)).collect())
        }
    }
}

/// The path of a directory, or of a `file://` URL, percent-decoded.
fn local_path(url: &str) -> Option<Utf8PathBuf> {
    if !url.contains("://") {
        return Some(url.into());
    }
    let rest = url.strip_prefix("file://")?;
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&b) = rest.as_bytes().get(at) {
        let hex = rest
            .get(at + 1..at + 3)
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (b, hex) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                at += 3;
            }
            _ => {
                bytes.push(b);
                at += 1;
            }
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned().into())
}

fn check(recipe: &Recipe, entries: &[Entry]) -> Result<()> {
    let mut errors = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        if entries[..i].iter().any(|e| e.id == entry.id) {
            errors.push(format!(
                "{}: two repositories have the id {:?}; ids must differ",
                recipe.file, entry.id
            ));
        }
        for (key, value) in &entry.settings {
            if value.contains("$releasever") || value.contains("${releasever}") {
                errors.push(format!(
                    "repo {:?}: {key} {value:?} contains $releasever; write the release itself, so that the image does not depend on the host",
                    entry.id
                ));
            }
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(BuildError::new(Kind::Input, "REPO001", errors.join("\n")))
    }
}

/// The text of `.rpmmacros`.
fn macros() -> String {
    // /proc, /sys and /dev are ours while packages are installed: rpm leaves what lies below them alone.
    format!("%_dbpath {DB_PATH}\n%_netsharedpath /proc:/sys:/dev\n%_pkgverify_level digest\n%_flush_io 0\n")
}

/// The text of `dnf.conf`. Directories of dnf lie below the root that is being built; those for additional settings
/// do not exist, so that neither the host's nor the image's are read.
fn text(entries: &[Entry]) -> String {
    let mut out = String::from(
        "[main]\n\
         cachedir=/.dnf/cache\n\
         logdir=/.dnf/log\n\
         persistdir=/.dnf/persist\n\
         reposdir=/nonexistent\n\
         varsdir=/nonexistent\n\
         pluginpath=/nonexistent\n\
         pluginconfpath=/nonexistent\n\
         plugins=0\n\
         gpgcheck=1\n\
         localpkg_gpgcheck=1\n\
         repo_gpgcheck=0\n\
         install_weak_deps=0\n\
         best=1\n\
         strict=1\n\
         skip_if_unavailable=0\n\
         check_config_file_age=0\n\
         keepcache=1\n\
         metadata_expire=-1\n\
         zchunk=0\n\
         color=never\n\
         obsoletes=1\n\
         retries=5\n\
         timeout=20\n\
         errorlevel=3\n",
    );
    for entry in entries {
        let _ = writeln!(out, "[{}]\nname={}\nenabled=1", entry.id, entry.id);
        for (key, value) in &entry.settings {
            let _ = writeln!(out, "{key}={value}");
        }
        match &entry.key {
            Some(url) => {
                let _ = writeln!(out, "gpgcheck=1\ngpgkey={url}");
            }
            None => out.push_str("gpgcheck=0\n"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names() {
        assert!(is_plain("/work/out-1.0/repo"));
        for path in ["/dir with blank", "/a$x", "/it's", "/\u{fc}", "/a%20b", "/a,b"] {
            assert!(!is_plain(path), "{path}");
        }
    }

    #[test]
    fn local_urls_are_decoded() {
        let path = |url| local_path(url).map(|p| p.to_string());
        assert_eq!(path("file:///a%20b/%24x%").as_deref(), Some("/a b/$x%"));
        assert_eq!(path("file:///\u{fc}").as_deref(), Some("/\u{fc}"));
        assert_eq!(path("repos/a%20b").as_deref(), Some("repos/a%20b"));
        assert_eq!(path("http://h/p"), None);
    }

    #[test]
    fn one_key_for_each_repository() {
        let entry = |id: &str, key: Option<&str>| Entry {
            id: id.to_owned(),
            settings: vec![("baseurl".to_owned(), "http://h/".to_owned())],
            key: key.map(str::to_owned),
        };
        let text = text(&[entry("a", Some("file:///k/0.asc")), entry("b", None)]);
        assert!(text.ends_with(
            "[a]\nname=a\nenabled=1\nbaseurl=http://h/\ngpgcheck=1\ngpgkey=file:///k/0.asc\n\
             [b]\nname=b\nenabled=1\nbaseurl=http://h/\ngpgcheck=0\n"
        ));
    }
}
