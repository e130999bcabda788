//! One download: asked for, resumed where it was cut, watched for silence and crawling.

use super::address::{host, shown};
use super::attempt::{self, Answer, Failure};
use super::rules::{self, RateGuard, TokenBucket};
use super::{Ask, Policy, client};
use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Clock, Download, Object, Report, SourceRequest};
use bytes::Bytes;
use os_proto::codes::Code;
use reqwest::Response;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Most bytes handed out at once.
pub(super) const PIECE: usize = 1 << 20;
/// How often a wait looks at the cancel flag.
const TICK: Duration = Duration::from_millis(100);
/// More bytes than these since the last failure are always progress.
const ENOUGH: u64 = 64 << 10;
/// A silence longer than this is reported.
const SILENCE: Duration = Duration::from_secs(3);

/// An open download.
pub(super) struct HttpDownload {
    pub(super) handle: Handle,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) policy: Policy,
    /// Monotonic time at which the whole download has taken too long.
    pub(super) ends: Option<Duration>,
    pub(super) guard: RateGuard,
    pub(super) bucket: Option<TokenBucket>,
    pub(super) request: SourceRequest,
    pub(super) cancel: Cancel,
    pub(super) report: Arc<dyn Report>,
    pub(super) ask: Ask,
    pub(super) body: Option<Response>,
    /// The body is of the whole object although a part was asked for.
    pub(super) whole: bool,
    /// Bytes of the body that are known already.
    pub(super) skip: u64,
    pub(super) rest: Bytes,
    pub(super) ended: bool,
    /// Failures since the last progress.
    pub(super) failures: u32,
    /// Offset at the last failure.
    pub(super) failed_at: u64,
    pub(super) waiting: bool,
}

/// How a wait for the network ended.
enum Waited<T> {
    Done(T),
    TooSlow,
}

impl HttpDownload {
    /// Asks until an answer's body is open.
    pub(super) fn connect(&mut self) -> Result<()> {
        while self.body.is_none() {
            self.cancel.check()?;
            self.in_time()?;
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

    /// The limit on the whole download, where the node sets one.
    fn in_time(&self) -> Result<()> {
        match (self.ends, self.policy.total_timeout) {
            (Some(end), Some(limit)) if self.clock.monotonic() >= end => Err(AgentError::new(
                Code::FetchFailed,
                format!(
                    "GET {}: not complete after {} s ([fetch] total_timeout_secs); {} bytes kept",
                    shown(&self.ask.url),
                    limit.as_secs(),
                    self.ask.offset
                ),
            )),
            _ => Ok(()),
        }
    }

    fn accept(&mut self, answer: Answer) -> Result<()> {
        if !self.ask.bound() {
            self.ask.total = answer.total;
            self.ask.version = answer.version;
        }
        if let Some(total) = self.ask.total.filter(|t| *t > self.request.max_bytes) {
            return Err(self.too_large(total));
        }
        self.skip = answer.skip;
        self.whole = answer.whole;
        if answer.whole {
            self.ask.until = None;
        }
        self.guard = RateGuard::clone(&self.guard).fresh();
        self.body = Some(answer.response);
        Ok(())
    }

    fn too_large(&self, bytes: u64) -> AgentError {
        AgentError::new(
            Code::SlotTooSmall,
            format!(
                "{}: {bytes} bytes or more, at most {} can be a payload for this slot (a whole disk? use update.img, not system.img)",
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
        tracing::warn!("{what}, next try in {} s", span.as_secs_f32().ceil());
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
        // A server may send more than the part that was asked for.
        self.ask.until = self.ask.until.filter(|u| *u >= self.ask.offset);
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
            self.in_time()?;
            if self.body.is_none() && self.ask.bound() && self.ask.total == Some(self.ask.offset) {
                // Complete: a request for nothing would be answered with an error.
                self.ended = true;
                continue;
            }
            self.connect()?;
            match self.receive()? {
                Ok(Some(piece)) => self.arrived(piece)?,
                Ok(None) if self.ask.until == Some(self.ask.offset) => {
                    self.ask.until = None;
                    self.body = None;
                }
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

    fn skip(&mut self, n: u64) -> Result<u64> {
        // What was received already is passed over too.
        let here = self.rest.len().min(usize::try_from(n).unwrap_or(usize::MAX));
        bytes::Buf::advance(&mut self.rest, here);
        let more = match self.ask.total {
            Some(t) => (n - here as u64).min(t.saturating_sub(self.ask.offset)),
            None => 0,
        };
        if more > 0 {
            self.ask.offset += more;
            self.failed_at = self.ask.offset;
            if self.ask.no_ranges || self.whole {
                self.skip += more;
            } else {
                self.body = None;
                self.ask.until = None;
            }
        }
        Ok(here as u64 + more)
    }

    fn object(&self) -> Option<Object> {
        Some(Object {
            total: self.ask.total?,
            etag: self.ask.version.etag.clone(),
            modified: self.ask.version.modified.clone(),
        })
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
