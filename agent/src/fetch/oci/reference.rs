//! PURE: image references, `[registry[:port]/]path[:tag][@sha256:hex]`.

use os_proto::digest::Sha256Digest;

/// An image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host and port that answer.
    pub registry: String,
    /// Path of the repository there.
    pub repository: String,
    /// The tag, for people: what is fetched is named by its digest.
    pub tag: Option<String>,
    /// The manifest that the reference pins.
    pub digest: Option<Sha256Digest>,
}

/// Reads a reference; a leading `docker://` or `oci:` is accepted.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Reference, String> {
    let bare = text
        .strip_prefix("docker://")
        .or_else(|| text.strip_prefix("oci:"))
        .unwrap_or(text);
    let bad = |why: &str| format!("image reference {text:?}: {why}");
    let (rest, digest) = match bare.split_once('@') {
        Some((r, d)) => {
            let hex = d
                .strip_prefix("sha256:")
                .ok_or_else(|| bad("expected @sha256:HEX"))?;
            (r, Some(hex.parse().map_err(|_| bad("expected @sha256:HEX"))?))
        }
        None => (bare, None),
    };
    let (host, path) = match rest.split_once('/') {
        Some((h, p)) if h.contains(['.', ':']) || h == "localhost" => (Some(h), p),
        _ => (None, rest),
    };
    let (path, tag) = match path.rsplit_once(':') {
        Some((p, t)) => (p, Some(t)),
        None => (path, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let component = |c: &str| {
        !c.is_empty()
            && c.chars().all(word)
            && c.chars().all(|c| !c.is_ascii_uppercase())
            && c.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    if path.is_empty() || path.len() > 255 || !path.split('/').all(component) {
        return Err(bad("expected [registry/]path[:tag][@sha256:HEX] in lower case"));
    }
    if let Some(t) = tag
        && (t.is_empty() || t.len() > 128 || !t.chars().all(word))
    {
        return Err(bad("the tag is none"));
    }
    let (registry, repository) = match host {
        None | Some("docker.io") => {
            let library = if path.contains('/') { "" } else { "library/" };
            ("registry-1.docker.io".to_owned(), format!("{library}{path}"))
        }
        Some(h) => {
            let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
            if !h.chars().all(ok) {
                return Err(bad("the registry is no host name"));
            }
            (h.to_owned(), path.to_owned())
        }
    };
    Ok(Reference {
        registry,
        repository,
        tag: tag.map(str::to_owned),
        digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_as_people_write_them() {
        let hex = "ab".repeat(32);
        let pinned = format!("reg.lab.example:5000/os/blue@sha256:{hex}");
        let r = |registry: &str, repository: &str, tag: Option<&str>, pin: bool| Reference {
            registry: registry.into(),
            repository: repository.into(),
            tag: tag.map(str::to_owned),
            digest: pin.then(|| hex.parse().unwrap()),
        };
        for (text, want) in [
            (
                "reg.lab.example/os/blue:7.3".to_owned(),
                r("reg.lab.example", "os/blue", Some("7.3"), false),
            ),
            (pinned.clone(), r("reg.lab.example:5000", "os/blue", None, true)),
            (
                format!("docker://{pinned}"),
                r("reg.lab.example:5000", "os/blue", None, true),
            ),
            ("oci:localhost/a:1".into(), r("localhost", "a", Some("1"), false)),
            (
                "127.0.0.1:5000/a/b".into(),
                r("127.0.0.1:5000", "a/b", None, false),
            ),
            (
                "kubeos".into(),
                r("registry-1.docker.io", "library/kubeos", None, false),
            ),
            (
                "docker.io/me/kubeos:v2".into(),
                r("registry-1.docker.io", "me/kubeos", Some("v2"), false),
            ),
            (format!("a.b/c:1@sha256:{hex}"), r("a.b", "c", Some("1"), true)),
        ] {
            assert_eq!(parse(&text), Ok(want), "{text}");
        }
        for bad in [
            "",
            "/",
            "a.b/",
            "a.b//c",
            "a.b/../c",
            "a.b/C",
            "a b/c",
            "a.b/c:",
            "a.b/c@sha512:00",
            "a.b/c@sha256:zz",
            "a@b.c/d",
            "a.b/c?x=1",
            "a.b/c#d",
            "a.b/-c",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(t in "\\PC*") {
            if let Ok(r) = parse(&t) {
                prop_assert!(!r.repository.contains(".."), "{r:?}");
            }
        }
    }
}
