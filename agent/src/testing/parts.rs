//! Source, clock and host in memory.

use super::locked;
use crate::error::{AgentError, Result};
use crate::evidence::Panic;
use crate::ports::{
    Cancel, Clock, Download, HookOutcome, Host, Location, OsRelease, Report, Source, SourceRequest,
};
use bytes::Bytes;
use os_proto::codes::Code;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A server in memory: URLs with content, and failures that come first.
#[derive(Debug, Clone, Default)]
pub struct MemSource(Arc<Mutex<Served>>);

#[derive(Debug, Default)]
struct Served {
    files: BTreeMap<String, Vec<u8>>,
    open_failures: VecDeque<AgentError>,
    break_at: Option<(usize, AgentError)>,
    gate: bool,
    hold_at: Option<usize>,
    holding: bool,
    opened: u32,
}

impl MemSource {
    /// Serves `data` at `url`.
    pub fn put(&self, url: &str, data: Vec<u8>) {
        locked(&self.0).files.insert(url.to_owned(), data);
    }

    /// The next open fails.
    pub fn fail_open(&self, e: AgentError) {
        locked(&self.0).open_failures.push_back(e);
    }

    /// The next download fails after so many bytes.
    pub fn fail_at(&self, bytes: usize, e: AgentError) {
        locked(&self.0).break_at = Some((bytes, e));
    }

    /// Downloads stand still until this is called with `false`, or they are cancelled.
    pub fn hold(&self, hold: bool) {
        locked(&self.0).gate = hold;
    }

    /// Downloads stand still once so many bytes were handed out, until this is called with `None` or they are cancelled.
    pub fn hold_at(&self, bytes: Option<usize>) {
        let mut s = locked(&self.0);
        s.hold_at = bytes;
        s.holding = false;
    }

    /// Whether a download stands still at [`MemSource::hold_at`].
    pub fn holding(&self) -> bool {
        locked(&self.0).holding
    }

    /// How often something was opened.
    pub fn opened(&self) -> u32 {
        locked(&self.0).opened
    }
}

impl Source for MemSource {
    fn open(
        &self,
        request: &SourceRequest,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>> {
        let mut s = locked(&self.0);
        s.opened += 1;
        if let Some(e) = s.open_failures.pop_front() {
            return Err(e);
        }
        let url = match &request.location {
            Location::Url(u) => u.clone(),
            Location::File(f) => f.to_string(),
            Location::Oci { reference, .. } => reference.clone(),
            Location::Slot(_) => return Err(AgentError::new(Code::InvalidArgument, "a slot is not fetched")),
        };
        let data = s
            .files
            .get(&url)
            .cloned()
            .ok_or_else(|| AgentError::new(Code::FetchFailed, format!("GET {url}: 404 Not Found")))?;
        report.step("fetch", Some(data.len() as u64));
        Ok(Box::new(MemDownload {
            url,
            break_at: s.break_at.take(),
            data,
            at: 0,
            served: self.clone(),
            cancel: cancel.clone(),
        }))
    }
}

struct MemDownload {
    url: String,
    data: Vec<u8>,
    at: usize,
    break_at: Option<(usize, AgentError)>,
    served: MemSource,
    cancel: Cancel,
}

impl Download for MemDownload {
    fn total(&self) -> Option<u64> {
        Some(self.data.len() as u64)
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        while locked(&self.served.0).gate {
            self.cancel.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            let mut s = locked(&self.served.0);
            if s.hold_at.is_none_or(|n| self.at < n) {
                break;
            }
            s.holding = true;
            drop(s);
            self.cancel.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cancel.check()?;
        let limit = self.break_at.as_ref().map_or(self.data.len(), |(n, _)| *n);
        let held = locked(&self.served.0).hold_at.unwrap_or(usize::MAX);
        let end = (self.at + (64 << 10)).min(limit).min(held).min(self.data.len());
        if self.at == end {
            return match self.break_at.take() {
                Some((_, e)) => Err(e),
                None => Ok(None),
            };
        }
        let part = Bytes::copy_from_slice(&self.data[self.at..end]);
        self.at = end;
        Ok(Some(part))
    }

    fn describe(&self) -> String {
        self.url.clone()
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Clone)]
pub struct HandClock(Arc<(Mutex<(i64, Duration)>, Condvar)>);

impl Default for HandClock {
    fn default() -> Self {
        HandClock(Arc::new((
            Mutex::new((1_800_000_000, Duration::ZERO)),
            Condvar::new(),
        )))
    }
}

impl HandClock {
    /// Moves both clocks on.
    pub fn advance(&self, span: Duration) {
        let mut t = locked(&self.0.0);
        t.0 += span.as_secs() as i64;
        t.1 += span;
        self.0.1.notify_all();
    }

