//! Where the payload of an upgrade comes from, and its digest.

use crate::api::{OsSpec, Source};

use super::{Notes, expected};

/// A SHA-256 as 64 lower-case hex digits; prefix `sha256:` and upper case are accepted.
pub(crate) fn digest(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let hex = text.strip_prefix("sha256:").unwrap_or(&text);
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| hex.to_owned())
}

/// Digest and source of an upgrade; `None` after noting what is wrong.
pub(super) fn source(spec: &OsSpec, n: &mut Notes) -> Option<(String, Source)> {
    let before = n.problems.len();
    let mut from = Source {
        allowhttp: spec.flag_safe,
        mtls: spec.mtls,
        cacert: spec.cacert.clone(),
        clientcert: spec.clientcert.clone(),
        clientkey: spec.clientkey.clone(),
        ..Source::default()
    };
    let mut wanted = (!spec.checksum.is_empty()).then(|| digest(&spec.checksum));
    match spec.imagetype.as_str() {
        "disk" => {
            url(spec, n);
            from.url = Some(spec.imageurl.trim().to_owned());
        }
        "docker" | "containerd" => {
            let mut image = spec.containerimage.trim();
            if image.is_empty() && !spec.dockerimage.is_empty() {
                n.warn("dockerimage is an older spelling of containerimage");
                image = spec.dockerimage.trim();
            }
            let pinned = reference(image, n);
            match (&wanted, pinned) {
                (None, Some(p)) => wanted = Some(Some(p)),
                (Some(Some(w)), Some(p)) if *w != p => {
                    n.wrong(
                        "checksum",
                        "differs from the digest in containerimage; keep the right one",
                    );
                }
                _ => {}
            }
            from.image = Some(image.to_owned());
        }
        other => n.wrong("imagetype", expected("disk, docker or containerd", other)),
    }
    for (field, name) in [
        ("cacert", &spec.cacert),
        ("clientcert", &spec.clientcert),
        ("clientkey", &spec.clientkey),
    ] {
        if name.contains('/') || name.contains('\0') || name == ".." || name == "." {
            n.wrong(
                field,
                expected("a plain file name below /etc/KubeOS/certs/", name),
            );
        }
    }
    if spec.mtls && spec.imagetype == "disk" && (spec.clientcert.is_empty() || spec.clientkey.is_empty()) {
        n.wrong("mtls", "is true, so clientcert and clientkey must be named");
    }
    let digest = match wanted {
        Some(Some(digest)) => digest,
        Some(None) => {
            n.wrong("checksum", expected("SHA-256 as 64 hex digits", &spec.checksum));
            return None;
        }
        None => {
            n.wrong("checksum", "is missing; an upgrade needs the SHA-256 of the file (disk) or of the manifest (docker, containerd)");
            return None;
        }
    };
    (n.problems.len() == before).then_some((digest, from))
}

fn url(spec: &OsSpec, n: &mut Notes) {
    let url = spec.imageurl.trim();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    match scheme.to_ascii_lowercase().as_str() {
        "https" | "http" if host.is_empty() || url.chars().any(|c| c.is_whitespace() || c.is_control()) => {
            n.wrong("imageurl", expected("http(s)://HOST/PATH", url));
        }
        "https" => {}
        "http" if spec.flag_safe => {}
        "http" => n.wrong(
            "imageurl",
            format!("{url} is plain http; use https, or set flagSafe: true"),
        ),
        _ => n.wrong("imageurl", expected("http(s)://HOST/PATH", url)),
    }
}

/// Checks an image reference; the digest if it is pinned.
fn reference(image: &str, n: &mut Notes) -> Option<String> {
    let legal = |s: &str| {
        !s.is_empty()
            && s.bytes()
                .all(|c| c.is_ascii_alphanumeric() || b"._-/:".contains(&c))
    };
    let shape = "REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:HEX";
    let tag_of = |name: &str| {
        name.rsplit('/')
            .next()
            .and_then(|last| last.split_once(':'))
            .map(|(_, tag)| tag.to_owned())
    };
    match image.split_once('@') {
        Some((name, pin)) => {
            let pinned = pin.strip_prefix("sha256:").and_then(|_| digest(pin));
            if !legal(name) || pinned.is_none() {
                n.wrong("containerimage", expected(shape, image));
            } else if tag_of(name).is_some() {
                n.wrong(
                    "containerimage",
                    format!("{image} has a tag and a digest; keep one"),
                );
            }
            pinned
        }
        None => {
            if !legal(image) || tag_of(image).is_none_or(|t| t.is_empty()) {
                n.wrong("containerimage", expected(shape, image));
            }
            None
        }
    }
}
