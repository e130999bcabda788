//! The real clock: the one place that asks the kernel for the time.
#![allow(clippy::disallowed_methods)] // This is the home of clocks and sleeps.

use crate::ports::{Cancel, Clock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        // Counts from the start of the boot, so it is the age of a trial, also after a restart of the agent.
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(t.tv_sec).unwrap_or(0),
            u32::try_from(t.tv_nsec).unwrap_or(0),
        )
    }

    fn sleep(&self, span: Duration, cancel: &Cancel) {
        let end = self.monotonic() + span;
        while !cancel.is_cancelled() {
            let left = end.saturating_sub(self.monotonic());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
