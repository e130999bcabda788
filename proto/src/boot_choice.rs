//! A pure model of grub.cfg: which slot starts, and what the environment holds afterwards.
//!
//! It is compared with real GRUB by the end-to-end tests and serves power-cut proofs, which ask it about thousands of
//! damaged disks. It reads blocks as GRUB does ([`env_block::variables`]), not as strictly as the agent.

use crate::env_block::{self, SIGNATURE};
use crate::layout::Slot;
use std::fmt;
use std::str::FromStr;

/// What `save_env` does to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// Writes and keeps.
    Works,
    /// Reports an error and writes nothing.
    Fails,
    /// Reports success and keeps nothing.
    Lost,
}

/// What GRUB finds.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Content of `env1`; `None` = cannot be read.
    pub env1: Option<&'a [u8]>,
    /// Content of `env2`; `None` = cannot be read.
    pub env2: Option<&'a [u8]>,
    /// Whether slot A has a kernel that is not empty. Slot B is never asked.
    pub a_has_kernel: bool,
    /// What a write of the count does.
    pub save: Save,
    /// The slot that somebody picked in the menu.
    pub picked: Option<Slot>,
}

/// What the decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The authoritative copy.
    Env1,
    /// The other copy; never starts a trial.
    Env2,
    /// Neither copy names a slot; the first one with a kernel.
    Kernel,
    /// Somebody's choice in the menu; the environment was not read.
    Hand,
}

impl Source {
    const ALL: [(Source, &'static str); 4] = [
        (Source::Env1, "env1"),
        (Source::Env2, "env2"),
        (Source::Kernel, "none"),
        (Source::Hand, "hand"),
    ];

    /// As grub.cfg prints it.
    pub fn as_str(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(s, _)| *s == self)
            .map_or("none", |(_, t)| t)
    }
}

/// The line that grub.cfg prints before it loads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// What the decision rests on.
    pub source: Source,
    /// Committed slot; `None` when picked by hand.
    pub cur: Option<Slot>,
    /// Slot on trial as the environment names it.
    pub try_slot: Option<Slot>,
    /// Count after this decision, 0 to 3; `None` for anything else.
    pub left: Option<u8>,
    /// The slot that starts.
    pub slot: Slot,
    /// On a counted trial the tries left after this one: the value of `os.trial`.
    pub trial: Option<u8>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_dash<T: ToString>(v: Option<T>) -> String {
            v.map_or_else(|| "-".to_owned(), |v| v.to_string())
        }
        write!(
            f,
            "slipway: src={} cur={} try={} left={} slot={} trial={}",
            self.source.as_str(),
            or_dash(self.cur),
            or_dash(self.try_slot),
            or_dash(self.left),
            self.slot,
            or_dash(self.trial),
        )
    }
}

impl FromStr for Line {
    type Err = String;

    /// Reads the line out of a line of serial output, whatever stands before or after it.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a line of grub.cfg: expected \"slipway: src=... trial=...\"");
        let (_, rest) = text.split_once("slipway: src=").ok_or_else(bad)?;
        let mut words = rest.split_ascii_whitespace();
        let first = words.next().ok_or_else(bad)?;
        let source = Source::ALL
            .iter()
            .find(|(_, t)| *t == first)
            .map(|(s, _)| *s)
            .ok_or_else(bad)?;
        let mut field = |key: &str| {
            words
                .next()
                .and_then(|w| w.strip_prefix(key))
                .and_then(|w| w.strip_prefix('='))
                .ok_or_else(bad)
        };
        let slot = |v: &str| match v {
            "-" => Ok(None),
            _ => v.parse::<Slot>().map(Some),
        };
        let count = |v: &str| match v {
            "-" => Ok(None),
            _ => v.parse::<u8>().map(Some).map_err(|_| bad()),
        };
        Ok(Line {
            source,
            cur: slot(field("cur")?)?,
            try_slot: slot(field("try")?)?,
            left: count(field("left")?)?,
            slot: slot(field("slot")?)?.ok_or_else(bad)?,
            trial: count(field("trial")?)?,
        })
    }
}

/// The outcome of one boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What is printed and started.
    pub line: Line,
    /// Content of `env1` afterwards; `None` when it could not be read (then nothing is written either).
    pub env1: Option<Vec<u8>>,
}

impl Choice {
    /// Whether this boot used up a try.
    pub fn is_trial(&self) -> bool {
        self.line.trial.is_some()
    }
}

/// `cur`, `try`, `left` as `load_env` leaves them.
struct Loaded {
    cur: Option<Slot>,
    try_slot: Option<Slot>,
    left: String,
}

