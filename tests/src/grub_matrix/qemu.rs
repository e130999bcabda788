//! The smallest machine that runs GRUB: disks and a serial line that can be read and typed on.

use crate::vm::Firmware;
use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use os_proto::boot_choice::Line;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const OVMF_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const OVMF_VARS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// A disk of the machine; the first one is started.
pub struct Drive<'a> {
    /// Image file.
    pub disk: &'a Utf8Path,
    /// Every write fails.
    pub read_only: bool,
}

/// A running machine. Dropping it cuts the power.
pub struct Run {
    child: Child,
    keys: ChildStdin,
    bytes: Receiver<Vec<u8>>,
    text: String,
    /// How much of the text has been looked at.
    seen: usize,
}

impl Run {
    /// Powers on.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(drives: &[Drive<'_>], firmware: Firmware, serial: bool) -> Result<Run> {
        // QEMU dies with the thread that started it, so a killed test leaves no machine behind.
        let mut c = crate::proc::command("setpriv");
        c.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        c.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        c.args(["-accel", "tcg", "-m", "256", "-monitor", "none"]);
        if serial {
            c.args(["-chardev", "stdio,id=ser,signal=off", "-serial", "chardev:ser"]);
        }
        match firmware {
            Firmware::Bios => c.args(["-machine", "pc"]),
            Firmware::Uefi => c.args(["-machine", "q35"]).args([
                "-drive",
                &format!("if=pflash,format=raw,unit=0,readonly=on,file={OVMF_CODE}"),
                "-drive",
                &format!("if=pflash,format=raw,unit=1,snapshot=on,file={OVMF_VARS}"),
            ]),
        };
        for (i, d) in drives.iter().enumerate() {
            let ro = if d.read_only { ",readonly=on" } else { "" };
            c.args([
                "-drive",
                &format!("file={},format=raw,if=none,id=d{i}{ro}", d.disk),
            ]);
            c.args(["-device", &format!("virtio-blk-pci,drive=d{i},bootindex={i}")]);
        }
        c.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = c
            .spawn()
            .context("cannot start QEMU (setpriv qemu-system-x86_64)")?;
        let keys = child.stdin.take().context("standard input of QEMU")?;
        let mut out = child.stdout.take().context("standard output of QEMU")?;
        let (tx, bytes) = channel();
        std::thread::spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut buf) {
                if tx.send(buf.get(..n).unwrap_or_default().to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Run {
            child,
            keys,
            bytes,
            text: String::new(),
            seen: 0,
        })
    }

    /// Waits until the output after the last match holds `what` and then the end of that line; gives the line.
    ///
    /// # Errors
    /// After `limit`, or when the machine ends.
    pub fn wait(&mut self, what: &str, limit: Duration) -> Result<String> {
        self.find(what, limit, true)
    }

    /// The same without the end of the line: a menu is drawn by moving the cursor.
    ///
    /// # Errors
    /// As [`Run::wait`].
    pub fn see(&mut self, what: &str, limit: Duration) -> Result<String> {
        self.find(what, limit, false)
    }

    fn find(&mut self, what: &str, limit: Duration, whole_line: bool) -> Result<String> {
        let end = Instant::now() + limit;
        let mut raw = Vec::new();
        loop {
            let rest = self.text.get(self.seen..).unwrap_or_default();
            if let Some(at) = rest.find(what) {
                let tail = rest.get(at..).unwrap_or_default();
                let end = if whole_line {
                    tail.find(['\n', '\r'])
                } else {
                    Some(what.len())
                };
                if let Some(n) = end {
                    let line = tail.get(..n).unwrap_or_default().to_owned();
                    self.seen += at + n;
                    return Ok(line);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(more) => {
                    raw.extend(more);
                    let (plain, open) = strip(&raw);
                    self.text.push_str(&plain);
                    raw = open;
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{what:?} not seen within {limit:?}; output:\n{}", self.output());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("QEMU ended before {what:?}; output:\n{}", self.output());
                }
            }
        }
    }

    /// Waits for GRUB's next decision.
    ///
    /// # Errors
    /// As [`Run::wait`], or when the line cannot be read.
    pub fn decision(&mut self, limit: Duration) -> Result<Line> {
        self.wait("slipway: src=", limit)?
            .parse()
            .map_err(|e: String| anyhow::anyhow!(e))
    }

    /// Types on the serial line.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn type_keys(&mut self, keys: &[u8]) -> Result<()> {
        self.keys.write_all(keys)?;
        self.keys.flush()?;
        Ok(())
    }

    /// The last part of all output, without escape sequences.
    pub fn output(&self) -> String {
        crate::proc::tail(&self.text, 40)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes out terminal escape sequences; what may be the beginning of one is given back.
fn strip(raw: &[u8]) -> (String, Vec<u8>) {
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(b) = raw.get(i) {
        if *b != 0x1b {
            out.push(*b);
            i += 1;
            continue;
        }
        let rest = raw.get(i..).unwrap_or_default();
        let end = match rest.get(1) {
            Some(b'[') => rest
                .iter()
                .skip(2)
                .position(|b| (0x40..0x7f).contains(b))
                .map(|n| n + 3),
            Some(_) => Some(2),
            None => None,
        };
        match end {
            Some(n) => i += n,
            None => return (String::from_utf8_lossy(&out).into_owned(), rest.to_vec()),
        }
    }
    (String::from_utf8_lossy(&out).into_owned(), Vec::new())
}
