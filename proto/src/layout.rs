//! The disk layout: the one table that imgbuild writes and the agent recognises.
//!
//! Numbers 1 to 4 and the names are those of openEuler KubeOS. Physical order on disk is 5, 1, 6, 2, 3, 4, so that PERSIST
//! can grow at the end. A role is recognised only when number *and* name (and for os-state the type GUID) agree; nothing
//! ever finds a root by file-system label or UUID, because updates are written verbatim and both slots may carry the same.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::{Uuid, uuid};

/// One MiB in bytes; every partition but `bios` starts and ends on a multiple of it.
pub const MIB: u64 = 1 << 20;

/// A root partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Slot {
    /// ROOT-A, partition 2.
    A,
    /// ROOT-B, partition 3.
    B,
}

impl Slot {
    /// Both slots.
    pub const ALL: [Slot; 2] = [Slot::A, Slot::B];

    /// The other slot.
    pub const fn other(self) -> Slot {
        match self {
            Slot::A => Slot::B,
            Slot::B => Slot::A,
        }
    }

    /// `A` or `B`.
    pub const fn letter(self) -> &'static str {
        match self {
            Slot::A => "A",
            Slot::B => "B",
        }
    }

    /// The partition role of this slot.
    pub const fn role(self) -> Role {
        match self {
            Slot::A => Role::RootA,
            Slot::B => Role::RootB,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letter())
    }
}

impl FromStr for Slot {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "A" | "a" => Ok(Slot::A),
            "B" | "b" => Ok(Slot::B),
            other => Err(format!("{other:?} is not a slot: expected A or B")),
        }
    }
}

impl From<Slot> for crate::v1::Slot {
    fn from(s: Slot) -> Self {
        match s {
            Slot::A => crate::v1::Slot::A,
            Slot::B => crate::v1::Slot::B,
        }
    }
}

/// What a partition is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// FAT EFI system partition: GRUB, the static grub.cfg, optional per-slot user arguments. `/boot/efi`.
    Boot,
    /// Slot A.
    RootA,
    /// Slot B, blank when new.
    RootB,
    /// ext4, everything that outlives an update. `/persist`.
    Persist,
    /// GRUB's core image for BIOS, in the gap before the first MiB.
    Bios,
    /// FAT12 with `env1` and `env2`; never mounted.
    OsState,
}

/// Well-known GPT type GUIDs and our own.
pub mod type_guid {
    use super::{Uuid, uuid};
    /// EFI system partition (UEFI specification 2.10, 5.3.3).
    pub const ESP: Uuid = uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
    /// GRUB's BIOS boot partition.
    pub const BIOS_BOOT: Uuid = uuid!("21686148-6449-6e6f-744e-656564454649");
    /// Linux root, x86-64 (Discoverable Partitions Specification).
    pub const ROOT_X86_64: Uuid = uuid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709");
    /// Linux root, 64-bit Arm (Discoverable Partitions Specification).
    pub const ROOT_AARCH64: Uuid = uuid!("b921b045-1df0-41c3-af44-4c6f280d3fae");
    /// Linux file system data.
    pub const LINUX_DATA: Uuid = uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4");
    /// Slipway's os-state.
    pub const OS_STATE: Uuid = uuid!("5a7e0000-51b1-4d0c-8b52-0c5a7e000006");
}

/// Machine architecture of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// AMD64.
    #[serde(rename = "x86_64")]
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// As RPM, `uname -m` and recipes write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }
}

/// How a role's content is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// GPT partition number, also the `N` of GRUB's `gptN`.
    pub number: u32,
    /// GPT partition name.
    pub name: &'static str,
    /// Role.
    pub role: Role,
    /// Where it is mounted, if at all.
    pub mount: Option<&'static str>,
}

/// Version of [`SLIPWAY`].
pub const LAYOUT: u32 = 1;

