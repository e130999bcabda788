//! Who owns packaged files. rpm gives a file to root when it does not know the owner yet, with a warning at most.

use super::database::rpm;
use super::io;
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::rootfs::{accounts, inroot};
use camino::Utf8Path;
use rustix::fs::{AtFlags, Gid, Mode, Uid, XattrFlags, chmod, chownat, lgetxattr, lsetxattr};
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

const FORMAT: &str = "[%{=NAME}\\t%{FILEUSERNAME}\\t%{FILEGROUPNAME}\\t%{FILEMODES:octal}\\t%{FILENAMES}\\n]";
const CAPABILITY: &str = "security.capability";

/// A packaged file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File<'a> {
    package: &'a str,
    user: &'a str,
    group: &'a str,
    mode: u32,
    path: &'a str,
}

/// Fails when a package wants a file to belong to somebody whom the image does not have. Where the owner came later than the
/// file (`warned`: `user x`, `group x`), the file is given to its owner now.
pub(super) fn settle(
    root: &Utf8Path,
    home: &Utf8Path,
    warned: &BTreeSet<String>,
    progress: &dyn Progress,
) -> Result<()> {
    let listing = rpm(root, home).args(["-qa", "--qf", FORMAT]).run()?.stdout_text();
    let (passwd, group) = (accounts::read(root, "passwd"), accounts::read(root, "group"));
    let unknown = unknown(&listing, &accounts::names(&passwd), &accounts::names(&group));
    if !unknown.is_empty() {
        return Err(BuildError::new(
            Kind::Build,
            "RPM008",
            format!(
                "{}\nthe file would belong to root; the package must create the owner before its files (%pre)",
                unknown.join("\n")
            ),
        ));
    }
    for file in late(&listing, warned) {
        let (Some(uid), Some(gid)) = (
            accounts::id_of(&passwd, file.user),
            accounts::id_of(&group, file.group),
        ) else {
            continue;
        };
        give(root, &file, uid, gid)
            .map_err(|e| io(&format!("cannot change the owner of {}", file.path), &e))?;
    }
    if !warned.is_empty() {
        let names: Vec<&str> = warned.iter().map(String::as_str).collect();
        progress.warning(
            "RPM009",
            &format!(
                "packages unpacked files before their owners existed ({}); the files were given to them afterwards",
                names.join(", ")
            ),
        );
    }
    Ok(())
}

fn parse(listing: &str) -> impl Iterator<Item = File<'_>> {
    listing.lines().filter_map(|line| {
        let columns: Vec<&str> = line.splitn(5, '\t').collect();
        let [package, user, group, mode, path] = columns[..] else {
            return None;
        };
        let mode = u32::from_str_radix(mode, 8).ok()?;
        Some(File {
            package,
            user,
            group,
            mode,
            path,
        })
    })
}

/// One line for each package and owner that does not exist.
fn unknown(listing: &str, users: &[&str], groups: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for file in parse(listing) {
        for (kind, name, known) in [("user", file.user, users), ("group", file.group, groups)] {
            if !known.contains(&name) && seen.insert((file.package, kind, name)) {
                found.push(format!(
                    "package {}: {} belongs to {kind} {name:?}, which the image does not have",
                    file.package, file.path
                ));
            }
        }
    }
    found
}

/// Files whose owner did not exist when they were unpacked.
fn late<'a>(listing: &'a str, warned: &BTreeSet<String>) -> Vec<File<'a>> {
    if warned.is_empty() {
        return Vec::new();
    }
    parse(listing)
        .filter(|f| {
            warned.contains(&format!("user {}", f.user)) || warned.contains(&format!("group {}", f.group))
        })
        .collect()
}

/// Changes owner, then mode and capability, which a change of owner takes away. A file that a scriptlet has given to
/// somebody else, removed or replaced by a link is left alone.
fn give(root: &Utf8Path, file: &File<'_>, uid: u32, gid: u32) -> std::io::Result<()> {
    let path = inroot::resolve(root, file.path)?;
    let Ok(meta) = fs_err::symlink_metadata(&path) else {
        return Ok(());
    };
    let kind = meta.file_type();
    let same_kind = meta.mode() & 0o170_000 == file.mode & 0o170_000;
    let untouched = (meta.uid() == 0 || meta.uid() == uid) && (meta.gid() == 0 || meta.gid() == gid);
    if !same_kind || !untouched || kind.is_socket() {
        return Ok(());
    }
    let mut capability = vec![0_u8; 64];
    let held = lgetxattr(path.as_str(), CAPABILITY, &mut capability).unwrap_or(0);
    chownat(
        rustix::fs::CWD,
        path.as_str(),
        Some(Uid::from_raw(uid)),
        Some(Gid::from_raw(gid)),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    if !kind.is_symlink() {
        chmod(path.as_str(), Mode::from_raw_mode(file.mode & 0o7777))?;
    }
    if held > 0 {
        lsetxattr(
            path.as_str(),
            CAPABILITY,
            &capability[..held],
            XattrFlags::empty(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str =
        "a\troot\troot\t100644\t/a\nb\tbob\troot\t104755\t/b\nb\tbob\tstaff\t100600\t/c d\n";

    #[test]
    fn an_owner_must_exist_at_the_end() {
        assert!(unknown(LISTING, &["root", "bob"], &["root", "staff"]).is_empty());
        assert_eq!(
            unknown(LISTING, &["root"], &["root", "staff"]),
            ["package b: /b belongs to user \"bob\", which the image does not have"]
        );
    }

    #[test]
    fn files_of_late_owners() {
        assert!(late(LISTING, &BTreeSet::new()).is_empty());
        let got = late(LISTING, &BTreeSet::from(["group staff".to_owned()]));
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].path, got[0].mode), ("/c d", 0o100_600));
        assert_eq!(late(LISTING, &BTreeSet::from(["user bob".to_owned()])).len(), 2);
    }
}
