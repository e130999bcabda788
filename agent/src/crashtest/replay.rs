//! Every disk that a power cut can leave behind one recorded update.
//!
//! After each recorded operation: what was flushed is there; of the writes that were not, all are there, or up to three are
//! missing, or one is torn at a sector boundary.

use super::medium::{Content, Op, Region, SECTOR};
use os_proto::layout::Slot;

/// Unflushed writes that go missing at once, at most.
const MISSING: usize = 3;

/// How a cut differs from the plain one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loss {
    /// Everything that was written is there.
    Nothing,
    /// These unflushed writes are missing (indices into the log).
    Dropped(Vec<usize>),
    /// Of this write only so many bytes are there.
    Torn(usize, usize),
    /// The files of the state directory are gone.
    State,
}

/// One power cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// Operations that were made before it.
    pub(super) after: usize,
    /// What did not reach the medium.
    pub(super) loss: Loss,
}

impl Cut {
    /// For messages.
    pub(super) fn describe(&self, log: &[Op]) -> String {
        let mut phase = "start";
        for op in log.iter().take(self.after) {
            if let Op::Mark(m) = op {
                phase = m;
            }
        }
        let loss = match &self.loss {
            Loss::Nothing => String::new(),
            Loss::Dropped(d) => {
                let list: Vec<String> = d.iter().map(|i| name(log, *i)).collect();
                format!(", lost: {}", list.join("; "))
            }
            Loss::Torn(i, n) => format!(", torn after {n} bytes: {}", name(log, *i)),
            Loss::State => ", the state directory lost".to_owned(),
        };
        format!(
            "cut after operation {} of {} ({phase}){loss}",
            self.after,
            log.len()
        )
    }
}

fn name(log: &[Op], i: usize) -> String {
    match log.get(i) {
        Some(Op::Write(r, at, data)) => format!("{} bytes at {at} of {r:?}", data.len()),
        other => format!("{other:?}"),
    }
}

/// Walks a log: what is durable, and what is only in the cache.
pub(super) struct Walk<'a> {
    log: &'a [Op],
    durable: Content,
    pending: Vec<usize>,
    at: usize,
    /// Reboots asked for so far.
    pub(super) reboots: u32,
}

impl<'a> Walk<'a> {
    /// Before the first operation.
    pub(super) fn new(log: &'a [Op], base: Content) -> Walk<'a> {
        Walk {
            log,
            durable: base,
            pending: Vec::new(),
            at: 0,
            reboots: 0,
        }
    }

    /// Makes the next operation; `false` at the end.
    pub(super) fn step(&mut self) -> bool {
        let Some(op) = self.log.get(self.at) else {
            return false;
        };
        match op {
            Op::Write(..) => self.pending.push(self.at),
            Op::Flush(region) => {
                let (done, rest): (Vec<usize>, Vec<usize>) = self
                    .pending
                    .iter()
                    .copied()
                    .partition(|i| self.region(*i) == Some(*region));
                for i in done {
                    apply(&mut self.durable, self.log.get(i), usize::MAX);
                }
                self.pending = rest;
            }
            Op::File(name, content) => match content {
                Some(c) => {
                    self.durable.files.insert(name.clone(), c.clone());
                }
                None => {
                    self.durable.files.remove(name);
                }
            },
            Op::Mark(_) => {}
            Op::Reboot => self.reboots += 1,
        }
        self.at += 1;
        true
    }

    fn region(&self, i: usize) -> Option<Region> {
        match self.log.get(i) {
            Some(Op::Write(r, ..)) => Some(*r),
            _ => None,
        }
    }

    /// The disk that `cut`, a cut at this place, leaves.
    pub(super) fn image(&self, cut: &Cut) -> Content {
        self.leave(cut, |_| true)
    }

    /// The same without what is only in the cache of the slots: enough to know what GRUB decides, and cheap.
    pub(super) fn environment(&self, cut: &Cut) -> Content {
        self.leave(cut, |r| r == Region::State)
    }

    /// Whether slot A is as durable as it ever was.
    pub(super) fn leaves_slot_a_alone(&self) -> bool {
        self.pending
            .iter()
            .all(|i| self.region(*i) != Some(Region::Slot(Slot::A)))
    }

    fn leave(&self, cut: &Cut, regions: impl Fn(Region) -> bool) -> Content {
        let mut c = self.durable.clone();
        let gone: &[usize] = match &cut.loss {
            Loss::Dropped(d) => d,
            _ => &[],
        };
        for i in self.pending.iter().filter(|i| !gone.contains(i)) {
            if !self.region(*i).is_some_and(&regions) {
                continue;
            }
            let bytes = match cut.loss {
                Loss::Torn(t, n) if t == *i => n,
                _ => usize::MAX,
            };
            apply(&mut c, self.log.get(*i), bytes);
        }
        if cut.loss == Loss::State {
            c.files.clear();
        }
        c
    }

    /// Every cut at this place that no earlier place had.
    pub(super) fn cuts(&self) -> Vec<Cut> {
        let cut = |loss| Cut { after: self.at, loss };
        let mut out = vec![cut(Loss::Nothing)];
        let last = self.at.checked_sub(1).and_then(|i| Some((i, self.log.get(i)?)));
        match last {
            None => return out,
            // A mark changes nothing, so its cuts are those before it.
            Some((_, Op::Mark(_) | Op::Reboot)) => return Vec::new(),
            Some((_, Op::File(..))) => out.push(cut(Loss::State)),
            _ => {}
        }
        let fresh = matches!(last, Some((_, Op::Write(..) | Op::File(..))));
        if fresh {
            // With the newest write missing it would be a cut at the place before.
            let old: Vec<usize> = self
                .pending
                .iter()
                .copied()
                .filter(|i| Some(*i) != last.map(|(i, _)| i))
                .collect();
            subsets(&old, &mut |d: &[usize]| out.push(cut(Loss::Dropped(d.to_vec()))));
        }
        if let Some((i, Op::Write(_, _, data))) = last {
            tears(data.len(), |n| out.push(cut(Loss::Torn(i, n))));
        }
        // Older writes torn while younger ones are whole: once, where the cache is fullest.
        if let Some(Op::Flush(region)) = self.log.get(self.at) {
            for i in self
                .pending
                .iter()
                .filter(|i| self.region(**i) == Some(*region) && **i + 1 != self.at)
            {
                if let Some(Op::Write(_, _, data)) = self.log.get(*i) {
                    tears(data.len(), |n| out.push(cut(Loss::Torn(*i, n))));
                }
            }
        }
        out
    }
}

fn apply(c: &mut Content, op: Option<&Op>, bytes: usize) {
    if let Some(Op::Write(region, at, data)) = op {
        c.put(
            *region,
            *at,
            data.get(..bytes.min(data.len())).unwrap_or_default(),
        );
    }
}

fn tears(len: usize, mut f: impl FnMut(usize)) {
    for n in (SECTOR..len).step_by(SECTOR) {
        f(n);
    }
}

/// Every subset of one to [`MISSING`] elements.
fn subsets(of: &[usize], f: &mut impl FnMut(&[usize])) {
    fn go(of: &[usize], chosen: &mut Vec<usize>, f: &mut impl FnMut(&[usize])) {
        for (i, x) in of.iter().enumerate() {
            chosen.push(*x);
            f(chosen);
            if chosen.len() < MISSING {
                go(of.get(i + 1..).unwrap_or_default(), chosen, f);
            }
            chosen.pop();
        }
    }
    go(of, &mut Vec::new(), f);
}
