//! Real GRUB against the pure model: small disks with the real grub.cfg, started in QEMU and stopped at the line that GRUB
//! prints when it has decided. The kernels are no kernels, so what follows a load failure is seen as well.

mod disk;
mod qemu;
mod states;

pub use disk::{Grub, Recipe, SmallDisk};
pub use qemu::{Drive, Run};
pub use states::{Crash, State, crash_states, states};

use crate::vm::Firmware;
use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use os_proto::boot_choice::{self, Facts, Line, Save};
use std::sync::Mutex;
use std::time::Duration;

/// Longest time from power on to GRUB's decision, on a loaded machine.
pub fn decision_limit(firmware: Firmware) -> Duration {
    Duration::from_secs(match firmware {
        Firmware::Bios => 40,
        Firmware::Uefi => 120,
    })
}

/// One state on one firmware: GRUB's line, and every byte of the disk, against the model.
///
/// # Errors
/// When anything differs from the model; the message has the state's name and the serial output.
pub fn compare(grub: &Grub, dir: &Utf8Path, state: &State, firmware: Firmware) -> Result<Line> {
    let disk = SmallDisk::build(
        grub,
        &dir.join(format!("{}-{}.raw", firmware.name(), file_name(&state.name))),
        &Recipe {
            env1: state.env1.as_deref(),
            env2: state.env2.as_deref(),
            a_has_kernel: state.a_has_kernel,
            menu: false,
            crash: state.crash.as_ref(),
        },
    )?;
    let before = fs_err::read(&disk.path)?;
    let wanted = boot_choice::choose(&Facts {
        env1: state.env1.as_deref(),
        env2: state.env2.as_deref(),
        a_has_kernel: state.a_has_kernel,
        save: if state.read_only { Save::Fails } else { Save::Works },
        picked: None,
    });
    let mut run = Run::start(
        &[Drive {
            disk: &disk.path,
            read_only: state.read_only,
        }],
        firmware,
        true,
    )?;
    let line = run
        .decision(decision_limit(firmware))
        .with_context(|| format!("state {:?}, {}", state.name, firmware.name()))?;
    let output = run.output();
    drop(run);
    if line != wanted.line {
        bail!(
            "state {:?}, {}: the model says\n  {}\nGRUB says\n  {line}\n{output}",
            state.name,
            firmware.name(),
            wanted.line
        );
    }
    let mut expected = before;
    if let (Some(new), Some(at)) = (&wanted.env1, disk.env1_at()) {
        expected
            .get_mut(at..at + new.len())
            .context("env1 lies outside the disk")?
            .copy_from_slice(new);
    }
    let after = fs_err::read(&disk.path)?;
    if after != expected {
        let at: Vec<usize> = (0..after.len().max(expected.len()))
            .filter(|i| after.get(*i) != expected.get(*i))
            .take(8)
            .collect();
        bail!(
            "state {:?}, {}: the disk differs from the model at bytes {at:?}\n{output}",
            state.name,
            firmware.name()
        );
    }
    fs_err::remove_file(&disk.path)?;
    Ok(line)
}

/// A name as a file name: what tells names apart is kept.
fn file_name(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(60)
        .collect();
    let sum = name
        .bytes()
        .fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    format!("{plain}-{sum:08x}")
}

/// Whether the suite runs with its full counts.
pub fn long() -> bool {
    std::env::var_os("SLIPWAY_LONG").is_some()
}

/// All states on one firmware (a part of them where firmware is slow, unless [`long`]), two machines at a time; the lines in
/// order, or every difference.
///
/// # Errors
/// When a state differs, all of them in one message.
pub fn compare_all(grub: &Grub, dir: &Utf8Path, firmware: Firmware) -> Result<Vec<(String, Line)>> {
    let mut todo = states();
    if firmware == Firmware::Uefi && !long() {
        // What only GRUB's own reading of odd blocks decides is the same code under both firmwares.
        todo.retain(|s| !s.odd);
    }
    compare_these(grub, dir, firmware, &todo)
}

/// The same for these states.
///
/// # Errors
/// As [`compare_all`].
pub fn compare_these(
    grub: &Grub,
    dir: &Utf8Path,
    firmware: Firmware,
    todo: &[State],
) -> Result<Vec<(String, Line)>> {
    let next = Mutex::new(0usize);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = {
                        let mut n = next.lock().unwrap_or_else(|e| e.into_inner());
                        *n += 1;
                        *n - 1
                    };
                    let Some(state) = todo.get(i) else { break };
                    let result = compare(grub, dir, state, firmware);
                    done.lock().unwrap_or_else(|e| e.into_inner()).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by_key(|(i, _)| *i);
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for ((_, result), state) in done.into_iter().zip(todo) {
        match result {
            Ok(line) => good.push((state.name.clone(), line)),
            Err(e) => bad.push(format!("{e:#}")),
        }
    }
    if !bad.is_empty() {
        bail!(
            "{} of {} states differ:\n{}",
            bad.len(),
            todo.len(),
            bad.join("\n\n")
        );
    }
    Ok(good)
}
