//! Paths inside the tree: an absolute link in the tree points into the tree, never to the host.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use std::io;

/// Links in one path at most, like the kernel.
const MAX_LINKS: usize = 40;

/// Where `path` of the tree lies on the host, all links but the last component resolved. `..` stays below `root`.
/// Components that do not exist are taken as they are.
pub fn resolve(root: &Utf8Path, path: impl AsRef<Utf8Path>) -> io::Result<Utf8PathBuf> {
    walk(root, path.as_ref(), false)
}

/// The same, with a link in the last component followed too.
pub fn resolve_all(root: &Utf8Path, path: impl AsRef<Utf8Path>) -> io::Result<Utf8PathBuf> {
    walk(root, path.as_ref(), true)
}

fn walk(root: &Utf8Path, path: &Utf8Path, follow_last: bool) -> io::Result<Utf8PathBuf> {
    let mut todo: Vec<String> = components(path);
    todo.reverse();
    let mut at = Utf8PathBuf::new();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let here = root.join(&at).join(&name);
        let is_link = here.symlink_metadata().is_ok_and(|m| m.is_symlink());
        if !is_link || (todo.is_empty() && !follow_last) {
            at.push(name);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other(format!("{path}: too many links")));
        }
        let target = here.read_link_utf8()?;
        if target.is_absolute() {
            at = Utf8PathBuf::new();
        }
        todo.extend(components(&target).into_iter().rev());
    }
    Ok(root.join(at))
}

fn components(path: &Utf8Path) -> Vec<String> {
    path.components()
        .filter_map(|c| match c {
            Utf8Component::Normal(name) => Some(name.to_owned()),
            Utf8Component::ParentDir => Some("..".to_owned()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        fs_err::create_dir_all(root.join("usr/bin")).unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/usr", root.join("absolute")).unwrap();
        symlink("../../../../etc", root.join("usr/up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let at = |p: &str| resolve(root, p).unwrap().strip_prefix(root).unwrap().to_string();
        assert_eq!(at("/bin/sh"), "usr/bin/sh");
        assert_eq!(at("absolute/bin/sh"), "usr/bin/sh");
        assert_eq!(at("/usr/up/passwd"), "etc/passwd");
        assert_eq!(at("/../../x"), "x");
        assert_eq!(at("/bin"), "bin");
        assert_eq!(resolve_all(root, "/bin").unwrap(), root.join("usr/bin"));
        assert!(resolve(root, "/loop/x").is_err());
    }
}
