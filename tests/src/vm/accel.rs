//! Which accelerator works here: KVM only if a probe boot prints GRUB's line within ten seconds, else emulation.
//!
//! A present /dev/kvm proves little: nested and paravirtual hosts offer one on which guests hang.

use super::{Firmware, GRUB_MARK, Machine};
use std::sync::OnceLock;
use std::time::Duration;

/// How QEMU runs guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's own translator.
    Tcg,
}

impl Accel {
    pub(crate) const fn arguments(self) -> &'static [&'static str] {
        match self {
            Accel::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Accel::Tcg => &["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }
}

/// The accelerator of this process; `SLIPWAY_ACCEL=kvm|tcg` decides without a probe.
pub fn choose(machine: &Machine) -> Accel {
    static CHOICE: OnceLock<Accel> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let (accel, why) = decide(machine);
        println!("accelerator: {} ({why})", accel.name());
        accel
    })
}

fn decide(machine: &Machine) -> (Accel, String) {
    match std::env::var("SLIPWAY_ACCEL").as_deref() {
        Ok("kvm") => return (Accel::Kvm, "SLIPWAY_ACCEL".into()),
        Ok("tcg") => return (Accel::Tcg, "SLIPWAY_ACCEL".into()),
        _ => {}
    }
    let kvm = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    if let Err(e) = kvm {
        return (Accel::Tcg, format!("/dev/kvm: {e}"));
    }
    let probe = Machine {
        dir: machine.dir.join("probe"),
        snapshot: true,
        net: false,
        firmware: Firmware::Bios,
        ..machine.clone()
    };
    let seen = probe
        .start_with(Accel::Kvm)
        .and_then(|mut vm| vm.wait(GRUB_MARK, Duration::from_secs(10), 0));
    match seen {
        Ok(line) => (
            Accel::Kvm,
            format!("probe boot reached GRUB after {:.1} s", line.at.as_secs_f64()),
        ),
        Err(_) => (
            Accel::Tcg,
            "/dev/kvm is there, but a probe boot of 10 s did not reach GRUB".into(),
        ),
    }
}
