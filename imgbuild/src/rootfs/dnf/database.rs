//! The package database of the tree: what is installed, who should own its files, and a form that is the same every time.

use super::conf::DB_PATH;
use super::io;
use crate::cmd::Cmd;
use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Name.
    pub name: String,
    /// Epoch, 0 where the package has none.
    pub epoch: u32,
    /// Version.
    pub version: String,
    /// Release.
    pub release: String,
    /// Architecture, `noarch` included.
    pub arch: String,
    /// Id of the repository it came from.
    pub repo: String,
    /// SHA-256 of its header, which holds the digests of all its files; none for packages without.
    pub sha256: Option<String>,
    /// Key id of the signature in its header, lower-case hex; none = unsigned.
    pub signer: Option<String>,
}

impl Package {
    /// `name-[epoch:]version-release.arch`.
    pub fn nevra(&self) -> String {
        let epoch = match self.epoch {
            0 => String::new(),
            n => format!("{n}:"),
        };
        format!(
            "{}-{epoch}{}-{}.{}",
            self.name, self.version, self.release, self.arch
        )
    }
}

const FORMAT: &str = "%{NAME}\\t%|EPOCH?{%{EPOCH}}:{0}|\\t%{VERSION}\\t%{RELEASE}\\t%|ARCH?{%{ARCH}}:{-}|\\t%|SHA256HEADER?{%{SHA256HEADER}}:{}|\\t%|RSAHEADER?{%{RSAHEADER:pgpsig}}:{%|DSAHEADER?{%{DSAHEADER:pgpsig}}:{}|}|\\n";

type Origin = BTreeMap<(String, String), String>;

/// Lists what is installed.
pub(super) fn query(root: &Utf8Path, home: &Utf8Path, origin: &Origin) -> Result<Vec<Package>> {
    let database = root.join(&DB_PATH[1..]);
    let place = ["rpmdb.sqlite", "Packages.db", "Packages"];
    if !place.iter().any(|f| database.join(f).exists()) {
        return Err(BuildError::new(
            Kind::Build,
            "RPM005",
            format!(
                "no package database in {DB_PATH} after the installation; is the rpm of this host older than 4.16?"
            ),
        ));
    }
    let out = rpm(root, home).args(["-qa", "--qf", FORMAT]).run()?;
    Ok(parse(&out.stdout_text(), origin))
}

pub(super) fn rpm(root: &Utf8Path, home: &Utf8Path) -> Cmd<'static> {
    Cmd::new("rpm")
        .arg(format!("--root={root}"))
        .env("HOME", home.as_str())
        .env("RPM_FORCE_DEBIAN", "1")
}

fn parse(text: &str, origin: &Origin) -> Vec<Package> {
    let mut packages: Vec<Package> = text
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [name, epoch, version, release, arch, sha256, signature] = columns[..] else {
                return None;
            };
            // A key that a signature was checked with is kept in the database as a package without files.
            if name == "gpg-pubkey" {
                return None;
            }
            Some(Package {
                name: name.to_owned(),
                epoch: epoch.parse().unwrap_or(0),
                version: version.to_owned(),
                release: release.to_owned(),
                arch: arch.to_owned(),
                repo: origin
                    .get(&(name.to_owned(), arch.to_owned()))
                    .cloned()
                    .unwrap_or_default(),
                sha256: some(sha256),
                signer: key_id(signature),
            })
        })
        .collect();
    packages.sort();
    packages
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty() && text != "(none)").then(|| text.to_owned())
}

/// `RSA/SHA256, Thu 01 Jan 1970 00:00:00 AM UTC, Key ID 0123456789abcdef` → the id.
fn key_id(signature: &str) -> Option<String> {
    let (_, id) = signature.rsplit_once("Key ID ")?;
    some(&id.trim().to_ascii_lowercase())
}

/// Brings the database into one form: no write-ahead log, no lock, no shared memory.
pub(super) fn normalise(root: &Utf8Path) -> Result<()> {
    let dir = root.join(&DB_PATH[1..]);
    let wal = dir.join("rpmdb.sqlite-wal");
    if fs_err::metadata(&wal).is_ok_and(|m| m.len() > 0) {
        return Err(BuildError::new(
            Kind::Build,
            "RPM005",
            format!("{wal} still holds data: a program keeps the package database open"),
        ));
    }
    for name in [
        "rpmdb.sqlite-wal",
        "rpmdb.sqlite-shm",
        ".rpm.lock",
        "__db.001",
        "__db.002",
        "__db.003",
    ] {
        remove(&dir.join(name))?;
    }
    let database = dir.join("rpmdb.sqlite");
    if database.exists() {
        leave_wal_mode(&database).map_err(|e| io(&format!("cannot rewrite the head of {database}"), &e))?;
    }
    Ok(())
}

fn remove(path: &Utf8Path) -> Result<()> {
    match fs_err::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("cannot tidy the package database", &e)),
        _ => Ok(()),
    }
}

/// `PRAGMA journal_mode=DELETE` on a database whose log is empty: the write and read versions at offset 18 become 1
/// (<https://www.sqlite.org/fileformat2.html>, 1.3.3), so that a reader on a read-only root needs no log file.
fn leave_wal_mode(path: &Utf8Path) -> std::io::Result<()> {
    let mut file = fs_err::OpenOptions::new().read(true).write(true).open(path)?;
    let mut head = [0; 20];
    file.read_exact(&mut head)?;
    if head.starts_with(b"SQLite format 3\0") && head[18..20] == [2, 2] {
        file.seek(SeekFrom::Start(18))?;
        file.write_all(&[1, 1])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_and_sorted() {
        let origin = BTreeMap::from([(("b".to_owned(), "noarch".to_owned()), "fixture".to_owned())]);
        let text = "gpg-pubkey\t0\tab\tcd\t-\t\t\n\
                    b\t1\t2.0\t3\tnoarch\tff00\tRSA/SHA256, Tue Nov 14 22:13:20 2023, Key ID 00AB\n\
                    a\t0\t1\t1\tx86_64\t(none)\t\n";
        let got = parse(text, &origin);
        assert_eq!(
            got.iter().map(Package::nevra).collect::<Vec<_>>(),
            ["a-1-1.x86_64", "b-1:2.0-3.noarch"]
        );
        assert_eq!(got[1].signer.as_deref(), Some("00ab"));
        assert_eq!(got[1].repo, "fixture");
        assert_eq!(got[0].sha256, None);
    }
}
