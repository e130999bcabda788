//! PURE: URLs, what people see of them and what they must not.

use super::credentials::Auth;
use crate::error::{AgentError, Result};
use os_proto::codes::Code;
use reqwest::Url;

/// Takes the userinfo out of a URL: it must not appear anywhere.
pub(super) fn parse(text: &str) -> Result<(Url, Option<Auth>)> {
    let bad = |why: String| AgentError::new(Code::InvalidArgument, format!("image URL: {why}"));
    let mut url = Url::parse(text).map_err(|e| bad(e.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad(format!("{}: expected http://… or https://…", shown(&url))));
    }
    let decode = |s: &str| percent_decode(s);
    let auth = (!url.username().is_empty() || url.password().is_some())
        .then(|| Auth::Basic(decode(url.username()), url.password().map(decode)));
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    Ok((url, auth))
}

fn percent_decode(s: &str) -> String {
    let b = s.as_bytes();
    let mut out = Vec::with_capacity(b.len());
    let mut i = 0;
    while let Some(c) = b.get(i) {
        let hex = (*c == b'%')
            .then(|| s.get(i + 1..i + 3))
            .flatten()
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        out.push(hex.unwrap_or(*c));
        i += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A URL for people: no userinfo, no query.
pub(super) fn shown(url: &Url) -> String {
    let port = url.port().map(|p| format!(":{p}")).unwrap_or_default();
    format!(
        "{}://{}{port}{}",
        url.scheme(),
        url.host_str().unwrap_or_default(),
        url.path()
    )
}

/// Its host.
pub(super) fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}
