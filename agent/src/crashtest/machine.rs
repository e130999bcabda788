//! A node on the recorded disk: GRUB's model picks the slot, the real engine does the rest, the same request is made again
//! after every boot until the update is where it has to end.

use super::medium::{Content, ENV1, ENV2, Medium, Region};
use super::parts::{Disk, JumpClock, Shelf, Store, System, fault, payload_path};
use super::{Images, Sabotage};
use crate::boot::DualEnv;
use crate::config::Config;
use crate::engine::{Begun, Engine, Options, Ports};
use crate::error::Result;
use crate::slots::Region as Place;
use crate::state::Phase;
use os_proto::boot_choice::{Choice, Facts, Save, choose};
use os_proto::layout::{Role, Slot};
use os_proto::v1;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Boots after which an update has to be over: three trials, and room for every detour.
const BOOTS: u32 = 10;
/// Tries of one trial.
const TRIES: u32 = 3;
/// Polls of a millisecond before something counts as stuck: a minute, on a machine that is not loaded.
const PATIENCE: u32 = 60_000;
/// Operation ids of the request, the same in every boot.
const STAGE: &str = "crashtest-stage";
const ACTIVATE: &str = "crashtest-activate";

/// Where the update has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The new image is committed.
    Committed,
    /// The new image is bad: back on the old one, the digest denied.
    FellBack,
}

/// What GRUB decides about this content.
pub(super) fn grub(content: &Content) -> Choice {
    choose(&Facts {
        env1: Some(content.env(ENV1)),
        env2: Some(content.env(ENV2)),
        a_has_kernel: true,
        save: Save::Works,
        picked: None,
    })
}

/// Whether a slot holds, byte by byte, what may run from it.
pub(super) fn intact(content: &Content, slot: Slot, images: &Images) -> bool {
    let bytes = content.slot(slot);
    match slot {
        Slot::A => Arc::ptr_eq(bytes, &images.slot_a) || **bytes == *images.slot_a,
        Slot::B => bytes.get(..images.new.len()) == Some(images.new.as_slice()),
    }
}

/// The invariant: why this boot must not happen, if so.
pub(super) fn broken(content: &Content, choice: &Choice, images: &Images) -> Option<String> {
    let slot = choice.line.slot;
    if intact(content, slot, images) {
        return None;
    }
    Some(match slot {
        Slot::A => "slot A starts and is no longer what was committed".to_owned(),
        Slot::B => format!(
            "slot B starts ({}) and does not hold the verified image",
            choice.line
        ),
    })
}

enum Act {
    Over,
    Reboot,
}

/// The node.
pub(super) struct Machine<'a> {
    /// Its disk.
    pub(super) medium: Arc<Medium>,
    images: &'a Images,
    goal: Goal,
    runtime: tokio::runtime::Runtime,
    boots: u32,
    trials: u32,
    /// Bytes after which the download of the first boot stands still and the agent is killed.
    pub(super) kill_at: Option<usize>,
    /// The medium may be caught lying: after an answered error the caller asks once more, with another operation id.
    pub(super) forgiving: bool,
}

impl<'a> Machine<'a> {
    /// A node that is switched off.
    pub(super) fn new(medium: Arc<Medium>, images: &'a Images, goal: Goal) -> Result<Machine<'a>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(fault)?;
        Ok(Machine {
            medium,
            images,
            goal,
            runtime,
            boots: 0,
            trials: 0,
            kill_at: None,
            forgiving: false,
        })
    }

    /// Boots and asks for the update until it is over. `Err` = why it never is, or why a boot must not happen.
    pub(super) fn run(&mut self, name: &str) -> std::result::Result<(), String> {
        while self.boots < BOOTS {
            self.boots += 1;
            let host = self.boot(name)?;
            let engine = self.start(&host);
            let act = self.act(&engine, &host);
            engine.shut_down();
            let act = act?;
            let mut m = self.medium.lock();
            if let Some(misdeed) = m.misdeeds.first() {
                return Err(misdeed.clone());
            }
            if m.reboots > 1 {
                return Err(format!("{} reboots for one operation id", m.reboots));
            }
            m.power_cycle();
            drop(m);
            match act {
                Act::Over => return self.over(),
                Act::Reboot => {}
            }
        }
        Err(format!("{BOOTS} boots and the update is not over"))
    }

