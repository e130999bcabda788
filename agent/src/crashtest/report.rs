//! What the proof found: the table for people, the document for programs. PURE.

use super::Sabotage;
use serde_json::{Value, json};
use std::fmt::Write;

/// One recorded update.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Recorded writes, flushes and file replacements.
    pub operations: u64,
    /// Cuts after each operation.
    pub prefixes: u64,
    /// Cuts with up to three unflushed writes missing.
    pub dropped: u64,
    /// Cuts with a torn write.
    pub torn: u64,
    /// Cuts with the state directory lost.
    pub state_lost: u64,
    /// Of all these, how many were run to the end of the update.
    pub rerun: u64,
    /// Cuts that break a rule.
    pub bad: u64,
}

impl Row {
    /// Cuts altogether.
    pub fn points(&self) -> u64 {
        self.prefixes + self.dropped + self.torn + self.state_lost
    }

    fn add(&mut self, other: &Row) {
        self.operations += other.operations;
        self.prefixes += other.prefixes;
        self.dropped += other.dropped;
        self.torn += other.torn;
        self.state_lost += other.state_lost;
        self.rerun += other.rerun;
        self.bad += other.bad;
    }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// In which update.
    pub story: String,
    /// At which cut.
    pub cut: String,
    /// What happens.
    pub why: String,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Torn writes were only sampled for the run to the end.
    pub quick: bool,
    /// The mistake that had to be found.
    pub sabotage: Option<Sabotage>,
    /// One row per update.
    pub rows: Vec<Row>,
    /// The first of the violations.
    pub violations: Vec<Violation>,
    /// Milliseconds.
    pub millis: u64,
}

/// Violations that are listed.
pub(super) const LISTED: usize = 10;

impl Report {
    /// The sum of all rows.
    pub fn total(&self) -> Row {
        let mut all = Row {
            name: "all".to_owned(),
            ..Row::default()
        };
        for r in &self.rows {
            all.add(r);
        }
        all
    }

    /// Rows that differ only in where a byte was stored wrongly, as one.
    fn grouped(&self) -> Vec<Row> {
        let mut out: Vec<Row> = Vec::new();
        for r in &self.rows {
            let name = r.name.split(": ").next().unwrap_or_default();
            match out.last_mut().filter(|l| l.name == name) {
                Some(last) => last.add(r),
                None => out.push(Row {
                    name: name.to_owned(),
                    ..r.clone()
                }),
            }
        }
        out
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let _ = writeln!(
            t,
            "{:<36} {:>6} {:>7} {:>7} {:>7} {:>6} {:>8} {:>7} {:>5}",
            "recorded update", "writes", "cuts", "dropped", "torn", "state", "points", "re-run", "bad"
        );
        let total = self.total();
        for r in self.grouped().iter().chain([&total]) {
            let _ = writeln!(
                t,
                "{:<36} {:>6} {:>7} {:>7} {:>7} {:>6} {:>8} {:>7} {:>5}",
                r.name,
                r.operations,
                r.prefixes,
                r.dropped,
                r.torn,
                r.state_lost,
                r.points(),
                r.rerun,
                r.bad
            );
        }
        let secs = self.millis as f64 / 1000.0;
        let _ = writeln!(
            t,
            "{} power cuts, {} bad, in {secs:.1} s. At each, the slot that GRUB starts is the old one, intact, or the new one, \
             verified; re-run: the same request was made again and ended well.",
            total.points(),
            total.bad
        );
        if let Some(s) = self.sabotage {
            let found = if total.bad > 0 {
                "was found"
            } else {
                "WAS NOT FOUND"
            };
            let _ = writeln!(t, "sabotage {} {found}", s.as_str());
        }
        for v in &self.violations {
            let _ = writeln!(t, "bad: {}: {}\n     {}", v.story, v.cut, v.why);
        }
        t
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let row = |r: &Row| {
            json!({
                "name": r.name, "operations": r.operations, "prefixes": r.prefixes, "dropped": r.dropped, "torn": r.torn,
                "state_lost": r.state_lost, "points": r.points(), "rerun": r.rerun, "bad": r.bad,
            })
        };
        let total = self.total();
        json!({
            "quick": self.quick, "sabotage": self.sabotage.map(Sabotage::as_str),
            "points": total.points(), "rerun": total.rerun, "bad": total.bad, "millis": self.millis,
            "updates": self.rows.iter().map(row).collect::<Vec<_>>(),
            "violations": self.violations.iter().map(|v| json!({
                "update": v.story, "cut": v.cut, "why": v.why,
            })).collect::<Vec<_>>(),
        })
    }
}
