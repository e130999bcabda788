//! What power cuts leave of a recorded update, started by real GRUB: os-state and both slots are the recorded ones.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use os_e2e::grub_matrix::{Grub, compare_these, crash_states, long};
use os_e2e::vm::{Firmware, heavy_lock};
use std::collections::BTreeSet;
use std::time::Instant;

/// Disks for each firmware; as many as the specification wants in the long run. UEFI firmware is slow to start.
fn count(firmware: Firmware) -> usize {
    match firmware {
        _ if long() => 50,
        Firmware::Bios => 8,
        Firmware::Uefi => 4,
    }
}

fn compare(firmware: Firmware) {
    if !os_e2e::e2e("power cuts through real GRUB") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path: &camino::Utf8Path = dir.path().try_into().unwrap();
    let count = count(firmware);
    let states = crash_states(count).unwrap();
    assert_eq!(states.len(), count);
    let grub = Grub::ensure(path).unwrap();
    let _lock = heavy_lock().unwrap();
    let began = Instant::now();
    let lines = compare_these(&grub, path, firmware, &states).unwrap();
    for (name, line) in &lines {
        println!("{:4}  {line}  {name}", firmware.name());
    }
    println!(
        "{} disks as power cuts leave them, {}: GRUB decides as the model does on all, in {:.0} s",
        lines.len(),
        firmware.name(),
        began.elapsed().as_secs_f64()
    );
    // Decisions of all kinds are among them: no trial, each number of tries, the new slot committed.
    let kinds: BTreeSet<String> = lines.iter().map(|(_, l)| l.to_string()).collect();
    assert!(kinds.len() >= count.min(5) - 1, "{kinds:#?}");
}

#[test]
fn t26_disks_as_power_cuts_leave_them_under_bios() {
    compare(Firmware::Bios);
}

#[test]
fn t26_disks_as_power_cuts_leave_them_under_uefi() {
    compare(Firmware::Uefi);
}
