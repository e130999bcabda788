//! Reads a recipe from disk and checks the files that it names. The only I/O of this module.

use super::{PathRef, Recipe, Want};
use crate::error::{BuildError, Kind};
use camino::Utf8Path;
use std::io::{self, Read};

/// Bytes of the largest recipe; real ones have some kilobytes.
const LARGEST: u64 = 1 << 20;

impl Recipe {
    /// Reads and parses a recipe and checks that the files it names are there.
    ///
    /// # Errors
    /// Every error of the file at once.
    pub fn load(file: &Utf8Path) -> Result<Recipe, Vec<BuildError>> {
        let text = match head(file) {
            Ok(bytes) if bytes.len() as u64 > LARGEST => {
                return Err(vec![BuildError::new(
                    Kind::Input,
                    "CFG002",
                    format!("{file}: larger than {} MiB: this is no recipe", LARGEST >> 20),
                )]);
            }
            Ok(bytes) => String::from_utf8(bytes).map_err(|e| {
                let at = e.utf8_error().valid_up_to();
                vec![BuildError::new(
                    Kind::Input,
                    "CFG002",
                    format!("{file}: not UTF-8 text (first wrong byte at {at})"),
                )]
            })?,
            Err(e) => {
                return Err(vec![BuildError::new(
                    Kind::Input,
                    "CFG001",
                    format!("{file}: {}", reason(&e)),
                )]);
            }
        };
        let (recipe, paths) = Recipe::parse_with_paths(&text, file);
        let mut missing: Vec<BuildError> = paths.iter().filter_map(check).collect();
        match recipe {
            Ok(recipe) if missing.is_empty() => Ok(recipe),
            Ok(_) => Err(missing),
            Err(mut errors) => {
                errors.append(&mut missing);
                Err(errors)
            }
        }
    }
}

/// The file, but not much more than [`LARGEST`] bytes of it.
fn head(file: &Utf8Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs_err::File::open(file)?
        .take(LARGEST + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The system's words for an error, without our path and "os error".
fn reason(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "Is a directory".to_owned(),
        _ => e.to_string(),
    }
}

fn check(p: &PathRef) -> Option<BuildError> {
    let code = match p.want {
        Want::Key => "SIG002",
        Want::RepoFile => "REPO001",
        Want::File | Want::Dir | Want::Any => "CFG010",
    };
    let wrong = |what: &str| {
        let m = format!("{}: {} {:?}: {what}", p.at, p.key, p.path.as_str());
        Some(BuildError::new(Kind::Input, code, m))
    };
    let meta = match fs_err::metadata(&p.path) {
        Ok(m) => m,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return wrong("not found"),
        Err(e) => return wrong(&reason(&e)),
    };
    match p.want {
        Want::Dir if !meta.is_dir() => wrong("expected a directory, found a file"),
        Want::File | Want::Key | Want::RepoFile if !meta.is_file() => wrong("expected a file"),
        Want::Key | Want::RepoFile if meta.len() == 0 => wrong("is empty"),
        Want::Key => match fs_err::read(&p.path) {
            Ok(bytes) if super::is_public_key(&bytes) => None,
            Ok(_) => wrong("expected an ASCII-armoured OpenPGP public key (gpg --armor --export KEY)"),
            Err(e) => wrong(&reason(&e)),
        },
        _ => None,
    }
}
