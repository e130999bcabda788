//! A node that boots: GRUB's model picks the slot, the image in it decides how the boot goes.

use super::{HandClock, MemDisk, MemHost, MemSource, grub, image, ports, sha256};
use crate::config::Config;
use crate::engine::{Begun, Engine, Options};
use crate::error::Result;
use crate::ports::{HookOutcome, OsRelease};
use crate::state::OpResult;
use os_proto::layout::Slot;
use os_proto::record::{Content, MIN_READER, SCHEMA, SlotRecord};
use os_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a boot of an image goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It comes up and is healthy.
    Good,
    /// It hangs before the agent; a watchdog resets it.
    Hangs,
    /// The kernel panics with this text, which pstore keeps.
    Panics(String),
    /// It comes up, but a hook has this name and exit status.
    Hook(String, Option<i32>),
    /// boot-complete.target is never reached.
    NeverComplete,
    /// The agent comes up, then the power fails.
    PowerFails,
}

/// A simulated node.
pub struct Node {
    /// What survives.
    pub disk: MemDisk,
    /// What can be downloaded.
    pub source: MemSource,
    /// The running system.
    pub host: MemHost,
    /// Time.
    pub clock: HandClock,
    /// The agent's configuration.
    pub config: Config,
    fates: BTreeMap<String, Fate>,
    engine: Option<Arc<Engine>>,
    boots: u32,
    /// Slots of all boots, in order.
    pub history: Vec<Slot>,
}

impl Node {
    /// A node that runs version 1 from slot A; images `v1`, `v2` … can be staged from `http://images/N`.
    pub fn new() -> Node {
        let node = Node {
            disk: MemDisk::new(),
            source: MemSource::default(),
            host: MemHost::default(),
            clock: HandClock::default(),
            config: Config::default(),
            fates: BTreeMap::new(),
            engine: None,
            boots: 0,
            history: Vec::new(),
        };
        let factory = image("1");
        {
            let mut m = node.disk.medium();
            m.slots[0][..factory.len()].copy_from_slice(&factory);
            let record = SlotRecord {
                schema: SCHEMA,
                min_reader: MIN_READER,
                version: "1".into(),
                os_image: "Slipway 1".into(),
                image_size: factory.len() as u64,
                image_sha256: sha256(&factory),
                payload_digests: vec![sha256(&factory)],
                content: Content::Factory,
                verified_unix: 0,
                unknown: Default::default(),
            };
            m.records[0] = Some(record.to_json());
        }
        let mut node = node;
        node.boot();
        node
    }

    /// How boots of this version go.
    pub fn fate(&mut self, version: &str, fate: Fate) {
        self.fates.insert(version.to_owned(), fate);
    }

