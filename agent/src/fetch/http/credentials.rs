//! Credentials per origin, from files that only their owner reads: `*.toml` in one directory, read anew for every request.
//!
//! ```toml
//! [[origin]]
//! url = "https://registry.example:5000"
//! user = "robot"
//! password = "…"        # or, instead of both: token = "…"
//! ```

use crate::error::{AgentError, Result};
use camino::Utf8Path;
use os_proto::codes::Code;
use reqwest::Url;
use serde::Deserialize;
use std::fmt;
use std::os::unix::fs::MetadataExt;

/// What proves who asks. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::fetch) enum Auth {
    /// User and password.
    Basic(String, Option<String>),
    /// A token.
    Bearer(String),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(…)")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    origin: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    user: Option<String>,
    password: Option<String>,
    token: Option<String>,
}

/// PURE: what `text` says about the origin of `url`. Errors never quote the file.
fn find(text: &str, url: &Url) -> std::result::Result<Option<Auth>, String> {
    let file: File = toml::from_str(text).map_err(|e| {
        let line = e
            .span()
            .and_then(|s| text.get(..s.start))
            .map_or(1, |t| t.matches('\n').count() + 1);
        format!("line {line}: expected [[origin]] with url and either user and password or token")
    })?;
    for (n, e) in (1..).zip(file.origin) {
        let origin = Url::parse(&e.url).map_err(|_| format!("origin {n}: url is none"))?;
        if origin.path() != "/" || origin.query().is_some() {
            return Err(format!("origin {n}: expected scheme, host and port only"));
        }
        let auth = match (e.user, e.password, e.token) {
            (Some(u), p, None) => Auth::Basic(u, p),
            (None, None, Some(t)) => Auth::Bearer(t),
            _ => {
                return Err(format!("origin {n}: expected either user and password or token"));
            }
        };
        if origin.origin() == url.origin() {
            return Ok(Some(auth));
        }
    }
    Ok(None)
}

/// Looks for credentials of the origin of `url`; a directory that does not exist holds none.
///
/// # Errors
/// `InvalidArgument` naming a file that others may read, that belongs to someone else, or that is malformed.
pub(super) fn look_up(dir: &Utf8Path, url: &Url) -> Result<Option<Auth>> {
    let bad = |path: &Utf8Path, why: String| {
        AgentError::new(Code::InvalidArgument, format!("credentials {path}: {why}"))
    };
    let mut files: Vec<_> = match dir.read_dir_utf8() {
        Ok(d) => d
            .flatten()
            .map(|e| e.path().to_owned())
            .filter(|p| p.extension() == Some("toml"))
            .collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(bad(dir, e.to_string())),
    };
    files.sort();
    for path in files {
        let meta = std::fs::metadata(&path).map_err(|e| bad(&path, e.to_string()))?;
        let own = rustix::process::geteuid().as_raw();
        if meta.mode() & 0o077 != 0 || (meta.uid() != 0 && meta.uid() != own) {
            return Err(bad(
                &path,
                format!(
                    "mode {:o}, owner {}: others could read or change it; chmod 600 and chown root",
                    meta.mode() & 0o777,
                    meta.uid()
                ),
            ));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| bad(&path, e.to_string()))?;
        if let Some(a) = find(&text, url).map_err(|why| bad(&path, why))? {
            return Ok(Some(a));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn url(u: &str) -> Url {
        u.parse().unwrap()
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let text = "[[origin]]\nurl = \"https://a:444\"\nuser = \"u\"\npassword = \"p\"\n\
                    [[origin]]\nurl = \"https://b\"\ntoken = \"t\"\n";
        let basic = Auth::Basic("u".into(), Some("p".into()));
        assert_eq!(find(text, &url("https://a:444/x?y")), Ok(Some(basic)));
        assert_eq!(
            find(text, &url("https://b:443/")),
            Ok(Some(Auth::Bearer("t".into())))
        );
        for other in ["http://a:444/", "https://a/", "https://b:8443/", "https://c/"] {
            assert_eq!(find(text, &url(other)), Ok(None), "{other}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_without_the_secret() {
        for text in [
            "[[origin]]\nurl = \"https://a\"\nuser = \"u\"\npasword = \"hunter2\"\n",
            "[[origin]]\nurl = \"https://a\"\n",
            "[[origin]]\nurl = \"https://a/path\"\ntoken = \"hunter2\"\n",
            "[[origin]]\nurl = \"https://a\"\ntoken = \"hunter2\"\nuser = \"x\"\n",
            "token = \"hunter2",
        ] {
            let e = find(text, &url("https://z/")).unwrap_err();
            assert!(!e.contains("hunter2"), "{e}");
        }
        assert!(!format!("{:?}", Auth::Bearer("hunter2".into())).contains("hunter2"));
    }

    #[test]
    fn files_that_others_may_read_are_refused() {
        let d = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(d.path()).unwrap();
        let u = url("https://a/");
        assert_eq!(look_up(&dir.join("none"), &u).unwrap(), None);
        let file = dir.join("x.toml");
        std::fs::write(&file, "[[origin]]\nurl = \"https://a\"\ntoken = \"t\"\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let e = look_up(dir, &u).unwrap_err();
        assert!(
            e.code == Code::InvalidArgument && e.message.contains("x.toml"),
            "{e}"
        );
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look_up(dir, &u).unwrap(), Some(Auth::Bearer("t".into())));
    }
}
