//! Judges every cut, and runs the update to its end from them; cuts are spread over the machine's processors.

use super::machine::{self, broken, grub};
use super::medium::{Content, ENV1, ENV2, Op};
use super::replay::{Cut, Loss, Walk};
use super::report::{LISTED, Report, Row, Violation};
use super::story::{Story, stories};
use super::{Images, Plan, Sabotage};
use crate::error::Result;
use crate::ports::Clock;
use crate::sys::clock::SystemClock;
use os_proto::boot_choice::Choice;
use os_proto::layout::Slot;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Violations after which a sabotaged update needs no further proof.
const ENOUGH: u64 = 25;

/// A disk to run the update to its end on.
struct Job {
    cut: Cut,
    image: Content,
    reboots: u32,
}

/// The proof. `progress` is told what is recorded.
///
/// # Errors
/// `Internal` when the recording itself cannot be made.
pub fn run(plan: Plan, mut progress: impl FnMut(&str)) -> Result<Report> {
    let clock = SystemClock;
    let began = clock.monotonic();
    let images = Images::new(plan.quick)?;
    let mut report = Report {
        quick: plan.quick,
        sabotage: plan.sabotage,
        ..Report::default()
    };
    for story in stories(&images, plan.quick, plan.sabotage)? {
        progress(&story.name);
        let (row, violations) = prove(&story, &images, plan);
        report.rows.push(row);
        let room = LISTED.saturating_sub(report.violations.len());
        report.violations.extend(violations.into_iter().take(room));
    }
    report.millis = u64::try_from(clock.monotonic().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

fn prove(story: &Story, images: &Images, plan: Plan) -> (Row, Vec<Violation>) {
    let mut row = Row {
        name: story.name.clone(),
        operations: story
            .log
            .iter()
            .filter(|op| !matches!(op, Op::Mark(_) | Op::Reboot))
            .count() as u64,
        ..Row::default()
    };
    let violation = |cut: String, why: String| Violation {
        story: story.name.clone(),
        cut,
        why,
    };
    let found = Mutex::new(Vec::new());
    let note = |v: Violation| found.lock().unwrap_or_else(PoisonError::into_inner).push(v);
    if let Some(why) = &story.failed {
        note(violation("without a cut".to_owned(), why.clone()));
    }
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    let (jobs, queue) = sync_channel::<Job>(threads);
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = take(&queue) {
                    if let Err(why) = rerun(&job, images, story, plan.sabotage) {
                        note(violation(job.cut.describe(&story.log), why));
                    }
                }
            });
        }
        walk(story, images, plan, &mut row, &jobs, &note, &violation, &found);
        drop(jobs);
    });
    let mut all = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by(|a, b| a.cut.cmp(&b.cut));
    row.bad = all.len() as u64;
    (row, all)
}

