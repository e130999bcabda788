//! Which server a connection goes to. PURE.

/// What is known of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    /// It was looked at.
    pub known: bool,
    /// Looks and connections in a row that failed.
    pub fails: u32,
    /// How long its last answer took, milliseconds.
    pub latency_ms: u64,
    /// It does not prove to be one of ours, or says that it is not ready.
    pub refused: bool,
}

/// How good a server is; the best is the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Answers as quickly as the others.
    Good,
    /// Answers, but several times slower than the best.
    Slow,
    /// Not looked at yet.
    Unknown,
    /// Did not answer.
    Bad,
    /// Answers, but should not be asked: a wrong certificate, not ready.
    Refused,
}

/// Looks in a row after which the connections of a silent server are cut, so that clients turn to another one.
pub const DEAD_AFTER: u32 = 3;
/// Below this a server counts as quick, whatever the others take, milliseconds.
const QUICK_MS: u64 = 50;

/// The class of each server.
pub fn classes(all: &[Health]) -> Vec<Class> {
    let answers = |h: &&Health| h.known && h.fails == 0 && !h.refused;
    let best = all
        .iter()
        .filter(answers)
        .map(|h| h.latency_ms)
        .min()
        .unwrap_or(0);
    let limit = (best * 4).max(QUICK_MS);
    all.iter()
        .map(|h| match h {
            Health { refused: true, .. } => Class::Refused,
            Health { fails: 1.., .. } => Class::Bad,
            Health { known: false, .. } => Class::Unknown,
            h if h.latency_ms <= limit => Class::Good,
            _ => Class::Slow,
        })
        .collect()
}

/// Servers in the order in which a new connection tries them: by class, within a class by lot. Nobody is left out: where all
/// look bad the client itself finds out. `random(n)` gives a number below `n`.
pub fn order(all: &[Health], mut random: impl FnMut(u64) -> u64) -> Vec<usize> {
    let classes = classes(all);
    let mut keyed: Vec<(Class, u64, usize)> = classes
        .into_iter()
        .enumerate()
        .map(|(i, c)| (c, random(1 << 32), i))
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, _, i)| i).collect()
}

/// Servers whose open connections are cut: silent for [`DEAD_AFTER`] looks, while another one is good.
pub fn dead(all: &[Health]) -> Vec<usize> {
    let other = classes(all).iter().any(|c| *c <= Class::Slow);
    all.iter()
        .enumerate()
        .filter(|(_, h)| other && h.fails >= DEAD_AFTER)
        .map(|(i, _)| i)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(ms: u64) -> Health {
        Health {
            known: true,
            latency_ms: ms,
            ..Health::default()
        }
    }

    fn failing(n: u32) -> Health {
        Health { fails: n, ..good(1) }
    }

    fn refused() -> Health {
        Health {
            refused: true,
            ..good(1)
        }
    }

    #[test]
    fn the_best_class_first_and_nobody_left_out() {
        let all = [refused(), failing(1), Health::default(), good(900), good(5)];
        assert_eq!(order(&all, |_| 0), [4, 3, 2, 1, 0]);
        assert_eq!(order(&[refused()], |_| 0), [0]);
        assert!(order(&[], |_| 0).is_empty());
    }

    #[test]
    fn among_equals_the_lot_decides() {
        let mut next = [3, 1, 2].into_iter();
        let all = [good(5), good(9), good(40)];
        assert_eq!(order(&all, |_| next.next().unwrap()), [1, 2, 0]);
    }

    #[test]
    fn slow_is_what_takes_four_times_as_long_as_the_best() {
        use Class::{Good, Slow};
        assert_eq!(classes(&[good(100), good(390), good(410)]), [Good, Good, Slow]);
        assert_eq!(classes(&[good(1), good(50), good(51)]), [Good, Good, Slow]);
        // Where all are slow nobody is.
        assert_eq!(classes(&[good(800), good(900)]), [Good, Good]);
    }

    #[test]
    fn connections_are_cut_only_where_there_is_somewhere_to_go() {
        assert_eq!(dead(&[failing(DEAD_AFTER), good(1), failing(1)]), [0]);
        assert!(dead(&[failing(9), failing(9)]).is_empty());
        assert!(dead(&[failing(9), refused()]).is_empty());
    }
}
