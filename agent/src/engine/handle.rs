//! A running operation as its callers see it: progress, then a result. Dropping a handle changes nothing.

use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Clock, Report};
use crate::state::{Kind, OpResult};
use os_proto::v1::Progress;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How often progress is passed on.
const EVERY: Duration = Duration::from_millis(200);

/// Progress and, in the end, the result.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Where it stands.
    pub progress: Progress,
    /// Once it is over.
    pub result: Option<Result<OpResult>>,
}

/// A running operation.
pub struct OpHandle {
    /// Its id.
    pub op_id: String,
    /// What it does.
    pub kind: Kind,
    pub(super) cancel: Cancel,
    clock: Arc<dyn Clock>,
    step: Mutex<StepState>,
    view: watch::Sender<View>,
    on_change: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct StepState {
    began: Duration,
    published: Duration,
    progress: Progress,
}

impl OpHandle {
    pub(super) fn new(
        op_id: &str,
        kind: Kind,
        clock: Arc<dyn Clock>,
        on_change: Box<dyn Fn() + Send + Sync>,
    ) -> Arc<OpHandle> {
        let progress = Progress {
            op_id: op_id.to_owned(),
            ..Progress::default()
        };
        Arc::new(OpHandle {
            op_id: op_id.to_owned(),
            kind,
            cancel: Cancel::default(),
            clock,
            step: Mutex::new(StepState {
                progress: progress.clone(),
                ..StepState::default()
            }),
            view: watch::Sender::new(View {
                progress,
                result: None,
            }),
            on_change,
        })
    }

    /// Follows progress and result; the newest value counts.
    pub fn follow(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Progress right now.
    pub fn progress(&self) -> Progress {
        self.step
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .progress
            .clone()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The operation's.
    pub async fn finished(&self) -> Result<OpResult> {
        let mut rx = self.follow();
        let seen = rx.wait_for(|v| v.result.is_some()).await;
        match seen.map(|v| v.result.clone()) {
            Ok(Some(r)) => r,
            _ => Err(AgentError::new(
                os_proto::codes::Code::Internal,
                "the operation ended without a result",
            )),
        }
    }

    pub(super) fn complete(&self, result: Result<OpResult>) {
        self.view.send_modify(|v| v.result = Some(result));
        (self.on_change)();
    }

    fn change(&self, now_publish: bool, f: impl FnOnce(&mut StepState, Duration)) {
        let now = self.clock.monotonic();
        let mut s = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut s, now);
        if !now_publish && now.saturating_sub(s.published) < EVERY {
            return;
        }
        s.published = now;
        let progress = s.progress.clone();
        drop(s);
        self.view.send_modify(|v| v.progress = progress);
        (self.on_change)();
    }

    pub(super) fn attempt(&self, n: u32) {
        self.change(true, |s, _| s.progress.attempt = n);
    }
}

impl Report for OpHandle {
    fn step(&self, name: &'static str, total_bytes: Option<u64>) {
        self.change(true, |s, now| {
            s.began = now;
            name.clone_into(&mut s.progress.step);
            s.progress.done_bytes = 0;
            s.progress.total_bytes = total_bytes.unwrap_or(0);
            s.progress.rate_bytes_per_sec = 0;
            s.progress.eta_secs = 0;
            s.progress.waiting_for.clear();
        });
    }

    fn done(&self, bytes: u64) {
        self.change(false, |s, now| {
            let p = &mut s.progress;
            p.done_bytes = bytes;
            if p.step == "fetch" {
                p.fetched_bytes = bytes;
            }
            let ms = now.saturating_sub(s.began).as_millis().max(1);
            let rate = u128::from(bytes) * 1000 / ms;
            p.rate_bytes_per_sec = u64::try_from(rate).unwrap_or(u64::MAX);
            p.eta_secs = match (p.rate_bytes_per_sec, p.total_bytes.saturating_sub(bytes)) {
                (0, _) | (_, 0) => 0,
                (r, left) => left.div_ceil(r),
            };
        });
    }

    fn wrote(&self, written: u64, saved: u64) {
        self.change(false, |s, _| {
            s.progress.written_bytes = written;
            s.progress.saved_bytes = saved;
        });
    }

    fn waiting(&self, why: Option<String>) {
        self.change(true, |s, _| s.progress.waiting_for = why.unwrap_or_default());
    }
}
