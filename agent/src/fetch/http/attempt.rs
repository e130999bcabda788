//! One request, its redirects followed, its answer judged.

use super::credentials::{self, Auth};
use super::rules::{self, ContentRange, Verdict};
use super::token::{self, Tokens};
use super::{Ask, client};
use crate::error::AgentError;
use crate::fetch::Policy;
use crate::ports::{Clock, SourceRequest};
use os_proto::codes::Code;
use reqwest::header::{self, HeaderMap};
use reqwest::{RequestBuilder, Response, Url};
use std::time::Duration;

/// Most redirects in a row.
const REDIRECTS: usize = 5;
/// Most bytes of an answer's headers.
const HEADERS_MAX: usize = 64 << 10;

/// Why an attempt gave no body.
#[derive(Debug)]
pub(super) enum Failure {
    /// Worth another try, perhaps not before a pause that the server asked for.
    Again(String, Option<Duration>),
    /// The server does not do ranges properly: ask for the whole.
    NoRanges(String),
    /// Over.
    Final(AgentError),
}

/// What identifies a version of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// A strong ETag.
    pub(super) etag: Option<String>,
    /// Last-Modified.
    pub(super) modified: Option<String>,
}

impl Version {
    fn of(headers: &HeaderMap) -> Version {
        let get = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        Version {
            etag: get(header::ETAG).filter(|e| !e.starts_with("W/")),
            modified: get(header::LAST_MODIFIED),
        }
    }

    /// The validator for If-Range.
    fn validator(&self) -> Option<&str> {
        self.etag.as_deref().or(self.modified.as_deref())
    }

    /// Whether both can be of the same object: what both name must agree.
    fn same(&self, other: &Version) -> bool {
        let agree = |a: &Option<String>, b: &Option<String>| match (a, b) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        if self.etag.is_some() && other.etag.is_some() {
            return self.etag == other.etag;
        }
        agree(&self.modified, &other.modified)
    }

    fn show(&self) -> &str {
        self.validator().unwrap_or("none")
    }
}

/// A body that begins where it was asked to, after `skip` bytes.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) skip: u64,
    /// Status 200 although a part was asked for.
    pub(super) whole: bool,
    pub(super) total: Option<u64>,
    pub(super) version: Version,
}

/// Sends the request, following redirects.
pub(super) async fn run(
    ask: &Ask,
    request: &SourceRequest,
    policy: &Policy,
    clock: &dyn Clock,
) -> Result<Answer, Failure> {
    let mut url = ask.url.clone();
    let mut own = true;
    let mut renewed = false;
    let mut hop = 0;
    while hop <= REDIRECTS {
        let response = send(&url, own, ask, request, policy, clock).await?;
        let status = response.status().as_u16();
        if status == 401
            && own
            && !renewed
            && ask.extra.tokens.is_some()
            && let Some(asked) = token::asked_for(&response)
        {
            // Once per attempt: a token may have run out while the download went on.
            token::renew(&url, &asked, &ask.extra, request, policy, clock).await?;
            renewed = true;
            continue;
        }
        hop += 1;
        match rules::verdict(status, hop > 1) {
            Verdict::Redirect => {
                let next = target(&url, &response)?;
                own = own && next.origin() == url.origin();
                allowed(&url, &next, request.allow_http)?;
                url = next;
            }
            Verdict::Whole => return whole(ask, response),
            Verdict::Part => return part(ask, response),
            Verdict::Unsatisfied => return Err(unsatisfied(ask, &response)),
            Verdict::Again => {
                let pause = response
                    .headers()
                    .get(header::RETRY_AFTER)
                    .and_then(|v| v.to_str().ok()?.trim().parse().ok())
                    .map(Duration::from_secs);
                return Err(Failure::Again(
                    format!("status {status}{}", client::asked_through(&url)),
                    pause,
                ));
            }
            Verdict::Final => {
                let through = client::asked_through(&url);
                return Err(Failure::Final(match status {
                    407 if !through.is_empty() => client::wants_credentials(&url),
                    _ => AgentError::new(
                        Code::FetchFailed,
                        format!("status {}{through}", response.status()),
                    ),
                }));
            }
        }
    }
    Err(refused_redirect(&url, "more than 5 redirects"))
}

async fn send(
    url: &Url,
    own: bool,
    ask: &Ask,
    request: &SourceRequest,
    policy: &Policy,
    clock: &dyn Clock,
) -> Result<Response, Failure> {
    let client = client::build(url, own, request, policy)?;
    let mut r = client
        .get(url.clone())
        .header(header::ACCEPT_ENCODING, "identity");
    if let Some(accept) = ask.extra.accept {
        r = r.header(header::ACCEPT, accept);
    }
    if own && let Some(auth) = auth(url, ask, policy)? {
        r = with_auth(r, &auth);
    }
    if let Some((first, last)) = ask.range() {
        r = r.header(header::RANGE, format!("bytes={first}-{last}"));
        if let Some(v) = ask.version.validator() {
            r = r.header(header::IF_RANGE, v);
        }
    }
    let limit = policy.connect_timeout + policy.first_byte_timeout;
    let response = match tokio::time::timeout(limit, r.send()).await {
        Ok(sent) => sent.map_err(|e| client::failure(e, url, clock))?,
        Err(_) => {
            return Err(Failure::Again(
                format!("no answer within {} s", limit.as_secs()),
                None,
            ));
        }
    };
    let headers: usize = response
        .headers()
        .iter()
        .map(|(n, v)| n.as_str().len() + v.len())
        .sum();
    if headers > HEADERS_MAX {
        return Err(Failure::Final(AgentError::new(
            Code::FetchFailed,
            format!("{headers} bytes of headers, at most {HEADERS_MAX} are accepted"),
        )));
    }
    if let Some(e) = response.headers().get(header::CONTENT_ENCODING)
        && e != "identity"
    {
        return Err(Failure::Final(AgentError::new(
            Code::UnsupportedFormat,
            format!("the server packs its answer ({e:?}) although asked not to"),
        )));
    }
    Ok(response)
}

