//! Small bundles and directories for the tests of this crate.
#![allow(clippy::disallowed_methods)]

use crate::bundle::{Bundle, Files};
use crate::dirs::Dirs;
use camino::{Utf8Path, Utf8PathBuf};

/// A bundle of texts.
pub(crate) fn text_bundle(steps: &[(&str, &str)]) -> Bundle {
    let mut f = Files::default();
    for (n, t) in steps {
        f.add(&format!("steps/{n}"), t.as_bytes().to_vec()).unwrap();
    }
    f.check(None).unwrap()
}

/// A tar of these files, whatever their names.
pub(crate) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut b = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut h = tar::Header::new_gnu();
        h.set_size(data.len() as u64);
        h.set_mode(0o644);
        h.set_entry_type(tar::EntryType::Regular);
        // Written into the header directly: the crate itself refuses unsafe names.
        if let Some(to) = h.as_old_mut().name.get_mut(..name.len()) {
            to.copy_from_slice(name.as_bytes());
        }
        h.set_cksum();
        b.append(&h, *data).unwrap();
    }
    b.into_inner().unwrap()
}

/// Directories below a temporary root.
pub(crate) struct Place {
    _tmp: tempfile::TempDir,
    pub(crate) root: Utf8PathBuf,
    pub(crate) dirs: Dirs,
}

impl Place {
    pub(crate) fn new() -> Place {
        let tmp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(tmp.path()).unwrap().to_owned();
        let dirs = Dirs::new(&root.join("steps"), Some(&root));
        dirs.make_all().unwrap();
        Place {
            _tmp: tmp,
            root,
            dirs,
        }
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}
