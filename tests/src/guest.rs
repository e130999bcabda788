//! What tests and the demo do inside a running guest: the agent's command line, its status, bookkeeping of boots.

use crate::vm::{Ready, Vm};
use anyhow::{Context, Result, bail};
use os_proto::env_block::{self, Env};
use serde_json::Value;
use std::time::Duration;

/// A system must come up within this time, also on a busy machine with emulation.
pub const UP: Duration = Duration::from_secs(420);
/// Staging half a GiB must end within this time.
pub const STAGE: Duration = Duration::from_secs(600);

/// How a command of the agent ended in the guest.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Exit status.
    pub code: i32,
    /// Both streams.
    pub text: String,
}

impl Vm {
    /// Waits for the default route (the network is there a moment after the system).
    ///
    /// # Errors
    /// When it does not appear within a minute.
    pub fn network(&mut self) -> Result<()> {
        self.ok("for i in $(seq 120); do ip route | grep -q default && exit 0; sleep 0.5; done; ip addr; networkctl; exit 1")
            .map(drop)
    }

    /// `os-agent ARGS` in the guest.
    ///
    /// # Errors
    /// When no answer comes in time.
    pub fn agent(&mut self, args: &str, limit: Duration) -> Result<Answer> {
        let (code, text) = self.exec(&format!("os-agent {args}"), limit)?;
        Ok(Answer { code, text })
    }

    /// `os-agent status --json`, repeated until the agent answers.
    ///
    /// # Errors
    /// When it does not within two minutes.
    pub fn status(&mut self) -> Result<Value> {
        let script = "for i in $(seq 60); do os-agent status --json 2>/tmp/status.err && exit 0; sleep 2; done; cat /tmp/status.err; systemctl status os-agent --no-pager -l; exit 1";
        let (code, text) = self.exec(script, Duration::from_secs(240))?;
        if code != 0 {
            return Err(self.failure(&format!("os-agent status: {text}")));
        }
        serde_json::from_str(&text).with_context(|| format!("os-agent status --json: {text}"))
    }

    /// The status once `good` holds.
    ///
    /// # Errors
    /// When it does not hold within `limit`; the message holds the last status.
    pub fn status_until(
        &mut self,
        what: &str,
        limit: Duration,
        good: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let end = std::time::Instant::now() + limit;
        loop {
            let status = self.status()?;
            if good(&status) {
                return Ok(status);
            }
            if std::time::Instant::now() > end {
                let journal = self
                    .exec(
                        "journalctl -u os-agent -b --no-pager -o cat | tail -40",
                        Duration::from_secs(60),
                    )
                    .map_or_else(|e| e.to_string(), |r| r.1);
                return Err(self.failure(&format!("{what}: {status:#}\n{journal}")));
            }
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// Waits until the running slot is the committed one and no trial is under way.
    ///
    /// # Errors
    /// As [`Vm::status_until`].
    pub fn committed(&mut self, slot: &str) -> Result<Value> {
        let slot = slot.to_owned();
        self.status_until(&format!("commit of slot {slot}"), UP, |s| {
            s["env"]["cur"] == slot.as_str() && s["running"] == slot.as_str() && s["phase"] != "trial"
        })
    }

    /// Stages with the real command line.
    ///
    /// # Errors
    /// When no answer comes in time.
    pub fn stage(&mut self, url: &str, sha256: &str) -> Result<Answer> {
        self.agent(
            &format!("stage --image '{url}' --sha256 {sha256} --allow-http"),
            STAGE,
        )
    }

    /// Activates and reboots; the line index from which to await the next boot.
    ///
    /// # Errors
    /// When the agent refuses.
    pub fn activate(&mut self) -> Result<usize> {
        let from = self.serial.lines().len();
        let a = self.agent("activate --reboot", Duration::from_secs(180))?;
        if a.code != 0 {
            return Err(self.failure(&format!("activate --reboot: status {}: {}", a.code, a.text)));
        }
        Ok(from)
    }

    /// Everything below /etc but what a running system rewrites by itself: one line per entry, with owner, mode and content.
    ///
    /// # Errors
    /// When no answer comes in time.
    pub fn etc(&mut self) -> Result<String> {
        self.ok(
            "cd /etc; find . -xdev ! -name adjtime ! -name ld.so.cache ! -name .updated ! -name resolv.conf -printf '%p %y %m %U %G %l\\n' | sort; \
             find . -xdev -type f ! -name adjtime ! -name ld.so.cache ! -name .updated ! -name resolv.conf -print0 | sort -z | xargs -0 sha256sum",
        )
    }

    /// `env1` of os-state, as it lies on the disk.
    ///
    /// # Errors
    /// When it cannot be read or is not valid.
    pub fn env1(&mut self) -> Result<Env> {
        let text = self.ok(
            "dd if=/run/slipway/os-state bs=4096 skip=3 count=1 iflag=direct status=none | head -c 512 | base64 -w0",
        )?;
        let block = crate::vm::ctl::decode(text.trim())?;
        if block.len() != env_block::SIZE {
            bail!("env1 has {} bytes", block.len());
        }
        Ok(Env::decode(&block)?)
    }

    /// Leaves an armed slot one try only, as if GRUB had counted two already.
    ///
    /// # Errors
    /// When nothing is armed.
    pub fn one_try(&mut self) -> Result<()> {
        let env = self.env1()?;
        if env.trial().is_none() {
            bail!("nothing is armed: {env:?}");
        }
        let block = Env { left: Some(1), ..env }.encode();
        let text = crate::vm::ctl::encode(&block);
        self.ok(&format!(
            "set -e; dd if=/run/slipway/os-state of=/tmp/c bs=4096 skip=3 count=1 iflag=direct status=none; \
             echo {text} | base64 -d | dd of=/tmp/c conv=notrunc status=none; \
             dd if=/tmp/c of=/run/slipway/os-state bs=4096 seek=3 conv=notrunc oflag=direct,dsync status=none"
        ))?;
        let now = self.env1()?;
        if now.left != Some(1) {
            bail!("env1 was not changed: {now:?}");
        }
        Ok(())
    }
}

/// One line about a boot for tables and logs.
pub fn describe(r: &Ready) -> String {
    let trial = r
        .trial
        .map_or("no trial".to_owned(), |t| format!("trial, {t} tries left"));
    format!(
        "slot {}, version {}, {trial}, up {:.0} s after power on",
        r.slot,
        r.version,
        r.at.as_secs_f64()
    )
}