/// What is shown to the server that was asked for: its token, what its URL said, or what the node keeps for it.
fn auth(url: &Url, ask: &Ask, policy: &Policy) -> Result<Option<Auth>, Failure> {
    let given = || ask.extra.userinfo.clone();
    if let Some(a) = ask.extra.tokens.as_ref().and_then(Tokens::current).or_else(given) {
        return Ok(Some(a));
    }
    match &policy.credentials_dir {
        Some(dir) => credentials::look_up(dir, url).map_err(Failure::Final),
        None => Ok(None),
    }
}

/// Adds what proves who asks; the headers are kept out of every log.
pub(super) fn with_auth(r: RequestBuilder, auth: &Auth) -> RequestBuilder {
    match auth {
        Auth::Basic(user, password) => r.basic_auth(user, password.as_ref()),
        Auth::Bearer(token) => r.bearer_auth(token),
    }
}

fn target(url: &Url, response: &Response) -> Result<Url, Failure> {
    let location = response
        .headers()
        .get(header::LOCATION)
        .and_then(|v| v.to_str().ok())
        .ok_or_else(|| refused_redirect(url, "without a target"))?;
    let mut next = url
        .join(location)
        .map_err(|e| refused_redirect(url, &format!("its target is not a URL ({e})")))?;
    // Whoever redirects does not choose our credentials.
    let _ = next.set_username("");
    let _ = next.set_password(None);
    Ok(next)
}

pub(super) fn allowed(from: &Url, to: &Url, allow_http: bool) -> Result<(), Failure> {
    match (from.scheme(), to.scheme()) {
        ("https", "http") => Err(refused_redirect(to, "from https down to http")),
        (_, "http") if !allow_http => Err(refused_redirect(to, "to plain http, which is not allowed")),
        (_, "http" | "https") => Ok(()),
        _ => Err(refused_redirect(to, "not to http or https")),
    }
}

fn refused_redirect(to: &Url, why: &str) -> Failure {
    Failure::Final(AgentError::new(
        Code::Redirect,
        format!("redirect to {} refused: {why}", super::shown(to)),
    ))
}

fn whole(ask: &Ask, response: Response) -> Result<Answer, Failure> {
    let version = Version::of(response.headers());
    // Not `content_length()`: that is the body's size hint, which HEAD-like answers lack.
    let total = response
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    if ask.bound() {
        changed(ask, &version, total)?;
    }
    Ok(Answer {
        response,
        skip: ask.offset,
        whole: ask.range().is_some(),
        total,
        version,
    })
}

fn part(ask: &Ask, response: Response) -> Result<Answer, Failure> {
    let version = Version::of(response.headers());
    let range = response
        .headers()
        .get(header::CONTENT_RANGE)
        .and_then(|v| rules::content_range(v.to_str().ok()?));
    let (Some(ContentRange::Bytes { first, total, .. }), Some(_)) = (range, ask.range()) else {
        return Err(Failure::NoRanges(
            "the server sent a part without saying which".into(),
        ));
    };
    changed(ask, &version, total)?;
    if first != ask.offset {
        return Err(Failure::NoRanges(format!(
            "asked from byte {}, the server sent from {first}",
            ask.offset
        )));
    }
    Ok(Answer {
        response,
        skip: 0,
        whole: false,
        total: ask.total,
        version,
    })
}

fn unsatisfied(ask: &Ask, response: &Response) -> Failure {
    if ask.range().is_none() {
        return Failure::Final(AgentError::new(
            Code::FetchFailed,
            "status 416 although the whole was asked for",
        ));
    }
    let range = response
        .headers()
        .get(header::CONTENT_RANGE)
        .and_then(|v| rules::content_range(v.to_str().ok()?));
    match (range, ask.total) {
        (Some(ContentRange::Unsatisfied { total }), Some(promised)) if total == ask.offset => {
            Failure::Final(AgentError::new(
                Code::SizeMismatch,
                format!(
                    "{} bytes missing: the server promised {promised} bytes and has {total}",
                    promised.saturating_sub(total)
                ),
            ))
        }
        (Some(ContentRange::Unsatisfied { total }), promised) if promised != Some(total) => Failure::Final(
            object_changed(ask, &format!("{promised:?} bytes"), &format!("{total} bytes")),
        ),
        _ => Failure::NoRanges("status 416 for a range inside the object".into()),
    }
}

/// Refuses to go on with another object than the one that was begun.
fn changed(ask: &Ask, version: &Version, total: Option<u64>) -> Result<(), Failure> {
    if !ask.version.same(version) {
        return Err(Failure::Final(object_changed(
            ask,
            ask.version.show(),
            version.show(),
        )));
    }
    if let (Some(a), Some(b)) = (ask.total, total)
        && a != b
    {
        return Err(Failure::Final(object_changed(
            ask,
            &format!("{a} bytes"),
            &format!("{b} bytes"),
        )));
    }
    Ok(())
}

fn object_changed(ask: &Ask, from: &str, to: &str) -> AgentError {
    AgentError::new(
        Code::ObjectChanged,
        format!(
            "{} changed during download ({from} → {to}); start over",
            super::shown(&ask.url)
        ),
    )
}
