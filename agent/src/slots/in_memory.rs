//! The partition table of a disk of ours that exists only in memory: for tests and `crashtest`.

use super::{DiskFact, TableFact};
use crate::gpt_table::Entry;
use os_proto::layout::{Arch, MIB, OS_STATE_SIZE, Role};
use uuid::Uuid;

impl DiskFact {
    /// A disk with all of our partitions, one after the other from 1 MiB on. Sizes in bytes; the roots are `slot_size`, the others
    /// as large as os-state. Partition UUIDs are the numbers.
    pub(crate) fn in_memory(node: &str, slot_size: u64, sector_size: u32) -> DiskFact {
        let mut at = MIB;
        let entries = [Role::Boot, Role::OsState, Role::RootA, Role::RootB, Role::Persist]
            .into_iter()
            .map(|role| {
                let size = match role {
                    Role::RootA | Role::RootB => slot_size,
                    _ => OS_STATE_SIZE,
                };
                let entry = Entry {
                    number: role.number(),
                    name: role.name().to_owned(),
                    type_guid: role.type_guid(Arch::X86_64),
                    part_uuid: Uuid::from_u128(u128::from(role.number())),
                    start: at,
                    size,
                };
                at += size;
                entry
            })
            .collect();
        DiskFact {
            node: node.into(),
            dev: None,
            size: at + MIB,
            sector_size,
            table: TableFact::Gpt {
                entries,
                primary_damage: None,
                backup_damage: None,
            },
            nodes: Vec::new(),
        }
    }
}