/// Slipway's layout 1, in partition-number order.
pub const SLIPWAY: [Entry; 6] = [
    Entry {
        number: 1,
        name: "BOOT",
        role: Role::Boot,
        mount: Some("/boot/efi"),
    },
    Entry {
        number: 2,
        name: "ROOT-A",
        role: Role::RootA,
        mount: None,
    },
    Entry {
        number: 3,
        name: "ROOT-B",
        role: Role::RootB,
        mount: None,
    },
    Entry {
        number: 4,
        name: "PERSIST",
        role: Role::Persist,
        mount: Some("/persist"),
    },
    Entry {
        number: 5,
        name: "bios",
        role: Role::Bios,
        mount: None,
    },
    Entry {
        number: 6,
        name: "os-state",
        role: Role::OsState,
        mount: None,
    },
];

/// openEuler KubeOS's layout (UEFI, GPT): the same first four partitions, shared grubenv on BOOT, no os-state.
pub const KUBEOS: [Entry; 4] = [
    Entry {
        number: 1,
        name: "BOOT",
        role: Role::Boot,
        mount: Some("/boot/efi"),
    },
    Entry {
        number: 2,
        name: "ROOT-A",
        role: Role::RootA,
        mount: None,
    },
    Entry {
        number: 3,
        name: "ROOT-B",
        role: Role::RootB,
        mount: None,
    },
    Entry {
        number: 4,
        name: "PERSIST",
        role: Role::Persist,
        mount: Some("/persist"),
    },
];

/// Physical order of the partitions of [`SLIPWAY`] on disk.
pub const PHYSICAL_ORDER: [Role; 6] = [
    Role::Bios,
    Role::Boot,
    Role::OsState,
    Role::RootA,
    Role::RootB,
    Role::Persist,
];

/// First byte of the `bios` partition with 512-byte sectors (sector 40); it ends at 1 MiB.
pub const BIOS_START: u64 = 40 * 512;
/// Size of os-state in bytes.
pub const OS_STATE_SIZE: u64 = 2 * MIB;

impl Role {
    /// This role's row of [`SLIPWAY`].
    pub const fn entry(self) -> &'static Entry {
        match self {
            Role::Boot => &SLIPWAY[0],
            Role::RootA => &SLIPWAY[1],
            Role::RootB => &SLIPWAY[2],
            Role::Persist => &SLIPWAY[3],
            Role::Bios => &SLIPWAY[4],
            Role::OsState => &SLIPWAY[5],
        }
    }

    /// Partition number.
    pub const fn number(self) -> u32 {
        self.entry().number
    }

    /// Partition name.
    pub const fn name(self) -> &'static str {
        self.entry().name
    }

    /// GPT type GUID.
    pub const fn type_guid(self, arch: Arch) -> Uuid {
        match (self, arch) {
            (Role::Boot, _) => type_guid::ESP,
            (Role::RootA | Role::RootB, Arch::X86_64) => type_guid::ROOT_X86_64,
            (Role::RootA | Role::RootB, Arch::Aarch64) => type_guid::ROOT_AARCH64,
            (Role::Persist, _) => type_guid::LINUX_DATA,
            (Role::Bios, _) => type_guid::BIOS_BOOT,
            (Role::OsState, _) => type_guid::OS_STATE,
        }
    }
}

/// Where the environment copies lie inside os-state, and its FAT12 geometry, by logical sector size.
///
/// Each file is 512 bytes and alone in its 4 KiB-aligned cluster, so a write of one whole cluster never touches anything
/// else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateGeometry {
    /// Logical sector size in bytes.
    pub sector: u32,
    /// Reserved sectors before the first FAT.
    pub reserved: u16,
    /// Number of FATs.
    pub fats: u8,
    /// Sectors of one FAT.
    pub fat_sectors: u16,
    /// Root directory entries.
    pub root_entries: u16,
    /// Sectors of a cluster.
    pub cluster_sectors: u8,
    /// Byte offset of `env1` in the partition.
    pub env1: u64,
    /// Byte offset of `env2` in the partition.
    pub env2: u64,
}

/// Size of a cluster of os-state, the unit of an environment write.
pub const ENV_CLUSTER: usize = 4096;

/// Geometry for disks with 512-byte logical sectors.
pub const STATE_512: StateGeometry = StateGeometry {
    sector: 512,
    reserved: 12,
    fats: 2,
    fat_sectors: 2,
    root_entries: 128,
    cluster_sectors: 8,
    env1: 12 * 1024,
    env2: 16 * 1024,
};

