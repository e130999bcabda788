//! Talks to the service manager: ready, a line of status, the watchdog, stopping.

use crate::engine::Engine;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;

/// A busy worker may be silent for so long (a flush of a slow disk); an idle one answers every second.
const BUSY_SILENCE_SECS: u64 = 600;
const IDLE_SILENCE_SECS: u64 = 20;

fn tell(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::debug!(%e, "sd_notify");
    }
}

/// The socket answers.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The agent goes down.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Keeps the status line current and the watchdog fed, as long as worker and engine respond.
pub async fn attend(engine: Arc<Engine>, ping: bool) {
    let period = sd_notify::watchdog_enabled().map_or(Duration::from_secs(10), |p| p / 3);
    let mut line = String::new();
    loop {
        let e = engine.clone();
        // The engine's lock must be free again soon; a blocked one starves the watchdog, which is its purpose.
        let phase = tokio::task::spawn_blocking(move || e.phase()).await;
        if let Ok(phase) = phase {
            let (silent, busy) = engine.worker_silence();
            let limit = if busy {
                BUSY_SILENCE_SECS
            } else {
                IDLE_SILENCE_SECS
            };
            if silent <= limit {
                if ping {
                    tell(&[NotifyState::Watchdog]);
                }
            } else {
                tracing::error!(silent, busy, "the worker does not respond");
            }
            if line != phase.as_str() {
                phase.as_str().clone_into(&mut line);
                tell(&[NotifyState::Status(&line)]);
            }
        }
        tokio::time::sleep(period).await;
    }
}
