//! One QEMU machine: disk, firmware, serial log, command channel, power.
//!
//! The serial line is evidence and never a control channel; commands go through virtio-serial to the guest's test driver.
//! One machine runs at a time (emulation keeps both cores busy): callers hold [`heavy_lock`].

pub mod accel;
pub mod ctl;
pub mod qmp;
pub mod serial;

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use fs_err as fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub use serial::Line;

/// What every line of our grub.cfg begins with.
pub const GRUB_MARK: &str = "slipway:";
/// What the test driver prints on the console when the system is up.
pub const READY_MARK: &str = "TB-READY";
const OVMF_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const OVMF_VARS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// Which firmware starts the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS on the `pc` machine.
    Bios,
    /// OVMF on `q35`, with variables kept per machine directory.
    Uefi,
}

impl Firmware {
    /// For messages and file names.
    pub const fn name(self) -> &'static str {
        match self {
            Firmware::Bios => "bios",
            Firmware::Uefi => "uefi",
        }
    }
}

/// A machine that can be started, cut off and started again.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Scratch directory: sockets, logs, UEFI variables. Its path must stay below 90 bytes.
    pub dir: Utf8PathBuf,
    /// Disk file.
    pub disk: Utf8PathBuf,
    /// `raw` or `qcow2`.
    pub format: &'static str,
    /// Firmware.
    pub firmware: Firmware,
    /// Throw away everything written.
    pub snapshot: bool,
    /// The guest cannot write to its disk.
    pub read_only: bool,
    /// With a network card (user mode: the host is 10.0.2.2).
    pub net: bool,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl Machine {
    /// A machine on a disk file that it may write to.
    pub fn new(dir: &Utf8Path, disk: &Utf8Path, firmware: Firmware) -> Machine {
        let format = if disk.extension() == Some("qcow2") {
            "qcow2"
        } else {
            "raw"
        };
        Machine {
            dir: dir.to_owned(),
            disk: disk.to_owned(),
            format,
            firmware,
            snapshot: false,
            read_only: false,
            net: true,
            memory_mib: 1024,
        }
    }

    /// A machine on a fresh qcow2 overlay of `image`, which stays untouched. Its disk is 1 GiB larger than the image, as disks of
    /// nodes are: PERSIST has something to grow into.
    ///
    /// # Errors
    /// When the directory or the overlay cannot be made.
    pub fn overlay(dir: &Utf8Path, image: &Utf8Path, firmware: Firmware) -> Result<Machine> {
        fs::create_dir_all(dir)?;
        let disk = dir.join("disk.qcow2");
        let format = if image.extension() == Some("qcow2") {
            "qcow2"
        } else {
            "raw"
        };
        crate::proc::sh(&[
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            image.as_str(),
            "-F",
            format,
            disk.as_str(),
        ])?;
        crate::proc::sh(&["qemu-img", "resize", "-q", disk.as_str(), "+1G"])?;
        Ok(Machine::new(dir, &disk, firmware))
    }

    /// Powers on. The accelerator is probed once with this very disk.
    ///
    /// # Errors
    /// When QEMU does not start or its sockets do not appear within ten seconds.
    pub fn start(&self) -> Result<Vm> {
        self.start_with(accel::choose(self))
    }

    fn arguments(&self, accel: accel::Accel) -> Result<Vec<String>> {
        let dir = &self.dir;
        let mut a: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| a.extend(words.iter().map(|w| (*w).to_owned()));
        add(&["-nodefaults", "-no-user-config", "-display", "none"]);
        add(match self.firmware {
            Firmware::Bios => &["-machine", "pc"],
            Firmware::Uefi => &["-machine", "q35"],
        });
        add(accel.arguments());
        add(&["-smp", "2", "-m", &self.memory_mib.to_string()]);
        let ser = format!("socket,id=ser,path={dir}/ser.sock,server=on,wait=on");
        add(&["-chardev", &ser, "-serial", "chardev:ser"]);
        add(&["-qmp", &format!("unix:{dir}/qmp.sock,server=on,wait=off")]);
        add(&["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        let ctl = format!("socket,id=ctl,path={dir}/ctl.sock,server=on,wait=off");
        add(&["-chardev", &ctl]);
        add(&["-device", "virtserialport,chardev=ctl,name=testbed.ctl"]);
        let snapshot = if self.snapshot { ",snapshot=on" } else { "" };
        let read_only = if self.read_only { ",readonly=on" } else { "" };
        let drive = format!(
            "file={},format={},if=none,id=d0,cache=writeback{snapshot}{read_only}",
            self.disk, self.format
        );
        add(&["-drive", &drive]);
        add(&["-device", "virtio-blk-pci,drive=d0,bootindex=0"]);
        if self.net {
            add(&["-netdev", "user,id=n0"]);
            add(&["-device", "virtio-net-pci,netdev=n0,romfile="]);
        }
        if self.firmware == Firmware::Uefi {
            let vars = dir.join("vars.fd");
            if !vars.exists() {
                fs::copy(OVMF_VARS, &vars).context("OVMF is missing (package ovmf)")?;
            }
            let code = format!("if=pflash,format=raw,unit=0,readonly=on,file={OVMF_CODE}");
            add(&["-drive", &code]);
            add(&["-drive", &format!("if=pflash,format=raw,unit=1,file={vars}")]);
        }
        Ok(a)
    }

    pub(crate) fn start_with(&self, accel: accel::Accel) -> Result<Vm> {
        fs::create_dir_all(&self.dir)?;
        for sock in ["ser.sock", "ctl.sock", "qmp.sock"] {
            let path = self.dir.join(sock);
            if path.as_str().len() > 100 {
                bail!("{path}: socket paths must stay below 108 bytes");
            }
            if path.exists() {
                fs::remove_file(&path)?;
            }
        }
        // setpriv: QEMU dies with the thread that started it (one that lives as long as this process), so a killed test
        // leaves no machine behind.
        let mut c = crate::proc::command("setpriv");
        c.args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(self.arguments(accel)?);
        let err = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("qemu.err"))?;
        c.stdout(Stdio::null()).stderr(err.into_parts().0);
        let child = on_keeper(c).context("cannot start QEMU (setpriv)")?;
        let mut vm = Vm {
            child,
            dir: self.dir.clone(),
            serial: serial::Serial::default(),
            ctl: None,
            ended: false,
            started: Instant::now(),
        };
        let sock = vm.connect("ser.sock")?;
        vm.serial = serial::Serial::open(sock, &self.dir.join("serial.log"))?;
        vm.started = Instant::now();
        Ok(vm)
    }
}

/// A running machine. Dropping it cuts the power.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    dir: Utf8PathBuf,
    /// The console log so far.
    pub serial: serial::Serial,
    ctl: Option<ctl::Channel>,
    ended: bool,
    started: Instant,
}