    /// Power on: GRUB's decision, its count, and the system that comes up.
    fn boot(&mut self, name: &str) -> std::result::Result<Arc<System>, String> {
        let mut m = self.medium.lock();
        let choice = grub(&m.live);
        if let Some(why) = broken(&m.live, &choice, self.images) {
            return Err(why);
        }
        let slot = choice.line.slot;
        m.mark(match (slot, choice.is_trial()) {
            (_, true) => "trial boot",
            (Slot::A, false) => "boot of A",
            (Slot::B, false) => "boot of B",
        });
        if let Some(block) = choice.env1.as_deref().filter(|b| *b != m.live.env(ENV1)) {
            m.write(Region::State, ENV1, block);
        }
        m.running = slot;
        drop(m);
        if choice.is_trial() {
            self.trials += 1;
            if self.trials > TRIES {
                return Err(format!("{} boots on trial", self.trials));
            }
        }
        let mut cmdline = format!("ro os.slot={slot} os.boot=1");
        if let Some(n) = choice.line.trial {
            cmdline.push_str(&format!(" os.trial={n}"));
        }
        let version = match slot {
            Slot::A => "1",
            Slot::B => "2",
        };
        Ok(Arc::new(System {
            boot_id: format!("{name}-{}", self.boots),
            cmdline,
            version: version.to_owned(),
            ill: slot == Slot::B && self.goal == Goal::FellBack,
            reboot: AtomicBool::new(false),
        }))
    }

    fn start(&self, host: &Arc<System>) -> Arc<Engine> {
        self.start_with(host, None).0
    }

    fn start_with(&self, host: &Arc<System>, hold_at: Option<usize>) -> (Arc<Engine>, Shelf) {
        let place = Place {
            name: Role::OsState.name().to_owned(),
            path: "/recorded".into(),
            offset: 0,
            size: os_proto::layout::OS_STATE_SIZE,
            sector_size: super::medium::SECTOR as u32,
            identity: crate::slots::Identity::Within,
        };
        let medium = Arc::clone(&self.medium);
        let boot = DualEnv::with_opener(
            place,
            Box::new(move |_, _| Ok(Box::new(medium.open(Region::State)))),
        );
        let shelf = Shelf {
            payload: Arc::clone(&self.images.new),
            hold_at,
            held: Arc::default(),
        };
        let ports = Ports {
            source: Arc::new(shelf.clone()),
            slots: Arc::new(Disk(Arc::clone(&self.medium))),
            boot: Arc::new(boot),
            host: Arc::clone(host) as Arc<dyn crate::ports::Host>,
            clock: Arc::new(JumpClock::default()),
            store: Arc::new(Store(Arc::clone(&self.medium))),
            // No setting is changed here.
            settings: Arc::new(crate::settings::system::System::offline(
                "/recorded".into(),
                "/recorded".into(),
                Err(fault("settings")),
            )),
        };
        let options = Options {
            config: Config::default(),
            offline: false,
            observe: false,
            arch: None,
            limits: crate::write::Limits {
                buffers: 3,
                flush_every: super::FLUSH_EVERY,
            },
        };
        (Engine::start(ports, options), shelf)
    }

    /// What this boot does: ask for the update, or see how its trial ends.
    fn act(&mut self, engine: &Arc<Engine>, host: &Arc<System>) -> std::result::Result<Act, String> {
        let (running, env) = {
            let m = self.medium.lock();
            (m.running, grub(&m.live).line)
        };
        if running == Slot::B {
            self.wait(engine, host, |e| e.phase() == Phase::Idle && self.committed_b())?;
            if host.reboot.load(Ordering::SeqCst) {
                return Ok(Act::Reboot);
            }
            return match self.goal {
                Goal::Committed => Ok(Act::Over),
                Goal::FellBack => Err(format!("the bad image was committed ({env})")),
            };
        }
        if self.goal == Goal::FellBack && engine.status().failed_digests.iter().any(|f| f.denied) {
            return Ok(Act::Over);
        }
        if let Some(at) = self.kill_at.take() {
            return self.killed(engine, host, at);
        }
        self.ask(engine, host)
    }