fn load(block: Option<&[u8]>) -> Option<Loaded> {
    let block = block?;
    let slot = |key| match env_block::value(block, key).as_deref() {
        Some("A") => Some(Slot::A),
        Some("B") => Some(Slot::B),
        _ => None,
    };
    Some(Loaded {
        cur: slot("cur"),
        try_slot: slot("try"),
        left: env_block::value(block, "left").unwrap_or_default(),
    })
}

fn shown(left: &str) -> Option<u8> {
    match left {
        "0" => Some(0),
        "1" => Some(1),
        "2" => Some(2),
        "3" => Some(3),
        _ => None,
    }
}

/// What GRUB does with this disk.
pub fn choose(facts: &Facts<'_>) -> Choice {
    let mut env1 = facts.env1.map(<[u8]>::to_vec);
    if let Some(slot) = facts.picked {
        let line = Line {
            source: Source::Hand,
            cur: None,
            try_slot: None,
            left: None,
            slot,
            trial: None,
        };
        return Choice { line, env1 };
    }
    let named = |block| load(block).and_then(|l: Loaded| l.cur.map(|cur| (cur, l)));
    let (source, cur, loaded) = match (named(facts.env1), named(facts.env2)) {
        (Some((cur, l)), _) => (Source::Env1, cur, Some(l)),
        (None, Some((cur, l))) => (Source::Env2, cur, Some(l)),
        (None, None) => {
            let cur = if facts.a_has_kernel { Slot::A } else { Slot::B };
            (Source::Kernel, cur, None)
        }
    };
    let try_slot = loaded.as_ref().and_then(|l| l.try_slot);
    let mut left = loaded.map(|l| l.left).unwrap_or_default();
    let (mut slot, mut trial) = (cur, None);

    let next = match shown(&left) {
        Some(n @ 1..) if source == Source::Env1 => Some(n - 1),
        _ => None,
    };
    let other = try_slot.filter(|t| *t != cur);
    if let (Some(next), Some(other), Some(block)) = (next, other, &env1) {
        let written = set_left(block, next);
        let saved = written.is_some() && facts.save != Save::Fails;
        if let (Some(w), Save::Works) = (written, facts.save) {
            env1 = Some(w);
        }
        left = env1
            .as_deref()
            .and_then(|b| env_block::value(b, "left"))
            .unwrap_or_default();
        if saved && left == next.to_string() {
            slot = other;
            trial = Some(next);
        }
    }
    let line = Line {
        source,
        cur: Some(cur),
        try_slot,
        left: shown(&left),
        slot,
        trial,
    };
    Choice { line, env1 }
}

/// The block after `save_env left` with this one-digit value; `None` where GRUB refuses the block.
///
/// GRUB changes the *first* line of that name, although it reads the last, or appends one where the filling begins.
pub fn set_left(block: &[u8], value: u8) -> Option<Vec<u8>> {
    const KEY: &[u8] = b"left=";
    let value = [b'0' + value.min(9)];
    let end = block.len();
    if end <= SIGNATURE.len() || !block.starts_with(SIGNATURE) {
        return None;
    }
    // The filling begins behind the last line.
    let space = block.iter().rposition(|b| *b != b'#')?;
    if block.get(space) != Some(&b'\n') {
        return None;
    }
    let space = space + 1;
    let mut out = block.to_vec();
    let mut at = SIGNATURE.len();
    while at + KEY.len() < space {
        let line = block.get(at..).unwrap_or_default();
        if let Some(old) = line.strip_prefix(KEY) {
            let start = at + KEY.len();
            let len = value_len(old)?;
            let grow = value.len().saturating_sub(len);
            if end - space < grow {
                return None;
            }
            out = [block.get(..start)?, &value, block.get(start + len..)?].concat();
            // Filling taken or given back at the end of the lines.
            if grow > 0 {
                out.truncate(end);
            } else {
                let lines_end = space - (len - value.len());
                out.splice(lines_end..lines_end, std::iter::repeat_n(b'#', len - value.len()));
            }
            return Some(out);
        }
        at = next_line(block, at);
    }
    let new = [KEY, &value, b"\n"].concat();
    out.get_mut(space..space + new.len())?.copy_from_slice(&new);
    Some(out)
}

/// Length up to the LF that is not escaped; `None` when the block ends before.
fn value_len(value: &[u8]) -> Option<usize> {
    let mut i = 0;
    loop {
        match value.get(i)? {
            b'\n' => return Some(i),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
}

fn next_line(block: &[u8], at: usize) -> usize {
    let rest = block.get(at..).unwrap_or_default();
    at + value_len(rest).map_or(rest.len(), |n| n + 1)
}

#[cfg(test)]
mod tests;
