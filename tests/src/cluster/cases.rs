//! Many cases on one control plane, one after the other: a failed one is told and does not stop the others.

use super::Front;
use anyhow::Result;
use std::time::Instant;

/// The cases of one test.
pub struct Cases<'a> {
    front: &'a Front,
    only: String,
    failed: Vec<String>,
}

impl<'a> Cases<'a> {
    /// All cases, or those called `only` (separated by commas) where that is not empty. The front's rules are lifted after each.
    pub fn new(front: &'a Front, only: String) -> Cases<'a> {
        Cases {
            front,
            only,
            failed: Vec::new(),
        }
    }

    /// Runs one case and prints how it went.
    pub async fn run(&mut self, name: &str, case: impl Future<Output = Result<()>>) {
        if !self.only.is_empty() && !self.only.split(',').any(|n| n == name) {
            return;
        }
        let started = Instant::now();
        let result = case.await;
        self.front.clear();
        println!(
            "  {name} {} ({:.1} s)",
            if result.is_ok() { "ok" } else { "FAILED" },
            started.elapsed().as_secs_f64()
        );
        if let Err(e) = result {
            self.failed.push(format!("{name}: {e:#}"));
        }
    }

    /// What failed.
    pub fn failures(self) -> Vec<String> {
        self.failed
    }
}

/// Random numbers that a seed repeats (xorshift64, Marsaglia 2003).
pub struct Dice(u64);

impl Dice {
    /// From a seed; neighbouring seeds give unlike numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// In `0..sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}
