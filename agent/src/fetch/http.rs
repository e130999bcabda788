//! http and https: resumed inside the run, bounded in every direction.

mod address;
mod attempt;
mod client;
mod credentials;
mod download;
pub mod rules;
mod token;

use super::Policy;
use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Clock, Download, Object, Report, SourceRequest};
use address::{parse, shown};
use attempt::Version;
use bytes::Bytes;
use credentials::Auth;
use download::HttpDownload;
use os_proto::codes::Code;
use reqwest::Url;
use rules::{RateGuard, TokenBucket};
use std::sync::Arc;
pub(super) use token::Tokens;
use tokio::runtime::Handle;

/// What is asked for at first when the rest is probably there already: the chunk that is written last.
const FIRST: u64 = 1 << 20;

/// Downloads over http and https.
pub struct HttpSource {
    handle: Handle,
    clock: Arc<dyn Clock>,
    policy: Policy,
}

/// What a request may need besides its URL.
#[derive(Clone, Default)]
pub(super) struct Extra {
    /// Accept header.
    pub(super) accept: Option<&'static str>,
    /// The server is a registry that may ask for a token.
    pub(super) tokens: Option<Tokens>,
    /// Tries without progress, instead of the policy's.
    pub(super) tries: Option<u32>,
    /// From the URL.
    pub(super) userinfo: Option<Auth>,
}

/// What the next request asks for.
struct Ask {
    url: Url,
    extra: Extra,
    offset: u64,
    total: Option<u64>,
    version: Version,
    /// `total` and `version` are known before the first answer.
    known: bool,
    /// Only so much of the object is wanted at first.
    until: Option<u64>,
    /// The server answered ranges wrongly.
    no_ranges: bool,
}

impl Ask {
    fn new(url: Url, extra: Extra, known: Option<&Object>) -> Ask {
        Ask {
            url,
            extra,
            offset: 0,
            total: known.map(|k| k.total),
            version: known.map_or_else(Version::default, |k| Version {
                etag: k.etag.clone(),
                modified: k.modified.clone(),
            }),
            known: known.is_some(),
            until: known.map(|_| FIRST),
            no_ranges: false,
        }
    }

    /// The closed range that is asked for: first and last byte.
    fn range(&self) -> Option<(u64, u64)> {
        let total = self.total.filter(|_| !self.no_ranges)?;
        let end = self.until.unwrap_or(total).min(total);
        ((self.offset > 0 || self.until.is_some()) && self.offset < end).then(|| (self.offset, end - 1))
    }

    /// Whether an answer must be of the object that was begun.
    fn bound(&self) -> bool {
        self.known || self.offset > 0
    }
}

/// PURE: whether a text is an http or https URL with a host.
///
/// # Errors
/// `InvalidArgument`.
pub fn well_formed(url: &str) -> Result<()> {
    parse(url).map(drop)
}

impl HttpSource {
    /// `handle` must be of a multi-threaded runtime.
    pub fn new(handle: Handle, clock: Arc<dyn Clock>, policy: Policy) -> HttpSource {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // The program's main does this; libraries that use this one may not.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        HttpSource {
            handle,
            clock,
            policy,
        }
    }

    /// Opens `url` and waits for the beginning of the answer.
    ///
    /// # Errors
    /// `InvalidArgument`, `HttpNotAllowed`, and those of [`Download::next`].
    pub fn open(
        &self,
        url: &str,
        request: &SourceRequest,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>> {
        self.open_with(url, request, Extra::default(), cancel, report)
    }

    /// The same with more to say.
    pub(super) fn open_with(
        &self,
        url: &str,
        request: &SourceRequest,
        mut extra: Extra,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>> {
        let (url, userinfo) = parse(url)?;
        extra.userinfo = userinfo;
        if url.scheme() == "http" && !request.allow_http {
            return Err(AgentError::new(
                Code::HttpNotAllowed,
                format!(
                    "{}: plain http; use https, or allow http (--allow-http, flagSafe in the OS resource)",
                    shown(&url)
                ),
            ));
        }
        let slowest = match request.rate_bytes_per_sec {
            Some(rate) if rate <= self.policy.min_rate_bytes_per_sec * 2 => 0,
            _ => self.policy.min_rate_bytes_per_sec,
        };
        let mut policy = self.policy.clone();
        policy.retry_limit = extra.tries.unwrap_or(policy.retry_limit);
        let mut d = HttpDownload {
            handle: self.handle.clone(),
            clock: Arc::clone(&self.clock),
            ends: policy.total_timeout.map(|t| self.clock.monotonic() + t),
            guard: RateGuard::new(slowest, self.policy.min_rate_span),
            policy,
            bucket: request.rate_bytes_per_sec.map(TokenBucket::new),
            request: request.clone(),
            cancel: cancel.clone(),
            report,
            ask: Ask::new(url, extra, request.known.as_ref()),
            body: None,
            whole: false,
            skip: 0,
            rest: Bytes::new(),
            ended: false,
            failures: 0,
            failed_at: 0,
            waiting: false,
        };
        d.connect()?;
        Ok(Box::new(d))
    }
}

#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod tls_tests;