fn take(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn rerun(
    job: &Job,
    images: &Images,
    story: &Story,
    sabotage: Option<Sabotage>,
) -> std::result::Result<(), String> {
    let mut machine =
        machine::on(job.image.clone(), images, story.goal, sabotage).map_err(|e| e.to_string())?;
    machine.forgiving = story.forgiving;
    machine.medium.lock().reboots = match job.cut.loss {
        // Whoever lost its memory cannot know what it did.
        Loss::State => 0,
        _ => job.reboots,
    };
    machine.run("after")
}

#[allow(clippy::too_many_arguments)] // one loop, cut in two for its length
fn walk(
    story: &Story,
    images: &Images,
    plan: Plan,
    row: &mut Row,
    jobs: &SyncSender<Job>,
    note: &impl Fn(Violation),
    violation: &impl Fn(String, String) -> Violation,
    found: &Mutex<Vec<Violation>>,
) {
    let mut walk = Walk::new(&story.log, story.base.clone());
    loop {
        for cut in walk.cuts() {
            match cut.loss {
                Loss::Nothing => row.prefixes += 1,
                Loss::Dropped(_) => row.dropped += 1,
                Loss::Torn(..) => row.torn += 1,
                Loss::State => row.state_lost += 1,
            }
            let seen = walk.environment(&cut);
            let choice = grub(&seen);
            let cheap = choice.line.slot == Slot::A && walk.leaves_slot_a_alone();
            let judged = if cheap { seen } else { walk.image(&cut) };
            if let Some(why) = broken(&judged, &choice, images) {
                note(violation(cut.describe(&story.log), why));
                continue;
            }
            if wanted(&cut, story, plan) {
                row.rerun += 1;
                let job = Job {
                    image: walk.image(&cut),
                    cut,
                    reboots: walk.reboots,
                };
                if jobs.send(job).is_err() {
                    return;
                }
            }
        }
        let bad = found.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        if (plan.sabotage.is_some() && bad >= ENOUGH) || !walk.step() {
            return;
        }
    }
}

/// Whether the update is also run to its end from this cut. Of torn writes that are many sectors long only some are: where a
/// write ends makes no difference to an agent that believes no byte it did not read back.
fn wanted(cut: &Cut, story: &Story, plan: Plan) -> bool {
    match plan.sabotage {
        None => {}
        // Only what follows shows that arming had no effect.
        Some(Sabotage::ArmEnv2Only) => return cut.loss == Loss::Nothing,
        Some(_) => return false,
    }
    let (i, n) = match &cut.loss {
        Loss::Nothing => return true,
        _ if plan.quick && story.forgiving => return false,
        Loss::State => return true,
        Loss::Dropped(d) => return !plan.quick || d.len() < 3,
        Loss::Torn(i, n) => (*i, *n),
    };
    let Some(Op::Write(_, _, data)) = story.log.get(i) else {
        return false;
    };
    let sectors = data.len() / super::medium::SECTOR;
    let at = n / super::medium::SECTOR;
    if plan.quick {
        return at == 1 || (sectors > 16 && at == sectors / 2);
    }
    sectors <= 16 || at == 1 || at == sectors - 1 || at.is_multiple_of(128)
}

/// A disk as a power cut left it, for real GRUB.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Which cut of which update.
    pub name: String,
    /// os-state from its first byte.
    pub state: Vec<u8>,
    /// Both slots, whole.
    pub slots: [Arc<Vec<u8>>; 2],
    /// What the model says.
    pub wanted: Choice,
}

/// `count` cuts, spread over all updates and all decisions that GRUB has to make on them; the same ones every time.
///
/// # Errors
/// As [`run`].
pub fn samples(count: usize) -> Result<Vec<Sample>> {
    let images = Images::new(true)?;
    let stories = stories(&images, true, None)?;
    // By decision first: plain boots of slot A are by far the most.
    let mut kinds: Vec<(String, Vec<(usize, Cut)>)> = Vec::new();
    for (n, story) in stories.iter().enumerate() {
        let mut walk = Walk::new(&story.log, story.base.clone());
        loop {
            let mut torn = 0u32;
            for cut in walk.cuts() {
                if matches!(cut.loss, Loss::Torn(..)) {
                    torn += 1;
                    if torn != 1 && !torn.is_multiple_of(512) {
                        continue;
                    }
                }
                let seen = walk.environment(&cut);
                let same = seen.env(ENV1) == seen.env(ENV2);
                let kind = format!("{} {same}", grub(&seen).line);
                match kinds.iter_mut().find(|(k, _)| *k == kind) {
                    Some((_, list)) => list.push((n, cut)),
                    None => kinds.push((kind, vec![(n, cut)])),
                }
            }
            if !walk.step() {
                break;
            }
        }
    }
    let mut out = Vec::new();
    for round in 0..count {
        for (_, list) in kinds.iter().filter(|(_, list)| round < list.len()) {
            // Neighbours are alike: steps that share no factor with most lengths.
            let Some((n, cut)) = list.get(round * 7919 % list.len()) else {
                continue;
            };
            if let Some(story) = stories.get(*n).filter(|_| out.len() < count) {
                out.push(sample(story, cut));
            }
        }
    }
    Ok(out)
}

fn sample(story: &Story, cut: &Cut) -> Sample {
    let mut walk = Walk::new(&story.log, story.base.clone());
    for _ in 0..cut.after {
        walk.step();
    }
    let image = walk.image(cut);
    Sample {
        name: format!("{}: {}", story.name, cut.describe(&story.log)),
        wanted: grub(&image),
        state: image.state.to_vec(),
        slots: image.slots,
    }
}
