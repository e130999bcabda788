//! http and https: resumed inside the run, bounded in every direction.

mod address;
mod attempt;
mod client;
pub mod rules;

use super::Policy;
use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Clock, Download, Report, SourceRequest};
use address::{Auth, host, parse, shown};
use attempt::{Answer, Failure, Version};
use bytes::Bytes;
use os_proto::codes::Code;
use reqwest::{Response, Url};
use rules::{RateGuard, TokenBucket};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Most bytes handed out at once.
const PIECE: usize = 1 << 20;
/// How often a wait looks at the cancel flag.
const TICK: Duration = Duration::from_millis(100);
/// More bytes than these since the last failure are always progress.
const ENOUGH: u64 = 64 << 10;
/// A silence longer than this is reported.
const SILENCE: Duration = Duration::from_secs(3);

/// Downloads over http and https.
pub struct HttpSource {
    handle: Handle,
    clock: Arc<dyn Clock>,
    policy: Policy,
}

/// What the next request asks for.
struct Ask {
    url: Url,
    auth: Option<Auth>,
    offset: u64,
    total: Option<u64>,
    version: Version,
    /// The server answered ranges wrongly.
    no_ranges: bool,
}

impl Ask {
    /// Whether a closed range is asked for.
    fn ranged(&self) -> bool {
        self.offset > 0 && self.total.is_some() && !self.no_ranges
    }
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
        let (url, auth) = parse(url)?;
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
        let mut d = HttpDownload {
            handle: self.handle.clone(),
            clock: Arc::clone(&self.clock),
            guard: RateGuard::new(slowest, self.policy.min_rate_span),
            policy: self.policy.clone(),
            bucket: request.rate_bytes_per_sec.map(TokenBucket::new),
            request: request.clone(),
            cancel: cancel.clone(),
            report,
            ask: Ask {
                url,
                auth,
                offset: 0,
                total: None,
                version: Version::default(),
                no_ranges: false,
            },
            body: None,
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

struct HttpDownload {
    handle: Handle,
    clock: Arc<dyn Clock>,
    policy: Policy,
    guard: RateGuard,
    bucket: Option<TokenBucket>,
    request: SourceRequest,
    cancel: Cancel,
    report: Arc<dyn Report>,
    ask: Ask,
    body: Option<Response>,
    /// Bytes of the body that are known already.
    skip: u64,
    rest: Bytes,
    ended: bool,
    /// Failures since the last progress.
    failures: u32,
    /// Offset at the last failure.
    failed_at: u64,
    waiting: bool,
}

/// How a wait for the network ended.
enum Waited<T> {
    Done(T),
    TooSlow,
}

impl HttpDownload {
    /// Asks until an answer's body is open.
    fn connect(&mut self) -> Result<()> {
        while self.body.is_none() {
            self.cancel.check()?;
            let mut told = false;
            let attempt = attempt::run(&self.ask, &self.request, &self.policy, &*self.clock);
            let waited = wait(
                &self.handle,
                attempt,
                &*self.clock,
                &self.cancel,
                |_| false,
                |silent| {
                    told = true;
                    self.report.waiting(Some(format!(
                        "{}: no answer for {} s",
                        host(&self.ask.url),
                        silent.as_secs()
                    )));
                },
            )?;
            self.waiting |= told;
            match waited {
                Waited::Done(Ok(answer)) => self.accept(answer)?,
                Waited::Done(Err(Failure::Again(cause, pause))) => self.failed(&cause, pause)?,
                Waited::Done(Err(Failure::NoRanges(cause))) => {
                    self.ask.no_ranges = true;
                    self.failed(&cause, None)?;
                }
                Waited::Done(Err(Failure::Final(e))) => {
                    return Err(AgentError::new(
                        e.code,
                        format!("GET {}: {}", shown(&self.ask.url), e.message),
                    ));
                }
                Waited::TooSlow => {}
            }
        }
        Ok(())
    }

    fn accept(&mut self, answer: Answer) -> Result<()> {
        if self.ask.offset == 0 {
            self.ask.total = answer.total;
            self.ask.version = answer.version;
        }
        if let Some(total) = self.ask.total.filter(|t| *t > self.request.max_bytes) {
            return Err(self.too_large(total));
        }
        self.skip = answer.skip;
        self.guard = RateGuard::clone(&self.guard).fresh();
        self.body = Some(answer.response);
        Ok(())
    }

    fn too_large(&self, bytes: u64) -> AgentError {
        AgentError::new(
            Code::SlotTooSmall,
            format!(
                "{}: {bytes} bytes or more, at most {} can be a payload for this slot",
                shown(&self.ask.url),
                self.request.max_bytes
            ),
        )
    }

    /// Counts a failure and pauses, or gives up.
    fn failed(&mut self, cause: &str, pause: Option<Duration>) -> Result<()> {
        self.body = None;
        self.failures += 1;
        self.failed_at = self.ask.offset;
        let total = self.ask.total.map_or("?".to_owned(), |t| t.to_string());
        let what = format!(
            "GET {}: {cause}; {} of {total} bytes kept",
            shown(&self.ask.url),
            self.ask.offset
        );
        if self.failures >= self.policy.retry_limit {
            return Err(AgentError::new(
                Code::FetchFailed,
                format!("{what}; gave up after {} tries without progress", self.failures),
            ));
        }
        let span = rules::backoff(
            self.policy.retry_first,
            self.policy.retry_max,
            self.failures,
            jitter(),
        )
        .max(pause.unwrap_or_default().min(self.policy.retry_max));
        tracing::warn!("{what}");
        self.report.waiting(Some(format!(
            "{}: {cause}, try {} of {} in {} s",
            host(&self.ask.url),
            self.failures + 1,
            self.policy.retry_limit,
            span.as_secs_f32().ceil()
        )));
        self.waiting = true;
        self.clock.sleep(span, &self.cancel);
        self.cancel.check()
    }

    /// The next piece of the body, or the reason why there is none.
    fn receive(&mut self) -> Result<std::result::Result<Option<Bytes>, String>> {
        let Some(body) = self.body.as_mut() else {
            return Ok(Err("not connected".into()));
        };
        let began = self.clock.monotonic();
        let (guard, report, url) = (&self.guard, &self.report, &self.ask.url);
        let mut told = false;
        let waited = wait(
            &self.handle,
            body.chunk(),
            &*self.clock,
            &self.cancel,
            |so_far| guard.too_slow(so_far),
            |silent| {
                told = true;
                report.waiting(Some(format!("{}: no data for {} s", host(url), silent.as_secs())));
            },
        )?;
        self.waiting |= told;
        let crawls = || {
            Err(format!(
                "less than {} bytes per second for {} s",
                self.policy.min_rate_bytes_per_sec,
                self.policy.min_rate_span.as_secs()
            ))
        };
        Ok(match waited {
            Waited::TooSlow => crawls(),
            Waited::Done(Err(e)) => Err(client::chain(&e.without_url())),
            Waited::Done(Ok(None)) => Ok(None),
            Waited::Done(Ok(Some(b))) => {
                self.guard
                    .came(self.clock.monotonic().saturating_sub(began), b.len());
                // A trickle never makes a single wait long.
                if self.guard.too_slow(Duration::ZERO) {
                    crawls()
                } else {
                    Ok(Some(b))
                }
            }
        })
    }

    /// Takes bytes that arrived: drops what is known, counts, caps, paces.
    fn arrived(&mut self, mut piece: Bytes) -> Result<()> {
        let known = usize::try_from(self.skip).map_or(piece.len(), |s| s.min(piece.len()));
        bytes::Buf::advance(&mut piece, known);
        self.skip -= known as u64;
        if piece.is_empty() {
            return Ok(());
        }
        self.ask.offset += piece.len() as u64;
        // A byte now and then is no progress: it would keep a hopeless download alive for ever.
        if self.ask.offset.saturating_sub(self.failed_at) >= self.guard.least().min(ENOUGH) {
            self.failures = 0;
        }
        if self.waiting {
            self.waiting = false;
            self.report.waiting(None);
        }
        if self.ask.offset > self.request.max_bytes {
            return Err(self.too_large(self.ask.offset));
        }
        if let Some(total) = self.ask.total.filter(|t| self.ask.offset > *t) {
            return Err(AgentError::new(
                Code::SizeMismatch,
                format!(
                    "GET {}: {} bytes too many: the server promised {total}",
                    shown(&self.ask.url),
                    self.ask.offset - total
                ),
            ));
        }
        if let Some(bucket) = &mut self.bucket {
            let pause = bucket.take(self.clock.monotonic(), piece.len());
            if !pause.is_zero() {
                self.clock.sleep(pause, &self.cancel);
            }
        }
        self.rest = piece;
        Ok(())
    }
}

impl Download for HttpDownload {
    fn total(&self) -> Option<u64> {
        self.ask.total
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            self.cancel.check()?;
            if !self.rest.is_empty() {
                let n = self.rest.len().min(PIECE);
                return Ok(Some(self.rest.split_to(n)));
            }
            if self.ended {
                return Ok(None);
            }
            self.connect()?;
            match self.receive()? {
                Ok(Some(piece)) => self.arrived(piece)?,
                Ok(None) => match self.ask.total {
                    Some(t) if self.ask.offset < t => self.failed("the connection ended early", None)?,
                    None if self.skip > 0 => self.failed("the answer ended early", None)?,
                    _ => {
                        self.ended = true;
                        self.body = None;
                    }
                },
                Err(cause) => self.failed(&cause, None)?,
            }
        }
    }

    fn describe(&self) -> String {
        shown(&self.ask.url)
    }
}

/// Drives `work`, looking at the cancel flag every [`TICK`]; `too_slow` ends it, `silent` is told about long waits.
fn wait<T>(
    handle: &Handle,
    work: impl Future<Output = T>,
    clock: &dyn Clock,
    cancel: &Cancel,
    too_slow: impl Fn(Duration) -> bool,
    mut silent: impl FnMut(Duration),
) -> Result<Waited<T>> {
    let began = clock.monotonic();
    let mut next_word = SILENCE;
    handle.block_on(async {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(TICK, &mut work).await {
                Ok(done) => return Ok(Waited::Done(done)),
                Err(_) => {
                    cancel.check()?;
                    let so_far = clock.monotonic().saturating_sub(began);
                    if too_slow(so_far) {
                        return Ok(Waited::TooSlow);
                    }
                    if so_far >= next_word {
                        next_word += SILENCE;
                        silent(so_far);
                    }
                }
            }
        }
    })
}

/// A random byte; quality does not matter.
fn jitter() -> u8 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() as u8
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