/// A line of the test driver: the system is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// VERSION_ID of the system.
    pub version: String,
    /// `A` or `B`.
    pub slot: String,
    /// Tries left after this one, on a trial boot.
    pub trial: Option<u8>,
    /// Boot id.
    pub boot: String,
    /// Index of the line; wait for later ones from `index + 1`.
    pub index: usize,
    /// Seconds since power-on.
    pub at: Duration,
}

impl Ready {
    /// Reads `TB-READY version=V slot=S trial=N|- boot=ID`.
    pub fn parse(line: &Line) -> Option<Ready> {
        let text = line.text.split_once(READY_MARK)?.1;
        let field = |key: &str| {
            text.split_whitespace()
                .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
                .map(ToOwned::to_owned)
        };
        Some(Ready {
            version: field("version")?,
            slot: field("slot")?,
            trial: field("trial").and_then(|t| t.parse().ok()),
            boot: field("boot").unwrap_or_default(),
            index: line.index,
            at: line.at,
        })
    }
}

impl Vm {
    pub(crate) fn connect(&mut self, name: &str) -> Result<std::os::unix::net::UnixStream> {
        let path = self.dir.join(name);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match std::os::unix::net::UnixStream::connect(&path) {
                Ok(s) => return Ok(s),
                Err(e) => {
                    if let Some(status) = self.child.try_wait()? {
                        self.ended = true;
                        let err = fs::read_to_string(self.dir.join("qemu.err")).unwrap_or_default();
                        bail!("QEMU ended at once ({status}): {}", crate::proc::tail(&err, 5));
                    }
                    if Instant::now() > end {
                        return Err(e).with_context(|| format!("QEMU's socket {path}"));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Time since power-on.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line at or after `from` that contains `text`.
    ///
    /// # Errors
    /// At the deadline, or when QEMU ends; the message holds the last 50 console lines and QEMU's state.
    pub fn wait(&mut self, text: &str, limit: Duration, from: usize) -> Result<Line> {
        let found = self
            .serial
            .wait(|l| l.text.contains(text), limit, from)
            .map_err(|why| self.failure(&format!("waiting for {text:?}: {why}")))?;
        Ok(found)
    }

    /// The next system that comes up, from line `from` on.
    ///
    /// # Errors
    /// As [`Vm::wait`].
    pub fn ready(&mut self, limit: Duration, from: usize) -> Result<Ready> {
        let found = self
            .serial
            .wait(|l| Ready::parse(l).is_some(), limit, from)
            .map_err(|why| self.failure(&format!("waiting for a system to come up: {why}")))?;
        // The driver is new in each boot: so is the connection to it.
        self.ctl = None;
        Ready::parse(&found).context("ready line")
    }

    /// An error with the last 50 console lines and what QEMU says about itself.
    pub fn failure(&mut self, what: &str) -> anyhow::Error {
        let state = match self.child.try_wait() {
            Ok(Some(s)) => format!("ended ({s})"),
            _ => qmp::query_status(&self.dir.join("qmp.sock")).unwrap_or_else(|e| format!("unknown: {e:#}")),
        };
        anyhow::anyhow!(
            "{what}\nQEMU: {state}; log: {}/serial.log; last console lines:\n{}",
            self.dir,
            self.serial.tail(50)
        )
    }

    /// Lines that grub.cfg printed about a boot, from `from` on: one per boot.
    pub fn boots(&self, from: usize) -> Vec<Line> {
        self.serial
            .lines()
            .into_iter()
            .skip(from)
            .filter(|l| l.text.contains(GRUB_MARK) && l.text.contains("slot="))
            .collect()
    }

    /// Runs a shell command in the guest: status and output (both streams).
    ///
    /// # Errors
    /// When no answer comes in time; never for the command's own status.
    pub fn exec(&mut self, script: &str, limit: Duration) -> Result<(i32, String)> {
        if self.ctl.is_none() {
            let sock = self.connect("ctl.sock")?;
            self.ctl = Some(ctl::Channel::new(sock));
        }
        let channel = self.ctl.as_mut().context("command channel")?;
        match channel.exec(script, limit) {
            Ok(r) => Ok(r),
            Err(e) => {
                self.ctl = None;
                Err(self.failure(&format!("`{script}` in the guest: {e:#}")))
            }
        }
    }

    /// [`Vm::exec`] within two minutes that must succeed: its output.
    ///
    /// # Errors
    /// On another status than 0, with the output.
    pub fn ok(&mut self, script: &str) -> Result<String> {
        let (rc, out) = self.exec(script, Duration::from_secs(120))?;
        if rc != 0 {
            return Err(self.failure(&format!("`{script}` in the guest: status {rc}\n{out}")));
        }
        Ok(out)
    }

    /// Starts an orderly reboot in the guest and returns the line index from which to await the next boot.
    ///
    /// # Errors
    /// As [`Vm::exec`].
    pub fn reboot(&mut self) -> Result<usize> {
        let from = self.serial.lines().len();
        self.ok("systemctl reboot --no-block")?;
        Ok(from)
    }

    /// Cuts the power: SIGKILL to the recorded process, nothing else.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn power_cut(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !self.ended {
            self.ended = true;
            // `kill` on a child not yet waited for cannot hit another process.
            let _ = self.child.kill();
            self.child.wait().context("waiting for QEMU")?;
            self.serial.join();
        }
        Ok(())
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Starts a program on a thread that never ends: a parent-death signal is about threads, and tests have one each.
fn on_keeper(command: std::process::Command) -> std::io::Result<Child> {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, OnceLock, PoisonError};
    type Job = (std::process::Command, Sender<std::io::Result<Child>>);
    static KEEPER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (give, take) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in take {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(give)
    });
    let gone = || std::io::Error::other("the thread that starts machines is gone");
    let (answer, started) = channel();
    keeper
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}

/// Held while a machine runs: one emulated machine at a time on this host.
///
/// # Errors
/// When the lock file cannot be opened or locked.
pub fn heavy_lock() -> Result<fs::File> {
    let path = std::env::var("SLIPWAY_HEAVY_LOCK").unwrap_or_else(|_| "/tmp/slipway-heavy.lock".into());
    let f = fs::OpenOptions::new().create(true).append(true).open(path)?;
    rustix::fs::flock(&f, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(f)
}
