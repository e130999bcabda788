//! The one place that asks for the time and that sleeps.
#![allow(clippy::disallowed_methods)] // the home of clocks

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Asks running work to stop; cloned freely.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests the stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it was requested.
    pub fn stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Wall clock, Unix seconds.
pub fn unix() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

/// Time since the boot, including suspend.
pub fn monotonic() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

/// Waits for `span` or until a stop is requested, then at most 100 ms more.
pub fn sleep(span: Duration, stop: &Stop) {
    let end = monotonic() + span;
    while !stop.stopped() {
        let left = end.saturating_sub(monotonic());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// A number below `below` that nobody can foresee; 0 when the kernel gives none.
pub fn random(below: u64) -> u64 {
    let mut raw = [0u8; 8];
    match rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) if below > 0 => u64::from_ne_bytes(raw) % below,
        _ => 0,
    }
}