/// Geometry for disks with 4096-byte logical sectors (UEFI only).
pub const STATE_4096: StateGeometry = StateGeometry {
    sector: 4096,
    reserved: 1,
    fats: 2,
    fat_sectors: 1,
    root_entries: 128,
    cluster_sectors: 1,
    env1: 16 * 1024,
    env2: 20 * 1024,
};

/// The geometry for a logical sector size; `None` for sizes other than 512 and 4096.
pub const fn state_geometry(sector: u32) -> Option<&'static StateGeometry> {
    match sector {
        512 => Some(&STATE_512),
        4096 => Some(&STATE_4096),
        _ => None,
    }
}

/// Paths inside PERSIST that imgbuild, the initramfs and the agent agree on (relative to its root).
pub mod persist {
    use super::Slot;
    /// The agent's directory, `<state>` on a node.
    pub const STATE_DIR: &str = "os-agent";
    /// Source of the bind mount on /var.
    pub const VAR: &str = "var";
    /// Upper layer of /opt, as KubeOS names it.
    pub const OPT_UPPER: &str = "opt";
    /// Work directory of /opt, as KubeOS names it.
    pub const OPT_WORK: &str = "optwork";
    /// Upper layer of /etc of a slot.
    pub const fn etc_upper(slot: Slot) -> &'static str {
        match slot {
            Slot::A => "etc/A",
            Slot::B => "etc/B",
        }
    }
    /// Work directory of /etc of a slot.
    pub const fn etc_work(slot: Slot) -> &'static str {
        match slot {
            Slot::A => "etc/A.work",
            Slot::B => "etc/B.work",
        }
    }
}

/// Paths inside a root file system that a slot must have to boot.
pub mod root {
    /// Kernel, or a link to it inside the same file system.
    pub const KERNEL: &str = "/boot/vmlinuz";
    /// Initramfs.
    pub const INITRAMFS: &str = "/boot/initramfs.img";
    /// Kernel arguments of the image, a GRUB environment block with the one variable `args`.
    pub const ARGS: &str = "/boot/args.env";
    /// Identity of the image.
    pub const OS_RELEASE: &str = "/usr/lib/os-release";
    /// The agent.
    pub const AGENT: &str = "/usr/bin/os-agent";
}

/// Kernel command line keys that grub.cfg sets.
pub mod cmdline {
    /// `os.slot=A|B`: the slot that was loaded.
    pub const SLOT: &str = "os.slot";
    /// `os.boot=1`: version of this contract.
    pub const BOOT: &str = "os.boot";
    /// `os.trial=N`: on a trial only; N is the tries left after this one, 2, 1 or 0.
    pub const TRIAL: &str = "os.trial";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_types_are_for_life() {
        let rows: String = PHYSICAL_ORDER
            .iter()
            .map(|r| {
                format!(
                    "{} {:<9} {} {}\n",
                    r.number(),
                    r.name(),
                    r.type_guid(Arch::X86_64),
                    r.type_guid(Arch::Aarch64)
                )
            })
            .collect();
        insta::assert_snapshot!(rows);
    }

    #[test]
    fn kubeos_is_the_first_four() {
        assert_eq!(KUBEOS[..], SLIPWAY[..4]);
    }

    #[test]
    fn environment_files_lie_at_whole_clusters_behind_the_root_directory() {
        for g in [STATE_512, STATE_4096] {
            let s = u64::from(g.sector);
            let data = u64::from(g.reserved) * s
                + u64::from(g.fats) * u64::from(g.fat_sectors) * s
                + (u64::from(g.root_entries) * 32).div_ceil(s) * s;
            assert_eq!(g.env1, data, "first data cluster");
            assert_eq!(g.env2, data + ENV_CLUSTER as u64);
            assert_eq!(u64::from(g.cluster_sectors) * s, ENV_CLUSTER as u64);
            assert_eq!(g.env1 % ENV_CLUSTER as u64, 0);
        }
    }
}