    /// Stage and activate, as the same caller does after every boot.
    fn ask(&self, engine: &Arc<Engine>, host: &Arc<System>) -> std::result::Result<Act, String> {
        self.medium.lock().mark("stage");
        if let Err(why) = self.stage(engine, STAGE) {
            if !self.forgiving {
                return Err(why);
            }
            self.medium.lock().mark("stage, once more");
            self.stage(engine, &format!("{STAGE}-2"))?;
        }
        self.medium.lock().mark("arm");
        let activate = v1::ActivateRequest {
            op_id: ACTIVATE.to_owned(),
            reboot: true,
            ..Default::default()
        };
        let begun = engine
            .activate(&activate, "crashtest")
            .map_err(|e| e.to_string())?;
        self.finish(begun)?;
        self.wait(engine, host, |e| e.phase() != Phase::Armed)?;
        if !host.reboot.load(Ordering::SeqCst) {
            return Err(
                "Activate was answered as done, but nothing is armed and no reboot follows".to_owned(),
            );
        }
        let mut m = self.medium.lock();
        m.reboots += 1;
        m.log.push(super::medium::Op::Reboot);
        Ok(Act::Reboot)
    }

    fn stage_request(&self, op_id: &str) -> v1::StageRequest {
        v1::StageRequest {
            op_id: op_id.to_owned(),
            source: Some(v1::Source {
                from: Some(v1::source::From::File(payload_path().into_string())),
                ..Default::default()
            }),
            checksum: self.images.new_sha256.to_string(),
            ..Default::default()
        }
    }

    fn stage(&self, engine: &Arc<Engine>, op_id: &str) -> std::result::Result<(), String> {
        let begun = engine
            .stage(&self.stage_request(op_id), "crashtest")
            .map_err(|e| e.to_string())?;
        self.finish(begun)
    }

    /// The agent is killed in the middle of the download; the next one is asked for the same.
    fn killed(
        &self,
        engine: &Arc<Engine>,
        host: &Arc<System>,
        at: usize,
    ) -> std::result::Result<Act, String> {
        engine.shut_down();
        let (first, shelf) = self.start_with(host, Some(at));
        self.medium.lock().mark("stage, killed");
        let begun = first
            .stage(&self.stage_request(STAGE), "crashtest")
            .map_err(|e| e.to_string())?;
        let held = self.poll(|| shelf.held.load(Ordering::SeqCst));
        first.shut_down();
        held?;
        drop(begun);
        let again = self.start(host);
        let act = self.ask(&again, host);
        again.shut_down();
        act
    }

    fn finish(&self, begun: Begun) -> std::result::Result<(), String> {
        self.runtime
            .block_on(begun.finished())
            .map(drop)
            .map_err(|e| e.to_string())
    }

    /// Waits until `done`, or until a reboot was asked for.
    fn wait(
        &self,
        engine: &Arc<Engine>,
        host: &System,
        done: impl Fn(&Engine) -> bool,
    ) -> std::result::Result<(), String> {
        self.poll(|| host.reboot.load(Ordering::SeqCst) || done(engine))
    }

    fn poll(&self, done: impl Fn() -> bool) -> std::result::Result<(), String> {
        for _ in 0..PATIENCE {
            if done() {
                return Ok(());
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Err("the agent is stuck".to_owned())
    }

    fn committed_b(&self) -> bool {
        let m = self.medium.lock();
        let line = grub(&m.live).line;
        line.slot == Slot::B && line.trial.is_none()
    }

    /// At the end: the right slot by default, no trial left over, both copies equal, both slots as they have to be.
    fn over(&self) -> std::result::Result<(), String> {
        let m = self.medium.lock();
        let choice = grub(&m.live);
        let wanted = match self.goal {
            Goal::Committed => Slot::B,
            Goal::FellBack => Slot::A,
        };
        if choice.line.slot != wanted || choice.line.try_slot.is_some() {
            return Err(format!("over, but the next boot is {}", choice.line));
        }
        if m.live.env(ENV1) != m.live.env(ENV2) {
            return Err("over, but the environment copies differ".to_owned());
        }
        if !intact(&m.live, Slot::A, self.images) {
            return Err("over, but slot A was changed".to_owned());
        }
        if wanted == Slot::B && !intact(&m.live, Slot::B, self.images) {
            return Err("over, but slot B does not hold the image".to_owned());
        }
        Ok(())
    }
}

/// A machine on a disk with this content.
pub(super) fn on<'a>(
    content: Content,
    images: &'a Images,
    goal: Goal,
    sabotage: Option<Sabotage>,
) -> Result<Machine<'a>> {
    Machine::new(Medium::new(content, sabotage, None), images, goal)
}
