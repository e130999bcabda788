//! The content-addressed store of bundles: installed whole or not at all, verified before every run, the last three kept.

use crate::bundle::{self, Bundle};
use crate::dirs::Dirs;
use crate::error::{Result, StepsError};
use crate::sys::{atomic, child};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
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
                Code::Internal,
                "there is no /bin/bash: steps are bash and need it in the image",
            )
        })
}

/// Directory of a stored bundle.
pub fn dir(dirs: &Dirs, hash: &str) -> Utf8PathBuf {
    dirs.bundles().join(hash)
}

/// Puts a bundle into the store: written beside, every step through `bash -n`, synced, renamed. One that is there already and
/// whole is left alone; one that was damaged is written anew, as `b` is the same content and intact. Gives what is stored,
/// read back and verified.
///
/// # Errors
/// `BundleInvalid` with every syntax error; `StateWriteFailed`. Nothing is left behind then, and what was there stays.
pub fn take(dirs: &Dirs, b: &Bundle) -> Result<Bundle> {
    let hash = &b.manifest.content_hash;
    let to = dir(dirs, hash);
    let damaged = if to.symlink_metadata().is_ok() {
        match load(dirs, hash) {
            Ok(stored) => return Ok(stored),
            Err(e) => Some(e),
        }
    } else {
        None
    };
    let tmp = dirs.bundles().join(NEW);
    remove(&tmp)?;
    let result = fill(&tmp, b).and_then(|()| {
        if let Some(e) = &damaged {
            tracing::warn!("{}; it is written anew from its source", e.message);
            let old = dirs.bundles().join(OLD);
            remove(&old)?;
            atomic::rename(&to, &old)?;
        }
        atomic::rename(&tmp, &to)
    });
    let _ = remove(&tmp);
    if damaged.is_some() {
        let _ = remove(&dirs.bundles().join(OLD));
    }
    result?;
    load(dirs, hash)
}

/// Removes whatever is at `path`; its absence is fine.
fn remove(path: &Utf8Path) -> Result<()> {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(m) if m.is_dir() => std::fs::remove_dir_all(path).map_err(|e| StepsError::io(path, &e)),
        Ok(_) => atomic::remove(path),
    }
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
        .map_err(|e| StepsError::new(Code::Internal, format!("manifest.json: {e}")))?;
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
            Err(e) => return Err(StepsError::new(Code::Internal, e)),
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
            Code::InvalidArgument,
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

/// Fewest digits by which people may name a stored bundle; [`crate::plan::short`] prints so many.
pub const LEAST_DIGITS: usize = 12;

/// Whether a text can only be the hash of a bundle or the beginning of one.
pub fn is_hash(text: &str) -> bool {
    (LEAST_DIGITS..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether what a person wrote names the content `hash`.
///
/// # Errors
/// `InvalidArgument` when it is not at least [`LEAST_DIGITS`] hex digits.
pub fn names(text: &str, hash: &str) -> Result<bool> {
    if !is_hash(text) {
        return Err(StepsError::new(
            Code::InvalidArgument,
            format!(
                "{text:?}: expected the hash of a bundle, or at least its first {LEAST_DIGITS} hex digits"
            ),
        ));
    }
    Ok(hash.starts_with(&text.to_ascii_lowercase()))
}

/// The whole hash of the one stored bundle that `text`, a hash or its beginning, names.
///
/// # Errors
/// `InvalidArgument` when it is none, when no bundle is stored under it, or several are.
pub fn resolve(dirs: &Dirs, text: &str) -> Result<String> {
    let mut all = stored(dirs);
    all.sort();
    let mut fit = Vec::new();
    for hash in &all {
        if names(text, hash)? {
            fit.push(hash.as_str());
        }
    }
    let fail = |m: String| Err(StepsError::new(Code::InvalidArgument, m));
    match fit.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => {
            names(text, "")?;
            let have: Vec<&str> = all.iter().map(|h| crate::plan::short(h)).collect();
            let have = if have.is_empty() {
                "none".to_owned()
            } else {
                have.join(", ")
            };
            fail(format!(
                "no stored bundle has the hash {text}; stored in {}: {have}",
                dirs.bundles()
            ))
        }
        many => fail(format!(
            "{text}: {} stored bundles begin with it: {}; give more digits",
            many.len(),
            many.join(", ")
        )),
    }
}

/// Hashes of what is stored.
fn stored(dirs: &Dirs) -> Vec<String> {
    dirs.bundles()
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_owned())
        .filter(|n| n.len() == 64 && is_hash(n))
        .collect()
}