    /// Sets the wall clock, for tests in which others live in real time.
    pub fn set_unix(&self, secs: i64) {
        locked(&self.0.0).0 = secs;
        self.0.1.notify_all();
    }

    /// A boot: monotonic time starts over.
    pub fn reboot(&self) {
        locked(&self.0.0).1 = Duration::ZERO;
    }
}

impl Clock for HandClock {
    fn unix(&self) -> i64 {
        locked(&self.0.0).0
    }

    fn monotonic(&self) -> Duration {
        locked(&self.0.0).1
    }

    fn sleep(&self, span: Duration, cancel: &Cancel) {
        let mut t = locked(&self.0.0);
        let end = t.1 + span;
        while t.1 < end && !cancel.is_cancelled() {
            // Short waits notice a cancel, and a boot that set the clock back.
            t = self.0.1.wait_timeout(t, Duration::from_millis(5)).unwrap().0;
        }
    }
}

/// A running system that does what the test says.
#[derive(Debug, Clone, Default)]
pub struct MemHost(Arc<Mutex<Running>>);

/// What a [`MemHost`] answers.
#[derive(Debug, Default)]
pub struct Running {
    /// Boot id.
    pub boot_id: String,
    /// Kernel command line.
    pub cmdline: String,
    /// Identity.
    pub os: OsRelease,
    /// boot-complete.target is active.
    pub boot_complete: bool,
    /// Outcomes of all hooks.
    pub hooks: Vec<HookOutcome>,
    /// kubelet's answer.
    pub kubelet: Option<bool>,
    /// Panic record of the last boot that nobody has seen.
    pub panic: Option<String>,
    /// Why a trial cannot be judged.
    pub obstacle: Option<String>,
    /// What is wrong with PERSIST.
    pub persist_problems: Vec<String>,
    /// Why the step runner wants a reboot.
    pub steps_reboot: Option<String>,
    /// Reboot requests in this boot.
    pub reboots: u32,
    /// The early timer was stopped.
    pub timer_stopped: bool,
    /// Reboot requests fail.
    pub reboot_broken: bool,
}

impl MemHost {
    /// What it answers, to read or change.
    pub fn set(&self) -> MutexGuard<'_, Running> {
        locked(&self.0)
    }
}

impl Host for MemHost {
    fn boot_id(&self) -> String {
        self.set().boot_id.clone()
    }
    fn machine_id(&self) -> String {
        "0123456789abcdef0123456789abcdef".into()
    }
    fn cmdline(&self) -> String {
        self.set().cmdline.clone()
    }
    fn os_release(&self) -> OsRelease {
        self.set().os.clone()
    }
    fn boot_complete(&self) -> bool {
        self.set().boot_complete
    }
    fn run_hooks(&self, _: Duration) -> Vec<HookOutcome> {
        self.set().hooks.clone()
    }
    fn kubelet_healthy(&self) -> Option<bool> {
        self.set().kubelet
    }
    fn reboot(&self) -> Result<()> {
        let mut s = self.set();
        s.reboots += 1;
        if s.reboot_broken {
            return Err(AgentError::new(Code::Internal, "systemctl reboot was refused"));
        }
        Ok(())
    }
    fn stop_trial_timer(&self) {
        self.set().timer_stopped = true;
    }
    fn panic_record(&self) -> Option<Panic> {
        let reason = self.set().panic.take()?;
        Some(Panic {
            lines: vec![reason.clone()],
            reason,
            ..Panic::default()
        })
    }
    fn trial_obstacle(&self) -> Option<String> {
        self.set().obstacle.clone()
    }
    fn persist_problems(&self) -> Vec<String> {
        self.set().persist_problems.clone()
    }
    fn steps_want_reboot(&self) -> Option<String> {
        self.set().steps_reboot.clone()
    }
}
