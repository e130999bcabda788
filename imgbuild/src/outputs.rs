//! The output directory: one build at a time, one working directory beside it, results only by rename.
//!
//! `DIR` gets `PARENT/.NAME.imgbuild` as its working directory, on the same file system. That directory is also the lock
//! (flock on it), so that a killed build leaves nothing that must be unlocked: the next one takes the lock, empties the
//! directory and starts.

#![allow(clippy::disallowed_methods)] // the home of the builder's renames

mod remove;

use crate::error::{BuildError, Kind, Result};
use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Access, FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};

/// Names of all outputs in the order in which they appear; the list of checksums comes last.
pub const NAMES: [&str; 7] = [
    "system.img",
    "system.qcow2",
    "update.img",
    "packages.txt",
    "os.yaml",
    "build.json",
    "SHA256SUMS",
];

/// Who holds the lock, for the message that the others get.
const OWNER: &str = "owner";
/// Where finished files wait inside the working directory.
const READY: &str = "out";

/// Paths of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The output directory, absolute.
    pub out: Utf8PathBuf,
    /// The working directory.
    pub work: Utf8PathBuf,
    /// Where finished files wait.
    pub ready: Utf8PathBuf,
}

impl Paths {
    /// The paths for an output directory.
    ///
    /// # Errors
    /// CFG016 when `out` cannot be one.
    pub fn new(out: &Utf8Path) -> Result<Paths> {
        let bad = |what: &str| BuildError::new(Kind::Input, "CFG016", format!("--out {out:?}: {what}"));
        if out.as_str().trim().is_empty() {
            return Err(bad(
                "is empty; give a directory for the results (an unset variable?)",
            ));
        }
        let absolute = if out.is_absolute() {
            out.to_owned()
        } else {
            let here = std::env::current_dir().map_err(|e| bad(&e.to_string()))?;
            let here = Utf8PathBuf::from_path_buf(here)
                .map_err(|p| bad(&format!("{} is not UTF-8", p.display())))?;
            here.join(out)
        };
        let clean: Utf8PathBuf = absolute.components().collect();
        let (Some(parent), Some(name)) = (clean.parent(), clean.file_name()) else {
            return Err(bad("expected a directory that can be created"));
        };
        let work = parent.join(format!(".{name}.imgbuild"));
        Ok(Paths {
            ready: work.join(READY),
            work,
            out: clean,
        })
    }
}

/// The lock on an output directory, and its working directory, empty but for us.
#[derive(Debug)]
pub struct Lock {
    paths: Paths,
    _held: File,
}

impl Lock {
    /// Takes the lock; removes what a killed build left.
    ///
    /// # Errors
    /// LOCK001 while another build holds it; CFG016 when nothing can be created there; IO001 when the directory cannot be
    /// emptied.
    pub fn take(paths: &Paths) -> Result<Lock> {
        if paths.out.exists() && !paths.out.is_dir() {
            let m = format!("--out {}: expected a directory, found a file", paths.out);
            return Err(BuildError::new(Kind::Input, "CFG016", m));
        }
        if let Some(parent) = paths.work.parent() {
            fs_err::create_dir_all(parent).map_err(|e| no_place(paths, parent, &e))?;
        }
        // The results go there at the end only, which is too late to hear of it.
        if paths.out.exists() {
            rustix::fs::access(paths.out.as_str(), Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|e| no_place(paths, &paths.out, &e.into()))?;
        }
        // The holder before us removes the directory when it is done: then we locked one that has no name any more.
        for _ in 0..20 {
            if let Some(held) = try_lock(paths)? {
                remove::contents(&paths.work)?;
                let started = jiff::Timestamp::now();
                let owner = format!("pid {}, since {started:.0}\n", std::process::id());
                crate::files::write(&paths.work.join(OWNER), owner.as_bytes())?;
                fs_err::create_dir(&paths.ready)
                    .map_err(|e| BuildError::io(format!("creating {}", paths.ready), &e))?;
                return Ok(Lock {
                    paths: paths.clone(),
                    _held: held,
                });
            }
        }
        Err(busy(paths))
    }

    /// Gives the finished files their names. Earlier files of the same names are replaced, others are left alone. The list
    /// of checksums goes first and comes last: a directory without it is not whole.
    ///
    /// # Errors
    /// IO028 and IO001; a name is either the old file or the new one, never a part.
    pub fn publish(&self) -> Result<()> {
        let out = &self.paths.out;
        fs_err::create_dir_all(out).map_err(|e| BuildError::io(format!("creating {out}"), &e))?;
        for name in NAMES {
            crate::files::sync(&self.paths.ready.join(name))?;
        }
        let sums = out.join("SHA256SUMS");
        match fs_err::remove_file(&sums) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(BuildError::io(format!("removing {sums}"), &e)),
        }
        for name in NAMES {
            let to = out.join(name);
            fs_err::rename(self.paths.ready.join(name), &to)
                .map_err(|e| BuildError::io(format!("naming {to}"), &e))?;
        }
        crate::files::sync(out)
    }

    /// Removes the working directory and gives the lock back.
    ///
    /// # Errors
    /// IO001 when something cannot be removed; it is named.
    pub fn release(self) -> Result<()> {
        let work = &self.paths.work;
        remove::contents(work)?;
        fs_err::remove_dir(work).map_err(|e| BuildError::io(format!("removing {work}"), &e))
    }
}

fn try_lock(paths: &Paths) -> Result<Option<File>> {
    let work = &paths.work;
    let io = |e: std::io::Error| BuildError::io(format!("creating {work}"), &e);
    match std::fs::DirBuilder::new().mode(0o755).create(work) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(no_place(paths, work, &e)),
    }
    // A link could lead anywhere, and what is there would be removed.
    let meta = fs_err::symlink_metadata(work).map_err(io)?;
    if !meta.is_dir() {
        let m = format!("{work}: expected our working directory, found something else; remove it");
        return Err(BuildError::new(Kind::Input, "CFG016", m));
    }
    let dir = match File::open(work) {
        Ok(dir) => dir,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(paths)),
        Err(e) => return Err(io(e.into())),
    }
    let ours = dir.metadata().map_err(io)?;
    let same = std::fs::metadata(work).is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino()));
    Ok(same.then_some(dir))
}

/// A directory that cannot be made or written to: the command line is wrong, unless the disk is full.
fn no_place(paths: &Paths, at: &Utf8Path, e: &std::io::Error) -> BuildError {
    let io = BuildError::io(format!("creating {at}"), e);
    if io.kind == Kind::Space {
        return io;
    }
    // Of a file where a directory must be, the system says that it exists.
    let why = match e.kind() {
        std::io::ErrorKind::AlreadyExists => "Not a directory".to_owned(),
        _ => crate::error::reason(e),
    };
    let m = format!(
        "--out {}: cannot write to {at}: {why}; give --out a directory in a place where you may create files",
        paths.out,
    );
    BuildError::new(Kind::Input, "CFG016", m)
}

fn busy(paths: &Paths) -> BuildError {
    let mut owner = String::new();
    if let Ok(file) = File::open(paths.work.join(OWNER)) {
        let _ = file.take(200).read_to_string(&mut owner);
    }
    let owner = if owner.trim().is_empty() {
        "starting just now"
    } else {
        owner.trim()
    };
    BuildError::new(
        Kind::Locked,
        "LOCK001",
        format!(
            "{}: another build writes there ({owner}); wait for it or give another --out",
            paths.out
        ),
    )
}

#[cfg(test)]
mod tests;
