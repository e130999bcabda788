//! Health gates of a trial. PURE: what was observed → a verdict; the engine observes and obeys.

use crate::ports::HookOutcome;
use std::time::Duration;

/// Hooks with this prefix are final at once when they are bad.
pub const CRITICAL: &str = "critical-";
/// Exit status of a hook that says "not yet".
pub const NOT_YET: i32 = 75;

/// Characters of a hook's output that go into a cause.
const SAID: usize = 300;

/// What a hook says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Exit status 0.
    Good,
    /// Exit status 75.
    NotYet,
    /// Any other exit status.
    Bad,
    /// It did not end in time.
    Timeout,
}

impl Verdict {
    /// Of a hook's outcome.
    pub fn of(exit: Option<i32>) -> Verdict {
        match exit {
            Some(0) => Verdict::Good,
            Some(NOT_YET) => Verdict::NotYet,
            Some(_) => Verdict::Bad,
            None => Verdict::Timeout,
        }
    }

    /// As the interface writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::NotYet => "not-yet",
            Verdict::Bad => "bad",
            Verdict::Timeout => "timeout",
        }
    }
}

/// One round of observations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// `boot-complete.target` is active.
    pub boot_complete: bool,
    /// Hooks, in order; empty while the boot is not complete.
    pub hooks: Vec<HookOutcome>,
    /// kubelet's answer; `None` = not a gate.
    pub kubelet: Option<bool>,
}

impl Seen {
    /// What is missing; `None` = all gates hold.
    pub fn missing(&self) -> Option<String> {
        if !self.boot_complete {
            return Some("boot-complete.target is not reached".to_owned());
        }
        if let Some(h) = self.hooks.iter().find(|h| Verdict::of(h.exit) != Verdict::Good) {
            return Some(describe(h));
        }
        (self.kubelet == Some(false)).then(|| "kubelet does not answer healthz with ok".to_owned())
    }

    /// A hook whose verdict is bad, where there is one.
    fn bad_hook(&self) -> Option<&HookOutcome> {
        self.hooks.iter().find(|h| Verdict::of(h.exit) == Verdict::Bad)
    }

    /// A critical hook that is bad or hangs.
    fn critical(&self) -> Option<&HookOutcome> {
        self.hooks.iter().find(|h| {
            h.name.starts_with(CRITICAL) && matches!(Verdict::of(h.exit), Verdict::Bad | Verdict::Timeout)
        })
    }
}

fn describe(h: &HookOutcome) -> String {
    let what = match h.exit {
        Some(NOT_YET) => "says not yet".to_owned(),
        Some(n) => format!("ended with {n}"),
        None => "did not end in time".to_owned(),
    };
    // The end of what it said; this is stored with the state.
    let said = h.output.trim();
    let skip = said.chars().count().saturating_sub(SAID);
    let tail: String = said.chars().skip(skip).collect();
    if tail.is_empty() {
        format!("hook {} {what}", h.name)
    } else {
        format!("hook {} {what}: {tail}", h.name)
    }
}

/// Limits of a trial boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// From the start of the boot.
    pub deadline: Duration,
    /// All gates must hold this long.
    pub settle: Duration,
}

/// What follows from a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// Look again later; the gates do not hold.
    Wait(String),
    /// Look again later; they hold, but not for long enough.
    Settling,
    /// They hold long enough.
    Healthy,
    /// Back to the committed slot at once.
    Bad(String),
    /// The deadline passed.
    Deadline(String),
}

/// Remembers since when all gates hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judge {
    good_since: Option<Duration>,
}

impl Judge {
    /// Since when all gates hold, on the monotonic clock.
    pub fn good_since(&self) -> Option<Duration> {
        self.good_since
    }

    /// Rules on a round seen at `now`, measured from the start of the boot.
    pub fn rule(&mut self, seen: &Seen, now: Duration, limits: &Limits) -> Ruling {
        if let Some(h) = seen.critical() {
            return Ruling::Bad(describe(h));
        }
        let late = now >= limits.deadline;
        match seen.missing() {
            None => {
                let since = *self.good_since.get_or_insert(now);
                if now.saturating_sub(since) >= limits.settle {
                    return Ruling::Healthy;
                }
                if late {
                    return Ruling::Deadline(format!(
                        "all gates held for {} of {} s when the {} s were over",
                        now.saturating_sub(since).as_secs(),
                        limits.settle.as_secs(),
                        limits.deadline.as_secs()
                    ));
                }
                Ruling::Settling
            }
            Some(why) => {
                self.good_since = None;
                match (late, seen.bad_hook()) {
                    (false, _) => Ruling::Wait(why),
                    (true, Some(h)) => Ruling::Bad(format!(
                        "{} and {} s were over",
                        describe(h),
                        limits.deadline.as_secs()
                    )),
                    (true, None) => {
                        Ruling::Deadline(format!("{} s were over: {why}", limits.deadline.as_secs()))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(name: &str, exit: Option<i32>) -> HookOutcome {
        HookOutcome {
            name: name.into(),
            exit,
            output: String::new(),
        }
    }

    fn seen(hooks: Vec<HookOutcome>) -> Seen {
        Seen {
            boot_complete: true,
            hooks,
            kubelet: None,
        }
    }

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn all_good_without_a_break_for_the_settle_time() {
        let l = Limits {
            deadline: S(100),
            settle: S(30),
        };
        let mut j = Judge::default();
        let good = seen(vec![hook("a", Some(0))]);
        assert_eq!(j.rule(&good, S(10), &l), Ruling::Settling);
        assert_eq!(j.rule(&good, S(39), &l), Ruling::Settling);
        assert!(matches!(
            j.rule(&seen(vec![hook("a", Some(75))]), S(39), &l),
            Ruling::Wait(_)
        ));
        assert_eq!(j.rule(&good, S(41), &l), Ruling::Settling, "a flap starts over");
        assert_eq!(j.rule(&good, S(71), &l), Ruling::Healthy);
    }

    #[test]
    fn bad_hooks() {
        let l = Limits {
            deadline: S(100),
            settle: S(0),
        };
        let mut j = Judge::default();
        let bad = seen(vec![hook("20-app", Some(1))]);
        assert!(matches!(j.rule(&bad, S(10), &l), Ruling::Wait(_)));
        assert!(matches!(j.rule(&bad, S(100), &l), Ruling::Bad(_)));
        for exit in [Some(1), None] {
            assert!(matches!(
                j.rule(&seen(vec![hook("critical-net", exit)]), S(10), &l),
                Ruling::Bad(_)
            ));
        }
        assert!(matches!(
            j.rule(&seen(vec![hook("critical-net", Some(75))]), S(10), &l),
            Ruling::Wait(_)
        ));
        for exit in [Some(75), None] {
            assert!(matches!(
                j.rule(&seen(vec![hook("x", exit)]), S(101), &l),
                Ruling::Deadline(_)
            ));
        }
    }

    #[test]
    fn the_boot_and_kubelet_are_gates() {
        let l = Limits {
            deadline: S(100),
            settle: S(0),
        };
        let mut j = Judge::default();
        assert!(matches!(j.rule(&Seen::default(), S(1), &l), Ruling::Wait(_)));
        assert!(matches!(
            j.rule(&Seen::default(), S(100), &l),
            Ruling::Deadline(_)
        ));
        let mut s = seen(vec![]);
        s.kubelet = Some(false);
        assert!(matches!(j.rule(&s, S(1), &l), Ruling::Wait(_)));
        s.kubelet = Some(true);
        assert_eq!(j.rule(&s, S(1), &l), Ruling::Healthy);
    }
}
