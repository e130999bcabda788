//! The content-addressed store of bundles: installed whole or not at all, verified before every run, the last three kept.

use crate::bundle::{self, Bundle};
use crate::dirs::Dirs;
use crate::error::{Result, StepsError};
use crate::sys::{atomic, child};
use camino::{Utf8Path, Utf8PathBuf};
use std::time::Duration;

/// A bundle that is being written; what is left of a killed writer is replaced.
const NEW: &str = ".new";
/// A bundle that is being removed: half of one must not be found under its hash.
const OLD: &str = ".old";
/// How many bundles are kept.
const KEEP: usize = 3;

/// bash, by absolute path.
///
/// # Errors
/// When there is none.
pub fn bash() -> Result<&'static str> {
    ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"]
        .into_iter()
        .find(|p| Utf8Path::new(p).exists())
        .ok_or_else(|| {
            StepsError::new(
                os_proto::codes::Code::Internal,
                "there is no /bin/bash: steps are bash and need it in the image",
            )
        })
}

/// Directory of a stored bundle.
pub fn dir(dirs: &Dirs, hash: &str) -> Utf8PathBuf {
    dirs.bundles().join(hash)
}

/// Puts a bundle into the store: written beside, every step through `bash -n`, synced, renamed. One that is there already is
/// left alone.
///
/// # Errors
/// `BundleInvalid` with every syntax error; `StateWriteFailed`. Nothing is left behind then.
pub fn install(dirs: &Dirs, b: &Bundle) -> Result<Utf8PathBuf> {
    let to = dir(dirs, &b.manifest.content_hash);
    if to.join("manifest.json").exists() {
        return Ok(to);
    }
    let tmp = dirs.bundles().join(NEW);
    let _ = std::fs::remove_dir_all(&tmp);
    let result = fill(&tmp, b).and_then(|()| atomic::rename(&tmp, &to));
    if result.is_err() {
        let _ = std::fs::remove_dir_all(&tmp);
    }
    result.map(|()| to)
}

fn fill(tmp: &Utf8Path, b: &Bundle) -> Result<()> {
    let steps = tmp.join("steps");
    atomic::private_dir(&steps)?;
    atomic::private_dir(&tmp.join("lib"))?;
    atomic::create(&tmp.join("lib/bb.sh"), &b.lib)?;
    for (s, data) in b.manifest.steps.iter().zip(&b.steps) {
        atomic::create(&steps.join(&s.name), data)?;
    }
    syntax(&steps, b)?;
    let text = serde_json::to_vec_pretty(&b.manifest)
        .map_err(|e| StepsError::new(os_proto::codes::Code::Internal, format!("manifest.json: {e}")))?;
    atomic::create(&tmp.join("manifest.json"), &text)?;
    for d in [&steps, &tmp.join("lib"), &tmp.to_owned()] {
        atomic::sync_dir(d)?;
    }
    Ok(())
}