    /// The running agent.
    pub fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().expect("the agent runs")
    }

    /// Stops the agent as an orderly stop does.
    pub fn stop(&mut self) {
        if let Some(e) = self.engine.take() {
            e.shut_down();
        }
    }

    /// Stops the agent and starts it again in the same boot.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn start(&mut self) {
        let options = Options {
            config: self.config.clone(),
            offline: false,
            observe: false,
            arch: None,
            limits: crate::write::Limits::default(),
        };
        self.engine = Some(Engine::start(
            ports(&self.disk, &self.source, &self.host, &self.clock),
            options,
        ));
    }

    /// Boots until an agent comes up.
    pub fn boot(&mut self) {
        self.boot_as(None);
    }

    /// Boots, with a slot picked in the menu the first time.
    pub fn boot_as(&mut self, mut picked: Option<Slot>) {
        self.stop();
        self.host.set().panic = None;
        for _ in 0..20 {
            let choice = grub(&self.disk, picked.take());
            let slot = choice.line.slot;
            self.history.push(slot);
            self.boots += 1;
            let version = self.version_in(slot);
            let fate = self.fates.get(&version).cloned().unwrap_or(Fate::Good);
            self.disk.set_running(slot);
            self.clock.reboot();
            match &fate {
                Fate::Hangs => continue,
                Fate::Panics(text) => {
                    self.host.set().panic = Some(text.clone());
                    continue;
                }
                _ => {}
            }
            {
                let mut h = self.host.set();
                h.boot_id = format!("boot-{}", self.boots);
                h.cmdline = match choice.line.trial {
                    Some(n) => format!("ro os.slot={slot} os.boot=1 os.trial={n}"),
                    None => format!("ro os.slot={slot} os.boot=1"),
                };
                h.os = OsRelease {
                    pretty_name: format!("Slipway {version}"),
                    version_id: version,
                };
                h.reboots = 0;
                h.timer_stopped = false;
                h.boot_complete = fate != Fate::NeverComplete;
                h.hooks = match &fate {
                    Fate::Hook(name, exit) => vec![HookOutcome {
                        name: name.clone(),
                        exit: *exit,
                        output: "says the hook".into(),
                    }],
                    _ => Vec::new(),
                };
            }
            self.start();
            if fate == Fate::PowerFails {
                self.stop();
                continue;
            }
            return;
        }
        panic!("no boot reached the agent: {:?}", self.history);
    }

    fn version_in(&self, slot: Slot) -> String {
        let m = self.disk.medium();
        let data = &m.slots[usize::from(slot == Slot::B)];
        let key = b"VERSION_ID=\"";
        data.windows(key.len())
            .position(|w| w == key)
            .map(|i| {
                data[i + key.len()..]
                    .iter()
                    .take_while(|b| **b != b'"')
                    .map(|b| char::from(*b))
                    .collect()
            })
            .unwrap_or_default()
    }

    /// Moves time on until `done` says so; at most an hour of node time.
    pub fn until(&self, what: &str, done: impl Fn(&Node) -> bool) {
        let start = Instant::now();
        for _ in 0..3600 {
            if done(self) {
                return;
            }
            self.clock.advance(Duration::from_secs(1));
            std::thread::sleep(Duration::from_micros(300));
        }
        // The other threads may be slower than our clock.
        while start.elapsed() < Duration::from_secs(20) {
            if done(self) {
                return;
            }
            self.clock.advance(Duration::from_secs(1));
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{what} did not come: {:#?}", self.status());
    }

    /// Waits for a reboot request and carries it out.
    pub fn reboot_when_asked(&mut self) {
        self.until("a reboot request", |n| n.host.set().reboots > 0);
        self.boot();
    }

    /// Waits until the running slot is committed.
    pub fn committed(&self) {
        self.until("a commit", |n| {
            n.disk.env().cur == n.disk.running()
                && n.disk.env().try_slot.is_none()
                && n.phase() == v1::Phase::Idle
        });
    }

    /// The agent's status.
    pub fn status(&self) -> v1::StatusReply {
        self.engine().status()
    }

    /// The phase in it.
    pub fn phase(&self) -> v1::Phase {
        self.status().phase()
    }

    /// Puts image `version` on the server; its address and checksum.
    pub fn publish(&self, version: &str) -> (String, String) {
        let data = image(version);
        let url = format!("http://images/{version}");
        let sum = sha256(&data).to_string();
        self.source.put(&url, data);
        (url, sum)
    }

    /// A Stage request for this version.
    pub fn stage_request(&self, version: &str, op_id: &str) -> v1::StageRequest {
        let (url, checksum) = self.publish(version);
        v1::StageRequest {
            op_id: op_id.into(),
            source: Some(v1::Source {
                from: Some(v1::source::From::Url(url)),
                allow_http: true,
                ..Default::default()
            }),
            checksum,
            ..Default::default()
        }
    }

    /// Stages and waits.
    ///
    /// # Errors
    /// The agent's.
    pub fn stage(&self, r: &v1::StageRequest) -> Result<OpResult> {
        wait(self.engine().stage(r, "test")?)
    }

    /// Arms and waits.
    ///
    /// # Errors
    /// The agent's.
    pub fn activate(&self, op_id: &str, reboot: bool) -> Result<OpResult> {
        let r = v1::ActivateRequest {
            op_id: op_id.into(),
            reboot,
            ..Default::default()
        };
        wait(self.engine().activate(&r, "test")?)
    }

    /// Stages `version`, arms it and lets the node reboot as asked.
    ///
    /// # Errors
    /// The agent's.
    pub fn update(&mut self, version: &str) -> Result<()> {
        let r = self.stage_request(version, "");
        self.stage(&r)?;
        self.activate("", true)?;
        self.reboot_when_asked();
        Ok(())
    }
}

impl Default for Node {
    fn default() -> Self {
        Node::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for an operation outside any runtime.
fn wait(begun: Begun) -> Result<OpResult> {
    match begun {
        Begun::Done(_, r) => Ok(r),
        Begun::Running(h) => loop {
            if let Some(r) = h.follow().borrow().result.clone() {
                return r;
            }
            std::thread::sleep(Duration::from_millis(1));
        },
    }
}
