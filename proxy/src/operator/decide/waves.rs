//! Where the canary and waves stand. The position is kept in status, so that a restart in a soak changes nothing.

use jiff::Timestamp;

use crate::api::{Time, WaveStatus};
use crate::operator::check::{Wave, WaveCap};

use super::Case;
use super::ledger::add;
use super::standing::{Member, Standing};

/// The current wave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    /// For status; `None` without waves.
    pub(crate) status: Option<WaveStatus>,
    /// Waiting until then.
    pub(crate) soaking: Option<Timestamp>,
    /// Nodes that may be under way or staged beyond those that are updated; `None` = no wave limits it.
    pub(crate) room: Option<usize>,
    only: Option<crate::operator::check::Select>,
}

impl Position {
    /// Whether this node belongs to the current wave.
    pub(crate) fn holds(&self, member: &Member<'_>) -> bool {
        self.only.as_ref().is_none_or(|s| s.matches(&member.node.labels))
    }
}

/// Works out the position.
pub(crate) fn position(case: &Case<'_>) -> Position {
    let Ok(wish) = &case.wish else {
        return Position {
            status: case.old.wave.clone(),
            ..Position::default()
        };
    };
    if wish.waves.is_empty() {
        return Position::default();
    }
    let same = case.old.target_digest.as_deref() == Some(wish.key.as_str());
    let mut at = case.old.wave.clone().filter(|_| same).unwrap_or_default();
    let now = case.fleet.now;
    let work = case
        .members
        .iter()
        .any(|m| m.standing.wants_work() && !m.standing.is_updated());
    loop {
        let Some(wave) = wish.waves.get(at.index as usize) else {
            at.soak_until = None;
            return Position {
                status: Some(at),
                ..Position::default()
            };
        };
        let count = count(case, wave);
        let complete = count.updated >= count.cap && count.flying == 0;
        if !complete || !work {
            if !complete {
                at.soak_until = None;
            }
            let only = match &wave.cap {
                WaveCap::Matching(s) => Some(s.clone()),
                WaveCap::Nodes(_) => None,
            };
            let room = Some(count.cap.saturating_sub(count.updated));
            return Position {
                status: Some(at),
                soaking: None,
                room,
                only,
            };
        }
        let until = match &at.soak_until {
            Some(t) => t.0,
            None if wave.soak_secs > 0 => add(now, wave.soak_secs),
            None => now,
        };
        if until > now {
            at.soak_until = Some(Time(until));
            return Position {
                status: Some(at),
                soaking: Some(until),
                room: Some(0),
                only: None,
            };
        }
        at = WaveStatus {
            index: at.index + 1,
            soak_until: None,
        };
    }
}

struct Count {
    cap: usize,
    updated: usize,
    flying: usize,
}

fn count(case: &Case<'_>, wave: &Wave) -> Count {
    let inside = |m: &&Member<'_>| match &wave.cap {
        WaveCap::Matching(s) => s.matches(&m.node.labels),
        WaveCap::Nodes(_) => true,
    };
    let members: Vec<_> = case
        .members
        .iter()
        .filter(|m| m.counts())
        .filter(inside)
        .collect();
    let can = members
        .iter()
        .filter(|m| m.standing.is_updated() || m.standing.wants_work())
        .count();
    let total = case.members.iter().filter(|m| m.counts()).count();
    let cap = match &wave.cap {
        WaveCap::Matching(_) => can,
        WaveCap::Nodes(n) => n.of_rounded_up(total).min(can),
    };
    Count {
        cap,
        updated: members.iter().filter(|m| m.standing.is_updated()).count(),
        flying: members
            .iter()
            .filter(|m| matches!(m.standing, Standing::InFlight(_) | Standing::Releasing))
            .count(),
    }
}
