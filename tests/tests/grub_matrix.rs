//! Real GRUB in QEMU against the pure model, and everything that a person or a machine without a serial port may meet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use os_e2e::grub_matrix::{Drive, Grub, Recipe, Run, SmallDisk, compare_all, decision_limit, long};
use os_e2e::vm::{Firmware, heavy_lock};
use os_proto::boot_choice::Source;
use os_proto::env_block::{Env, value};
use os_proto::layout::Slot;
use std::time::{Duration, Instant};

struct Bed {
    _lock: fs_err::File,
    dir: tempfile::TempDir,
    grub: Grub,
}

impl Bed {
    fn new(test: &str) -> Option<Bed> {
        if !os_e2e::e2e(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let grub = Grub::ensure(dir.path().try_into().unwrap()).unwrap();
        Some(Bed {
            _lock: heavy_lock().unwrap(),
            dir,
            grub,
        })
    }

    fn path(&self) -> &camino::Utf8Path {
        self.dir.path().try_into().unwrap()
    }

    /// Slot B on trial with three tries.
    fn armed(&self, name: &str, menu: bool) -> SmallDisk {
        let env = Env::committed(Slot::A, 1).armed(Slot::B).encode();
        self.disk(name, &env, menu)
    }

    fn disk(&self, name: &str, env: &[u8], menu: bool) -> SmallDisk {
        let recipe = Recipe {
            env1: Some(env),
            env2: Some(env),
            a_has_kernel: true,
            menu,
            crash: None,
        };
        SmallDisk::build(&self.grub, &self.path().join(name), &recipe).unwrap()
    }
}

fn start(disk: &SmallDisk, firmware: Firmware, serial: bool) -> Run {
    let drive = Drive {
        disk: &disk.path,
        read_only: false,
    };
    Run::start(&[drive], firmware, serial).unwrap()
}

fn left(disk: &SmallDisk) -> String {
    value(&disk.read_env1().unwrap(), "left").unwrap()
}

fn matrix(firmware: Firmware) {
    let Some(bed) = Bed::new("the GRUB matrix") else {
        return;
    };
    let began = Instant::now();
    let lines = compare_all(&bed.grub, bed.path(), firmware).unwrap();
    for (name, line) in &lines {
        println!("{:4}  {name:32}  {line}", firmware.name());
    }
    println!("{} states in {:.0} s", lines.len(), began.elapsed().as_secs_f64());
    assert!(lines.len() >= 20);
}

#[test]
fn the_model_is_what_grub_does_under_bios() {
    matrix(Firmware::Bios);
}

#[test]
fn the_model_is_what_grub_does_under_uefi() {
    matrix(Firmware::Uefi);
}

/// Neither slot has a kernel: the trial's three tries go by at once, then the committed slot waits 30 s and restarts.
#[test]
fn t48_a_slot_that_cannot_be_loaded_costs_its_tries_and_nobody_presses_a_key() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let Some(bed) = Bed::new("load failure") else {
            return;
        };
        let disk = bed.armed("load.raw", false);
        let limit = decision_limit(firmware);
        let mut run = start(&disk, firmware, true);
        for trial in [2, 1, 0] {
            let line = run.decision(limit).unwrap();
            assert_eq!((line.slot, line.trial), (Slot::B, Some(trial)));
            run.wait("the try is spent, restart", limit).unwrap();
        }
        let line = run.decision(limit).unwrap();
        assert_eq!((line.slot, line.trial, line.left), (Slot::A, None, Some(0)));
        run.wait("cannot be loaded, restart in 30 seconds", limit)
            .unwrap();
        let waited = Instant::now();
        assert_eq!(run.decision(limit + Duration::from_secs(30)).unwrap(), line);
        assert!(
            waited.elapsed() > Duration::from_secs(25),
            "{:?}",
            waited.elapsed()
        );
    }
}

