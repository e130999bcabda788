//! A node as tests and the demo use it: a machine on an overlay of an image, a web server for updates, the story of its boots.

use crate::guest::{self, STAGE, UP};
use crate::http::{Reply, Server};
use crate::images::Images;
use crate::product::sha256;
use crate::scratch::Scratch;
use crate::vm::{Firmware, Machine, Ready, Vm};
use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use serde_json::Value;
use std::time::Instant;

/// A running node.
#[derive(Debug)]
pub struct Node {
    /// The machine while it runs.
    vm: Option<Vm>,
    /// Where from.
    pub machine: Machine,
    /// Updates are fetched from here.
    pub server: Server,
    /// Last system that came up.
    pub ready: Ready,
    scratch: Scratch,
    /// One machine at a time.
    _lock: fs_err::File,
}

/// What became of a trial.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// Which slot GRUB started, in order, with its trial number or `-`.
    pub boots: Vec<(String, String)>,
    /// The system that came up at last.
    pub ready: Ready,
}

impl Node {
    /// Powers a node on and waits for its system.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(name: &str, images: &Images, version: &str, firmware: Firmware) -> Result<Node> {
        Node::start_with_memory(name, images, version, firmware, 1024)
    }

    /// [`Node::start`] with so much memory, in MiB.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with_memory(
        name: &str,
        images: &Images,
        version: &str,
        firmware: Firmware,
        memory_mib: u32,
    ) -> Result<Node> {
        let lock = crate::vm::heavy_lock()?;
        let scratch = Scratch::new(name)?;
        let mut machine = Machine::overlay(scratch.path(), &images.disk(version), firmware)?;
        machine.memory_mib = memory_mib;
        let mut vm = machine.start()?;
        let ready = vm.ready(UP, 0)?;
        say(&format!(
            "{name} ({}): {}",
            firmware.name(),
            guest::describe(&ready)
        ));
        Ok(Node {
            vm: Some(vm),
            machine,
            server: Server::start()?,
            ready,
            scratch,
            _lock: lock,
        })
    }

    /// The machine.
    ///
    /// # Errors
    /// When its power is off.
    pub fn vm(&mut self) -> Result<&mut Vm> {
        self.vm.as_mut().context("the machine is off")
    }

    /// Keeps logs even when all goes well.
    pub fn keep(&mut self) {
        self.scratch.keep();
    }

    /// Serves a file under `/NAME` and stages it with the command line; the answer and its digest.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn stage(&mut self, image: &Utf8Path) -> Result<(guest::Answer, String)> {
        let digest = sha256(image)?;
        let path = format!("/{}", image.file_name().context("image file")?);
        self.server.put(&path, Reply::file(image));
        let url = self.server.guest_url(&path);
        let start = Instant::now();
        let vm = self.vm()?;
        vm.network()?;
        vm.status()?;
        let answer = vm.stage(&url, &digest)?;
        say(&format!(
            "stage {path}: status {} after {:.0} s",
            answer.code,
            start.elapsed().as_secs_f64()
        ));
        Ok((answer, digest))
    }

    /// [`Node::stage`] that must succeed.
    ///
    /// # Errors
    /// When it does not.
    pub fn staged(&mut self, image: &Utf8Path) -> Result<String> {
        let (answer, digest) = self.stage(image)?;
        if answer.code != 0 {
            return Err(self
                .vm()?
                .failure(&format!("stage: status {}: {}", answer.code, answer.text)));
        }
        Ok(digest)
    }

    /// Activates what is staged, reboots, waits for the next system.
    ///
    /// # Errors
    /// When no system comes up.
    pub fn flip(&mut self) -> Result<Fallback> {
        let from = self.vm()?.activate()?;
        self.next_system(from)
    }

    /// Activates, takes two of the three tries away, reboots, waits for the next system.
    ///
    /// # Errors
    /// As [`Node::flip`].
    pub fn flip_with_one_try(&mut self) -> Result<Fallback> {
        let vm = self.vm()?;
        let a = vm.agent("activate", STAGE)?;
        if a.code != 0 {
            bail!("activate: status {}: {}", a.code, a.text);
        }
        vm.one_try()?;
        let from = vm.reboot()?;
        self.next_system(from)
    }

    /// Waits for the next system after line `from`.
    ///
    /// # Errors
    /// When none comes up.
    pub fn next_system(&mut self, from: usize) -> Result<Fallback> {
        let vm = self.vm()?;
        let ready = vm.ready(UP * 2, from)?;
        let boots = vm
            .boots(from)
            .iter()
            .filter(|l| l.index < ready.index)
            .filter_map(|l| Some((field(&l.text, "slot")?, field(&l.text, "trial")?)))
            .collect();
        self.ready = ready.clone();
        let f = Fallback { boots, ready };
        say(&format!("boots {:?}; {}", f.boots, guest::describe(&f.ready)));
        Ok(f)
    }

    /// Follows a node until a system that is not on trial is up: one that is may still end by itself.
    ///
    /// # Errors
    /// When none comes up, or every one of the next four is on trial.
    pub fn settled(&mut self, mut f: Fallback) -> Result<Fallback> {
        for _ in 0..4 {
            if f.ready.trial.is_none() {
                return Ok(f);
            }
            let next = self.next_system(f.ready.index + 1)?;
            f.boots.extend(next.boots);
            f.ready = next.ready;
        }
        bail!("still on trial: {}", guest::describe(&f.ready))
    }

    /// Cuts the power and starts the machine again; its next system.
    ///
    /// # Errors
    /// When none comes up.
    pub fn power_cycle(&mut self) -> Result<Fallback> {
        self.power_off()?;
        self.power_on()
    }

    /// Cuts the power.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn power_off(&mut self) -> Result<()> {
        self.vm.take().context("the machine is off")?.power_cut()
    }

    /// Starts the machine again; its next system.
    ///
    /// # Errors
    /// When none comes up.
    pub fn power_on(&mut self) -> Result<Fallback> {
        self.vm = Some(self.machine.start()?);
        self.next_system(0)
    }

    /// The agent's status.
    ///
    /// # Errors
    /// As [`Vm::status`].
    pub fn status(&mut self) -> Result<Value> {
        self.vm()?.status()
    }
}

/// `key=value` in a marker line of grub.cfg.
fn field(text: &str, key: &str) -> Option<String> {
    text.split_whitespace()
        .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
        .map(ToOwned::to_owned)
}

/// A progress line with the time of day, on standard error.
pub fn say(text: &str) {
    let t = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    eprintln!("{:02}:{:02}:{:02} {text}", t / 3600 % 24, t / 60 % 60, t % 60);
}