/// Loads a stored bundle by its whole hash and verifies every file of it.
///
/// # Errors
/// `InvalidArgument` when there is none; `BundleInvalid` when anything differs.
pub fn load(dirs: &Dirs, hash: &str) -> Result<Bundle> {
    let d = dir(dirs, hash);
    if d.symlink_metadata().is_err() {
        return Err(StepsError::new(
            Code::InvalidArgument,
            format!("no stored bundle has the hash {hash}"),
        ));
    }
    let damaged = |what: String| {
        StepsError::bundle(format!(
            "stored bundle {hash} is damaged: {what}; a run from its source (directory, archive, URL) writes it anew"
        ))
    };
    let b = bundle::load(&d).map_err(|e| damaged(e.message))?;
    if b.manifest.content_hash != hash {
        return Err(damaged(format!(
            "its content hashes to {}",
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
        let hash = &b.manifest.content_hash;
        let d = dir(&p.dirs, hash);
        for _ in 0..2 {
            assert_eq!(take(&p.dirs, &b).unwrap().manifest, b.manifest);
        }
        assert_eq!(load(&p.dirs, hash).unwrap().manifest, b.manifest);
        let step = d.join("steps/000_a.sh");
        assert_eq!(step.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&step, "false\n").unwrap();
        let e = load(&p.dirs, hash).unwrap_err();
        assert_eq!(e.code, Code::BundleInvalid);
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
        let e = take(&p.dirs, &b).unwrap_err().message;
        assert!(e.contains("step 010_b.sh: not bash: 010_b.sh: line "), "{e}");
        assert!(e.contains("step 020_c.sh"), "{e}");
        assert_eq!(std::fs::read_dir(p.dirs.bundles()).unwrap().count(), 0);
    }

    #[test]
    fn whatever_was_damaged_is_written_anew_from_the_source() {
        let p = Place::new();
        let b = text_bundle(&[("000_a.sh", "true\n"), ("010_b.sh", ":\n")]);
        let hash = &b.manifest.content_hash;
        let d = dir(&p.dirs, hash);
        type Harm = fn(&Utf8Path);
        let harms: [Harm; 7] = [
            |d| std::fs::write(d.join("steps/000_a.sh"), "false\n").unwrap(),
            |d| std::fs::write(d.join("steps/000_a.sh"), "").unwrap(),
            |d| std::fs::remove_file(d.join("steps/010_b.sh")).unwrap(),
            |d| std::fs::write(d.join("steps/020_c.sh"), ":\n").unwrap(),
            |d| std::fs::write(d.join("manifest.json"), "{").unwrap(),
            |d| std::fs::write(d.join("lib/bb.sh"), ":\n").unwrap(),
            |d| {
                std::fs::remove_dir_all(d).unwrap();
                std::fs::write(d, "a file").unwrap();
            },
        ];
        for (i, harm) in harms.into_iter().enumerate() {
            take(&p.dirs, &b).unwrap();
            harm(&d);
            let e = load(&p.dirs, hash).unwrap_err();
            assert_eq!(e.code, Code::BundleInvalid, "{i}: {e}");
            assert!(
                e.message.contains("damaged") && e.message.contains("source"),
                "{i}: {e}"
            );
            assert_eq!(take(&p.dirs, &b).unwrap().steps, b.steps, "{i}");
            load(&p.dirs, hash).unwrap();
            assert_eq!(std::fs::read_dir(p.dirs.bundles()).unwrap().count(), 1, "{i}");
        }
    }

    #[test]
    fn a_hash_may_be_named_by_its_first_digits() {
        let p = Place::new();
        let (a, b) = (
            format!("{}{}", "a".repeat(20), "0".repeat(44)),
            format!("{}{}", "a".repeat(20), "1".repeat(44)),
        );
        let c = "c".repeat(64);
        for h in [&a, &b, &c] {
            std::fs::create_dir(p.dirs.bundles().join(h)).unwrap();
        }
        assert_eq!(resolve(&p.dirs, &c[..12]).unwrap(), c);
        assert_eq!(resolve(&p.dirs, &c.to_uppercase()).unwrap(), c);
        assert_eq!(resolve(&p.dirs, &a[..21]).unwrap(), a);
        for (text, part) in [
            (&a[..20], "2 stored bundles begin with it"),
            (&c[..11], "at least its first 12"),
            ("cccccccccccx", "at least its first 12"),
            ("000000000000", "stored in"),
        ] {
            let e = resolve(&p.dirs, text).unwrap_err();
            assert_eq!(e.code, Code::InvalidArgument);
            assert!(e.message.contains(part) && e.message.contains(text), "{e}");
        }
        assert!(
            resolve(&p.dirs, "000000000000")
                .unwrap_err()
                .message
                .contains("aaaaaaaaaaaa, aaaaaaaaaaaa, cccccccccccc")
        );
    }

    #[test]
    fn a_leftover_of_a_killed_install_is_replaced() {
        let p = Place::new();
        std::fs::create_dir_all(p.dirs.bundles().join(".new/steps")).unwrap();
        std::fs::write(p.dirs.bundles().join(".new/steps/000_a.sh"), "half").unwrap();
        let b = text_bundle(&[("000_a.sh", "true\n")]);
        take(&p.dirs, &b).unwrap();
        load(&p.dirs, &b.manifest.content_hash).unwrap();
    }

    #[test]
    fn three_are_kept_and_those_in_use_always() {
        let p = Place::new();
        let mut hashes = Vec::new();
        for i in 0..5 {
            let b = text_bundle(&[("000_a.sh", &format!("echo {i}\n"))]);
            take(&p.dirs, &b).unwrap();
            hashes.push(b.manifest.content_hash);
        }
        prune(&p.dirs, &[&hashes[0]]);
        assert_eq!(std::fs::read_dir(p.dirs.bundles()).unwrap().count(), 3);
        load(&p.dirs, &hashes[0]).unwrap();
    }
}
