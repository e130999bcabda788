//! `from = "tree"`: a directory as the root, never changed. Where files must be added, a copy is made first.

use crate::cmd::Cmd;
use crate::error::Result;
use crate::recipe::{Loader, Recipe};
use camino::Utf8Path;

/// Whether a build of this recipe adds anything to the root, so that a tree of the user must be copied first.
pub fn needs_copy(recipe: &Recipe) -> bool {
    recipe.boot.loader == Loader::Grub
        || recipe.agent.is_some()
        || recipe.trial_deadline_secs.is_some()
        || !recipe.files.is_empty()
        || !recipe.users.is_empty()
        || !recipe.units.enable.is_empty()
        || !recipe.units.disable.is_empty()
}

/// Copies a tree with owners, times, hard links, holes and extended attributes; mounts below it are not entered.
///
/// # Errors
/// CMD001 with what `cp` could not copy, IO028 when the disk is full.
pub fn copy(tree: &Utf8Path, root: &Utf8Path) -> Result<()> {
    Cmd::new("cp")
        .args([
            "-a",
            "--one-file-system",
            "--reflink=auto",
            "--sparse=auto",
            "-T",
            "--",
        ])
        .arg(tree)
        .arg(root)
        .run()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_a_recipe_that_adds_something_needs_a_copy() {
        let base = "version=\"1\"\n[rootfs]\nfrom=\"tree\"\ntree=\"t\"\n[boot]\nloader=\"none\"\n";
        let needs =
            |extra: &str| needs_copy(&Recipe::parse(&format!("{base}{extra}"), "r.toml".into()).unwrap());
        assert!(!needs(""));
        assert!(needs("[agent]\npath=\"a\"\n"));
        assert!(needs("[units]\nenable=[\"a\"]\n"));
        assert!(needs("[[files]]\ntext=\"\"\ndst=\"/a\"\n"));
        assert!(needs("[trial]\ndeadline_secs=99\n"));
    }

    #[test]
    fn a_copy_keeps_hard_links_and_leaves_the_original() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let (from, to) = (dir.join("a b"), dir.join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("x"), "1").unwrap();
        std::fs::hard_link(from.join("x"), from.join("y")).unwrap();
        std::fs::create_dir(&to).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(std::fs::metadata(to.join("x")).unwrap().nlink(), 2);
    }
}