/// `bash -n` over every step.
fn syntax(steps: &Utf8Path, b: &Bundle) -> Result<()> {
    let bash = bash()?;
    // The shell is started elsewhere.
    let steps = &camino::absolute_utf8(steps).map_err(|e| StepsError::io(steps, &e))?;
    let mut faults = Vec::new();
    for s in &b.manifest.steps {
        let path = steps.join(&s.name);
        let args = ["--noprofile", "--norc", "-n", path.as_str()];
        match child::helper(bash, &args, Duration::from_secs(30)) {
            Ok((true, _)) => {}
            Ok((false, text)) => {
                let text = text.replace(&format!("{steps}/"), "");
                faults.push(format!("step {}: not bash: {text}", s.name));
            }
            Err(e) => return Err(StepsError::new(os_proto::codes::Code::Internal, e)),
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(StepsError::bundle(faults.join("; ")))
}

/// Writes a bundle as a directory of its own: whole or not at all.
///
/// # Errors
/// `InvalidArgument` where `to` exists; `BundleInvalid` with every syntax error; `StateWriteFailed`.
pub fn export(b: &Bundle, to: &Utf8Path) -> Result<()> {
    if to.exists() {
        return Err(StepsError::new(
            os_proto::codes::Code::InvalidArgument,
            format!("{to}: exists; expected a name that is free"),
        ));
    }
    let name = to.file_name().unwrap_or("bundle");
    let parent = to
        .parent()
        .filter(|p| !p.as_str().is_empty())
        .unwrap_or(Utf8Path::new("."));
    let tmp = parent.join(format!(".{name}.tmp"));
    let _ = std::fs::remove_dir_all(&tmp);
    let result = fill(&tmp, b).and_then(|()| atomic::rename(&tmp, &parent.join(name)));
    if result.is_err() {
        let _ = std::fs::remove_dir_all(&tmp);
    }
    result
}

/// Loads a stored bundle and verifies every file of it against its hash.
///
/// # Errors
/// `BundleInvalid` when anything differs.
pub fn load(dirs: &Dirs, hash: &str) -> Result<Bundle> {
    let d = dir(dirs, hash);
    let b = bundle::load(&d)
        .map_err(|e| StepsError::new(e.code, format!("stored bundle {hash}: {}", e.message)))?;
    if b.manifest.content_hash != hash {
        return Err(StepsError::bundle(format!(
            "stored bundle {hash}: its content hashes to {}",
            b.manifest.content_hash
        )));
    }
    Ok(b)
}

/// Removes bundles beyond the newest three, never one of `needed`.
pub fn prune(dirs: &Dirs, needed: &[&str]) {
    let old = dirs.bundles().join(OLD);
    let _ = std::fs::remove_dir_all(&old);
    let mut all: Vec<(std::time::SystemTime, Utf8PathBuf)> = dirs
        .bundles()
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| !needed.contains(&e.file_name()) && !e.file_name().starts_with('.'))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path().to_owned())))
        .collect();
    all.sort();
    let spare = all.len().saturating_sub(KEEP.saturating_sub(needed.len()));
    for (_, path) in all.into_iter().take(spare) {
        if atomic::rename(&path, &old).is_ok() {
            let _ = std::fs::remove_dir_all(&old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Place, text_bundle};

    #[test]
    fn stored_whole_private_and_verified_before_every_use() {
        use std::os::unix::fs::PermissionsExt;
        let p = Place::new();
        let b = text_bundle(&[("000_a.sh", "true\n")]);
        let d = install(&p.dirs, &b).unwrap();
        assert_eq!(install(&p.dirs, &b).unwrap(), d);
        let hash = &b.manifest.content_hash;
        assert_eq!(load(&p.dirs, hash).unwrap().manifest, b.manifest);
        let step = d.join("steps/000_a.sh");
        assert_eq!(step.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&step, "false\n").unwrap();
        let e = load(&p.dirs, hash).unwrap_err();
        assert_eq!(e.code, os_proto::codes::Code::BundleInvalid);
        assert!(e.message.contains("000_a.sh"), "{e}");
    }

    #[test]
    fn a_syntax_error_is_refused_with_its_line_and_leaves_nothing() {
        let p = Place::new();
        let b = text_bundle(&[
            ("000_a.sh", "true\n"),
            ("010_b.sh", "if true; then\n"),
            ("020_c.sh", "echo )\n"),
        ]);
        let e = install(&p.dirs, &b).unwrap_err().message;
        assert!(e.contains("step 010_b.sh: not bash: 010_b.sh: line "), "{e}");
        assert!(e.contains("step 020_c.sh"), "{e}");
        assert_eq!(std::fs::read_dir(p.dirs.bundles()).unwrap().count(), 0);
    }

    #[test]
    fn a_leftover_of_a_killed_install_is_replaced() {
        let p = Place::new();
        std::fs::create_dir_all(p.dirs.bundles().join(".new/steps")).unwrap();
        std::fs::write(p.dirs.bundles().join(".new/steps/000_a.sh"), "half").unwrap();
        let b = text_bundle(&[("000_a.sh", "true\n")]);
        install(&p.dirs, &b).unwrap();
        load(&p.dirs, &b.manifest.content_hash).unwrap();
    }

    #[test]
    fn three_are_kept_and_those_in_use_always() {
        let p = Place::new();
        let mut hashes = Vec::new();
        for i in 0..5 {
            let b = text_bundle(&[("000_a.sh", &format!("echo {i}\n"))]);
            install(&p.dirs, &b).unwrap();
            hashes.push(b.manifest.content_hash);
        }
        prune(&p.dirs, &[&hashes[0]]);
        assert_eq!(std::fs::read_dir(p.dirs.bundles()).unwrap().count(), 3);
        load(&p.dirs, &hashes[0]).unwrap();
    }
}
