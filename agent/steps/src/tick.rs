//! The runner as a service: looks every 60 jittered seconds, or when asked. A look that finds nothing to do executes no step
//! and writes nothing.

use crate::error::{Result, StepsError};

use crate::run::{Ended, Options, Runner, describe};
use crate::source::{Loader, Source};
use crate::state::{Outcome, State};
use crate::sys::clock;
use os_proto::codes::Code;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Mean time between two looks.
pub const PERIOD: Duration = Duration::from_secs(60);

/// Runner and loader together.
pub struct Service {
    /// Runs.
    pub runner: Runner,
    /// Loads.
    pub loader: Loader,
}

impl Service {
    /// One look at `source`, and a run if there is one to do.
    ///
    /// # Errors
    /// As [`Runner::run`] and [`Loader::load`]; a failed delivery is recorded and the last good bundle is looked after.
    pub fn look(&self, source: &Source, options: &Options) -> Result<Ended> {
        self.loader.dirs.make_own()?;
        let bundle = match self.loader.load(source) {
            Ok(b) => b,
            Err(e) if options.tick => {
                tracing::warn!(%e, "the bundle could not be delivered; the last good one stays");
                let mut state = State::load(&self.runner.dirs.steps)?;
                self.runner.refused(&mut state, &e);
                Some(self.loader.load(&Source::Applied)?.ok_or(e)?)
            }
            Err(e) => return Err(e),
        };
        let Some(bundle) = bundle else {
            return Ok(Ended {
                outcome: Outcome::InSync,
                run_id: String::new(),
                content_hash: String::new(),
                executed: 0,
                notes: Vec::new(),
            });
        };
        self.runner.run(&bundle, options)
    }

    /// Looks until the runner is stopped. Whatever arrives on `wake` causes a look at once.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that name no source.
    pub fn serve(&self, wake: &Receiver<()>) -> Result<()> {
        let source = Source::parse("", &self.runner.settings)?;
        let options = Options {
            tick: true,
            ..Options::default()
        };
        while !self.runner.stop.stopped() {
            match self.look(&source, &options) {
                Ok(e) if e.executed > 0 => tracing::info!("{:?}", e.outcome),
                Ok(_) => {}
                Err(e) if e.code == Code::Busy => tracing::info!(%e),
                Err(e) => tracing::error!(%e),
            }
            let jitter = PERIOD.as_millis() as u64 / 5;
            let mut left =
                PERIOD - Duration::from_millis(jitter / 2) + Duration::from_millis(clock::random(jitter));
            while !left.is_zero() && !self.runner.stop.stopped() {
                let piece = left.min(Duration::from_millis(500));
                match wake.recv_timeout(piece) {
                    Ok(()) => break,
                    Err(RecvTimeoutError::Timeout) => left -= piece,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

/// The exit code's code for an outcome; `None` = done.
pub fn verdict(o: &Outcome) -> Option<StepsError> {
    let text = describe(o);
    match o {
        Outcome::InSync | Outcome::Converged { .. } | Outcome::Drifted { .. } => None,
        // Handed over, or only reported here.
        Outcome::RebootPending {
            waits_for: None,
            refused,
            ..
        } if refused.is_empty() => None,
        Outcome::RebootPending { .. } => Some(StepsError::new(Code::Waiting, text)),
        Outcome::WaitingApproval | Outcome::WaitingDisruption { .. } | Outcome::Stopped => {
            Some(StepsError::new(Code::Waiting, text))
        }
        Outcome::Failed(f) => {
            let code = match f.kind.as_str() {
                "bundle" => Code::BundleInvalid,
                "fetch" => Code::FetchFailed,
                _ => Code::StepFailed,
            };
            Some(StepsError::new(code, text))
        }
    }
}
