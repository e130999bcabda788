//! What a root tree says it is: os-release.

use crate::error::{BuildError, Result};
use camino::Utf8Path;

/// VERSION_ID and PRETTY_NAME of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// VERSION_ID.
    pub version: String,
    /// PRETTY_NAME, what Kubernetes shows as the node's OS image.
    pub pretty_name: String,
}

/// Reads a tree's identity; none where it has no os-release, or one without both keys.
///
/// # Errors
/// IO001 when the file is there and cannot be read.
pub fn of_tree(root: &Utf8Path) -> Result<Option<Identity>> {
    for path in ["usr/lib/os-release", "etc/os-release"] {
        let path = root.join(path);
        // A link may be absolute, and would then lead out of the tree.
        let is_file = fs_err::symlink_metadata(&path).is_ok_and(|m| m.is_file());
        if !is_file {
            continue;
        }
        let bytes = fs_err::read(&path).map_err(|e| BuildError::io(format!("reading {path}"), &e))?;
        return Ok(parse(&String::from_utf8_lossy(&bytes)));
    }
    Ok(None)
}

/// Reads os-release text (os-release(5)): the last assignment of a key wins, quotes are removed.
pub fn parse(text: &str) -> Option<Identity> {
    let value = |key: &str| {
        let line = text
            .lines()
            .rev()
            .find_map(|l| l.trim().strip_prefix(key)?.strip_prefix('='))?;
        Some(unquote(line.trim()))
    };
    Some(Identity {
        version: value("VERSION_ID")?,
        pretty_name: value("PRETTY_NAME")?,
    })
}

fn unquote(s: &str) -> String {
    let inner = ['"', '\'']
        .iter()
        .find_map(|q| s.strip_prefix(*q)?.strip_suffix(*q))
        .unwrap_or(s);
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' {
            chars.next().unwrap_or('\\')
        } else {
            c
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_os_release_allows() {
        let id =
            parse("# c\nPRETTY_NAME='Old'\nVERSION_ID=1\nPRETTY_NAME=\"A \\\"B\\\" 2\"\nVERSION_ID=\"2\"\n")
                .unwrap();
        assert_eq!((id.version.as_str(), id.pretty_name.as_str()), ("2", "A \"B\" 2"));
        assert_eq!(parse("PRETTY_NAME=x\n"), None);
    }
}
