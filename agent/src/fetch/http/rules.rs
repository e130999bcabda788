//! PURE: the arithmetic of the fetch policy.

use std::time::Duration;

/// A Content-Range header (RFC 9110, 14.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes FIRST-LAST/TOTAL`, TOTAL may be `*`.
    Bytes {
        /// First byte.
        first: u64,
        /// Last byte.
        last: u64,
        /// Size of the object.
        total: Option<u64>,
    },
    /// `bytes */TOTAL`.
    Unsatisfied {
        /// Size of the object.
        total: u64,
    },
}

/// Reads a Content-Range.
pub fn content_range(value: &str) -> Option<ContentRange> {
    let rest = value.trim().strip_prefix("bytes")?.trim_start();
    let (range, total) = rest.split_once('/')?;
    let total = match total.trim() {
        "*" => None,
        n => Some(n.parse().ok()?),
    };
    if range.trim() == "*" {
        return Some(ContentRange::Unsatisfied { total: total? });
    }
    let (first, last) = range.trim().split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && total.is_none_or(|t| last < t)).then_some(ContentRange::Bytes { first, last, total })
}

/// Pause before try `n` (from 1): doubles up to `max`, less up to a quarter by `jitter` (0 to 255).
pub fn backoff(first: Duration, max: Duration, n: u32, jitter: u8) -> Duration {
    let full = first
        .saturating_mul(1u32.checked_shl(n.saturating_sub(1)).unwrap_or(u32::MAX))
        .min(max);
    full - full / 4 * u32::from(jitter) / 255
}

/// Bandwidth cap: a bucket of a tenth of a second.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate: u64,
    /// Bytes that may pass now; negative = debt.
    tokens: f64,
    last: Option<Duration>,
}

impl TokenBucket {
    /// `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        TokenBucket {
            rate: rate.max(1),
            tokens: 0.0,
            last: None,
        }
    }

    /// Takes `n` bytes at `now` and says how long to pause.
    pub fn take(&mut self, now: Duration, n: usize) -> Duration {
        let rate = self.rate as f64;
        let since = self.last.map_or(0.0, |l| now.saturating_sub(l).as_secs_f64());
        self.last = Some(now);
        self.tokens = (self.tokens + since * rate).min(rate / 10.0) - n as f64;
        if self.tokens < 0.0 {
            Duration::from_secs_f64((-self.tokens / rate).min(3600.0))
        } else {
            Duration::ZERO
        }
    }
}

/// Ends connections that crawl. Counts only time spent waiting for the server, not our own.
#[derive(Debug, Clone)]
pub struct RateGuard {
    min_per_sec: u64,
    span: Duration,
    waited: Duration,
    bytes: u64,
}

impl RateGuard {
    /// Less than `min_per_sec` over `span` is too slow; 0 switches it off.
    pub fn new(min_per_sec: u64, span: Duration) -> Self {
        RateGuard {
            min_per_sec,
            span,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// The same limits, nothing counted yet: for a new connection.
    #[must_use]
    pub fn fresh(self) -> Self {
        RateGuard::new(self.min_per_sec, self.span)
    }

    /// Bytes that must come within the span.
    pub fn least(&self) -> u64 {
        (self.min_per_sec as f64 * self.span.as_secs_f64()) as u64
    }

    /// Whether a wait that lasts `now` already makes it too slow.
    pub fn too_slow(&self, now: Duration) -> bool {
        self.min_per_sec > 0 && self.waited + now >= self.span && self.bytes < self.least()
    }

    /// Bytes came after a wait.
    pub fn came(&mut self, wait: Duration, bytes: usize) {
        self.waited += wait;
        self.bytes += bytes as u64;
        if self.bytes >= self.least() {
            self.waited = Duration::ZERO;
            self.bytes = 0;
        }
    }
}

/// What an answer's status means for the download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 200: the whole object.
    Whole,
    /// 206: a range.
    Part,
    /// Look elsewhere.
    Redirect,
    /// 416.
    Unsatisfied,
    /// Try again.
    Again,
    /// Trying again would not help.
    Final,
}

/// Judges a status; `moved` = after a redirect, whose signed target may have expired.
pub fn verdict(status: u16, moved: bool) -> Verdict {
    match status {
        200 => Verdict::Whole,
        206 => Verdict::Part,
        301 | 302 | 303 | 307 | 308 => Verdict::Redirect,
        401 | 403 if moved => Verdict::Again,
        408 | 425 | 429 | 500..=599 => Verdict::Again,
        416 => Verdict::Unsatisfied,
        _ => Verdict::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let bytes = |first, last, total| Some(ContentRange::Bytes { first, last, total });
        assert_eq!(content_range("bytes 5-9/10"), bytes(5, 9, Some(10)));
        assert_eq!(content_range(" bytes 0-0/*"), bytes(0, 0, None));
        assert_eq!(
            content_range("bytes */77"),
            Some(ContentRange::Unsatisfied { total: 77 })
        );
        for bad in [
            "",
            "bytes",
            "bytes 9-5/10",
            "bytes 0-10/10",
            "items 0-1/2",
            "bytes */*",
            "bytes -1-2/3",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn pauses_double_to_the_limit_and_vary_by_a_quarter() {
        let s = Duration::from_secs;
        let full: Vec<u64> = (1..=8).map(|n| backoff(s(1), s(60), n, 0).as_secs()).collect();
        assert_eq!(full, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff(s(4), s(60), 1, 255), s(3));
        assert_eq!(backoff(s(1), s(60), u32::MAX, 0), s(60));
    }

    #[test]
    fn a_bucket_keeps_the_rate_within_five_percent() {
        for piece in [100usize, 4096, 300_000] {
            let mut bucket = TokenBucket::new(1_000_000);
            let mut now = Duration::ZERO;
            let mut sent = 0u64;
            while sent < 20_000_000 {
                now += bucket.take(now, piece);
                sent += piece as u64;
            }
            let rate = sent as f64 / now.as_secs_f64();
            assert!((rate / 1e6 - 1.0).abs() < 0.05, "{piece}: {rate}");
        }
    }

    #[test]
    fn crawling_is_noticed_and_a_slow_reader_is_not_blamed() {
        let s = Duration::from_secs;
        let mut g = RateGuard::new(1024, s(60));
        assert!(!g.too_slow(s(59)) && g.too_slow(s(60)));
        for _ in 0..29 {
            g.came(s(2), 100);
        }
        assert!(g.too_slow(s(2)));
        let mut trickle = RateGuard::new(1024, s(60));
        for _ in 0..1200 {
            assert!(!trickle.too_slow(Duration::ZERO));
            trickle.came(Duration::from_millis(50), 1);
        }
        assert!(trickle.too_slow(Duration::ZERO));
        let mut fast = RateGuard::new(1024, s(60));
        for _ in 0..1000 {
            fast.came(s(1), 2048);
            assert!(!fast.too_slow(s(1)));
        }
        assert!(!RateGuard::new(0, s(60)).too_slow(s(9999)));
    }

    #[test]
    fn statuses() {
        use Verdict::*;
        for (status, moved, want) in [
            (200, false, Whole),
            (206, false, Part),
            (307, false, Redirect),
            (403, false, Final),
            (403, true, Again),
            (404, true, Final),
            (416, false, Unsatisfied),
            (429, false, Again),
            (503, false, Again),
            (204, false, Final),
        ] {
            assert_eq!(verdict(status, moved), want, "{status}");
        }
    }
}
