//! Files of the running system: confined also behind symbolic links.

use crate::error::{AgentError, Result};
use crate::settings::{Model, confine};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;

/// Largest file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// The file behind a path, links followed; refused when they lead to something that the model may not change.
pub(super) fn locate(
    root: &Utf8Path,
    model: Model,
    path: &Utf8Path,
) -> std::result::Result<Utf8PathBuf, String> {
    let full = root.join(path.as_str().trim_start_matches('/'));
    let (Some(dir), Some(name)) = (full.parent(), full.file_name()) else {
        return Err(format!("{path} is no file"));
    };
    let dir = dir
        .canonicalize_utf8()
        .map_err(|e| format!("the directory of {path}: {e}"))?;
    let mut file = dir.join(name);
    if file.is_symlink() {
        file = file.canonicalize_utf8().map_err(|e| format!("{path}: {e}"))?;
    }
    let root = root.canonicalize_utf8().map_err(|e| format!("{root}: {e}"))?;
    let inside = file
        .strip_prefix(&root)
        .map_err(|_| format!("{path} is a link that leads to {file}"))?;
    confine::allowed(model, &format!("/{inside}")).map_err(|e| format!("{path} is a link: {e}"))?;
    Ok(file)
}

pub(super) fn read(file: &Utf8Path) -> std::result::Result<Option<Vec<u8>>, String> {
    match std::fs::metadata(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{file}: {e}")),
        Ok(m) if !m.is_file() => return Err(format!("{file} is no regular file")),
        Ok(m) if m.len() > MAX_BYTES => {
            return Err(format!("{file} has {} bytes, at most {MAX_BYTES}", m.len()));
        }
        Ok(_) => {}
    }
    std::fs::read(file).map(Some).map_err(|e| format!("{file}: {e}"))
}

pub(super) fn make_dir(dir: &Utf8Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| AgentError::new(Code::StateWriteFailed, format!("{dir}: {e}")))
}
