//! Which kernel an image has.

use super::inroot;
use crate::error::{BuildError, Kind, Result};
use camino::{Utf8Path, Utf8PathBuf};

/// The image's kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// As `uname -r` prints it; the directory below `/usr/lib/modules`.
    pub version: String,
    /// Its boot image, relative to the root.
    pub image: Utf8PathBuf,
}

/// The one kernel in `root`.
///
/// # Errors
/// `IMG001` where there is none, or more than one: an image boots one kernel, and it must be clear which.
pub fn only(root: &Utf8Path) -> Result<Kernel> {
    let mut found: Vec<Kernel> = versions(root)
        .into_iter()
        .filter_map(|version| {
            let image = image_of(root, &version)?;
            Some(Kernel { version, image })
        })
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(kernel), true) => Ok(kernel),
        (None, _) => Err(BuildError::new(
            Kind::Build,
            "IMG001",
            "no kernel installed: expected /boot/vmlinuz-VERSION and /usr/lib/modules/VERSION; add a kernel package, or set [boot] loader = \"none\"",
        )),
        (Some(last), false) => {
            let mut names: Vec<&str> = found.iter().map(|k| k.version.as_str()).collect();
            names.push(&last.version);
            Err(BuildError::new(
                Kind::Build,
                "IMG001",
                format!(
                    "{} kernels installed: {}; name one of them with its version in [rootfs] packages",
                    names.len(),
                    names.join(", ")
                ),
            ))
        }
    }
}

/// Versions with modules, sorted.
pub(crate) fn versions(root: &Utf8Path) -> Vec<String> {
    let Ok(dir) = inroot::resolve_all(root, "usr/lib/modules") else {
        return Vec::new();
    };
    let Ok(entries) = dir.read_dir_utf8() else {
        return Vec::new();
    };
    let mut versions: Vec<String> = entries
        .filter_map(|e| e.ok())
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.file_name().to_owned())
        .collect();
    versions.sort();
    versions
}

fn image_of(root: &Utf8Path, version: &str) -> Option<Utf8PathBuf> {
    [
        format!("boot/vmlinuz-{version}"),
        format!("usr/lib/modules/{version}/vmlinuz"),
        format!("boot/Image-{version}"),
        format!("usr/lib/modules/{version}/Image"),
    ]
    .into_iter()
    .map(Utf8PathBuf::from)
    .find(|p| inroot::resolve_all(root, p).is_ok_and(|at| at.is_file()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn exactly_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert!(only(root).unwrap_err().message.starts_with("no kernel installed"));
        for v in ["6.1.0-1", "6.6.2"] {
            std::fs::create_dir_all(root.join("usr/lib/modules").join(v)).unwrap();
        }
        std::fs::create_dir_all(root.join("boot")).unwrap();
        std::fs::write(root.join("boot/vmlinuz-6.1.0-1"), "").unwrap();
        let kernel = only(root).unwrap();
        assert_eq!(
            (kernel.version.as_str(), kernel.image.as_str()),
            ("6.1.0-1", "boot/vmlinuz-6.1.0-1")
        );
        std::fs::write(root.join("usr/lib/modules/6.6.2/vmlinuz"), "").unwrap();
        let e = only(root).unwrap_err();
        assert!(
            e.message.starts_with("2 kernels installed: 6.1.0-1, 6.6.2;"),
            "{e}"
        );
    }
}