#[test]
fn a_slot_picked_in_the_menu_uses_no_try_and_restarts_when_it_cannot_be_loaded() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let Some(bed) = Bed::new("the menu") else { return };
        let disk = bed.armed("menu.raw", true);
        let before = disk.read_env1().unwrap();
        let limit = decision_limit(firmware);
        let mut run = start(&disk, firmware, true);
        run.wait("Esc within 3 seconds", limit).unwrap();
        run.type_keys(b"\x1b").unwrap();
        run.see("Slot B", limit).unwrap();
        run.type_keys(b"b").unwrap();
        let line = run.decision(limit).unwrap();
        assert_eq!(
            (line.source, line.slot, line.trial),
            (Source::Hand, Slot::B, None)
        );
        run.wait("cannot be loaded, restart in 30 seconds", limit)
            .unwrap();
        assert_eq!(disk.read_env1().unwrap(), before);
        if firmware == Firmware::Uefi && !long() {
            continue;
        }
        // Nobody types now: the logic goes on where it was.
        let line = run.decision(limit + Duration::from_secs(30)).unwrap();
        assert_eq!(
            (line.source, line.slot, line.trial),
            (Source::Env1, Slot::B, Some(2))
        );
    }
}

#[test]
fn noise_on_the_serial_line_does_not_stop_the_start() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let Some(bed) = Bed::new("serial noise") else {
            return;
        };
        let disk = bed.armed("noise.raw", true);
        let limit = decision_limit(firmware);
        let mut run = start(&disk, firmware, true);
        run.wait("Esc within 3 seconds", limit).unwrap();
        run.type_keys(b"ab\r\n x\xff\0").unwrap();
        let line = run.decision(limit).unwrap();
        assert_eq!((line.source, line.trial), (Source::Env1, Some(2)));
    }
}

/// Somebody opened the menu and went away.
#[test]
fn a_menu_that_nobody_uses_ends_by_itself() {
    if !long() {
        println!("skipped: the menu's countdown takes a minute; `tests/long` runs it (SLIPWAY_LONG=1)");
        return;
    }
    let Some(bed) = Bed::new("the menu's countdown") else {
        return;
    };
    let disk = bed.armed("away.raw", true);
    let limit = decision_limit(Firmware::Bios);
    let mut run = start(&disk, Firmware::Bios, true);
    run.wait("Esc within 3 seconds", limit).unwrap();
    run.type_keys(b"\x1b").unwrap();
    run.see("Slot B", limit).unwrap();
    let line = run.decision(limit + Duration::from_secs(60)).unwrap();
    assert_eq!((line.source, line.trial), (Source::Env1, Some(2)));
}

#[test]
fn a_machine_without_a_serial_port_starts() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let Some(bed) = Bed::new("no serial port") else {
            return;
        };
        let disk = bed.armed("mute.raw", true);
        let _run = start(&disk, firmware, false);
        let end = Instant::now() + decision_limit(firmware);
        // The count is the only thing to be seen from outside.
        while left(&disk) == "3" {
            assert!(
                Instant::now() < end,
                "{}: no decision without a serial port",
                firmware.name()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// A clone beside it, whichever comes first.
#[test]
fn the_disk_that_was_started_decides_and_a_clone_is_left_alone() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let Some(bed) = Bed::new("two disks") else { return };
        let one = bed.armed("one.raw", false);
        let other = bed.disk("other.raw", &Env::committed(Slot::B, 9).encode(), false);
        for (first, second, slot, cur) in [(&one, &other, Slot::B, Slot::A), (&other, &one, Slot::B, Slot::B)]
        {
            let before = fs_err::read(&second.path).unwrap();
            let drives = [first, second].map(|d| Drive {
                disk: &d.path,
                read_only: false,
            });
            let mut run = Run::start(&drives, firmware, true).unwrap();
            let line = run.decision(decision_limit(firmware)).unwrap();
            assert_eq!((line.slot, line.cur), (slot, Some(cur)));
            drop(run);
            assert!(
                fs_err::read(&second.path).unwrap() == before,
                "the other disk was written"
            );
        }
    }
}
