//! Recipe → what will be on the disk: partitions with offsets, identifiers, packages and files. Pure and printable.

mod print;
#[cfg(test)]
mod tests;

use crate::error::{BuildError, Kind};
use crate::recipe::{FileSource, Loader, MIN_PERSIST_MIB, Recipe, Rootfs, Trust};
use os_proto::layout::{Arch, BIOS_START, MIB, OS_STATE_SIZE, PHYSICAL_ORDER, Role};
use serde::Serialize;
use uuid::{Uuid, uuid};

/// Namespace of all identifiers that a build derives from name and version.
const NAMESPACE: Uuid = uuid!("5a7e0000-51b1-4d0c-8b52-0c5a7e00b11d");
/// Room for the backup partition table at the end of the disk.
const TAIL: u64 = MIB;

/// Everything that is decided before the first byte is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Image name.
    pub name: String,
    /// VERSION_ID.
    pub version: String,
    /// PRETTY_NAME.
    pub pretty_name: String,
    /// Architecture.
    pub arch: Arch,
    /// Whether GRUB is installed.
    pub bootable: bool,
    /// Time stamp of everything, Unix seconds.
    pub source_date_epoch: u64,
    /// Size of the disk image in bytes.
    pub disk_size: u64,
    /// Logical sector size in bytes.
    pub sector_size: u32,
    /// GPT disk GUID.
    pub disk_guid: Uuid,
    /// Partitions in physical order.
    pub partitions: Vec<Partition>,
    /// Identifiers of the file systems.
    pub ids: Ids,
    /// Where the root comes from.
    pub source: Source,
    /// Kernel arguments that the recipe adds.
    pub boot_args: Vec<String>,
    /// Files that the recipe adds: destination, source.
    pub files: Vec<(String, String)>,
    /// Users that the recipe adds or changes.
    pub users: Vec<String>,
    /// Units to enable.
    pub enable: Vec<String>,
    /// Units to disable.
    pub disable: Vec<String>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// GPT number.
    pub number: u32,
    /// GPT name.
    pub name: &'static str,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Type GUID.
    pub type_guid: Uuid,
    /// Unique GUID of the factory image.
    pub guid: Uuid,
    /// What it holds, for people.
    pub content: &'static str,
    /// Role.
    #[serde(skip)]
    pub role: Role,
}

/// Identifiers of the file systems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ids {
    /// UUID of the root file system.
    pub root: Uuid,
    /// UUID of PERSIST.
    pub persist: Uuid,
    /// Seed of ext4's directory hashes.
    pub hash_seed: Uuid,
    /// Volume id of BOOT.
    pub boot: u32,
    /// Volume id of os-state.
    pub os_state: u32,
}

/// Where the root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Packages.
    Packages {
        /// What is asked for; dependencies come on top.
        packages: Vec<String>,
        /// Repositories.
        repos: Vec<RepoLine>,
    },
    /// A directory.
    Tree {
        /// Its path.
        path: String,
    },
}

/// A repository, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepoLine {
    /// Id.
    pub id: String,
    /// Location.
    pub location: String,
    /// Key file; none = packages are not verified.
    pub key: Option<String>,
}

impl Plan {
    /// Decides everything for a recipe.
    ///
    /// # Errors
    /// CFG013 when the partitions do not fit the disk.
    pub fn new(recipe: &Recipe, source_date_epoch: u64) -> Result<Plan, BuildError> {
        let id = |what: &str| identifier(&recipe.name, &recipe.version, what);
        let (partitions, disk_size) = partitions(recipe)?;
        Ok(Plan {
            name: recipe.name.clone(),
            version: recipe.version.clone(),
            pretty_name: recipe.pretty_name(),
            arch: recipe.arch,
            bootable: recipe.boot.loader == Loader::Grub,
            source_date_epoch,
            disk_size,
            sector_size: recipe.disk.sector_size,
            disk_guid: id("disk"),
            partitions,
            ids: Ids {
                root: id("fs-root"),
                persist: id("fs-persist"),
                hash_seed: id("hash-seed"),
                boot: id("fs-boot").as_fields().0,
                os_state: id("fs-os-state").as_fields().0,
            },
            source: source(recipe),
            boot_args: recipe.boot.args.clone(),
            files: recipe
                .files
                .iter()
                .map(|f| {
                    let from = match &f.source {
                        FileSource::Path(p) => p.to_string(),
                        FileSource::Text(t) => format!("text, {} bytes", t.len()),
                    };
                    (f.dst.to_string(), from)
                })
                .collect(),
            users: recipe.users.iter().map(|u| u.name.clone()).collect(),
            enable: recipe.units.enable.clone(),
            disable: recipe.units.disable.clone(),
        })
    }

    /// The partition of a role.
    ///
    /// # Errors
    /// Never for a plan made by [`Plan::new`]; a bug otherwise.
    pub fn partition(&self, role: Role) -> Result<&Partition, BuildError> {
        self.partitions.iter().find(|p| p.role == role).ok_or_else(|| {
            BuildError::new(
                Kind::Bug,
                "BUG001",
                format!("the plan has no partition {}", role.name()),
            )
        })
    }
}

/// A GUID from name, version and purpose: the same recipe gives the same image everywhere.
fn identifier(name: &str, version: &str, what: &str) -> Uuid {
    Uuid::new_v5(&NAMESPACE, format!("{version}\0{name}\0{what}").as_bytes())
}

fn source(recipe: &Recipe) -> Source {
    match &recipe.rootfs {
        Rootfs::Tree(path) => Source::Tree {
            path: path.to_string(),
        },
        Rootfs::Packages { packages, repos } => Source::Packages {
            packages: packages.clone(),
            repos: repos
                .iter()
                .map(|r| RepoLine {
                    id: r.id.clone(),
                    location: r.source.to_string(),
                    key: match &r.trust {
                        Trust::Key(k) => Some(k.to_string()),
                        Trust::AllowUnsigned => None,
                    },
                })
                .collect(),
        },
    }
}

fn content(role: Role, bootable: bool) -> &'static str {
    match (role, bootable) {
        (Role::Boot, true) => "FAT32, GRUB",
        (Role::Boot, false) => "FAT32, empty",
        (Role::RootA, _) => "ext4, the image",
        (Role::RootB, _) => "blank",
        (Role::Persist, _) => "ext4, grows on the node",
        (Role::Bios, true) => "GRUB for BIOS",
        (Role::Bios, false) => "blank",
        (Role::OsState, _) => "FAT12, env1 and env2",
    }
}

fn partitions(recipe: &Recipe) -> Result<(Vec<Partition>, u64), BuildError> {
    let disk = &recipe.disk;
    let fixed = MIB + disk.esp_mib * MIB + OS_STATE_SIZE + 2 * disk.slot_bytes();
    let least = fixed + MIN_PERSIST_MIB * MIB + TAIL;
    let size = disk.size.unwrap_or(least);
    if size < least {
        return Err(BuildError::new(
            Kind::Input,
            "CFG013",
            format!(
                "{}: partitions need {} MiB, disk.size is {} MiB: BOOT {}, os-state {}, two slots of {}, PERSIST at \
                 least {MIN_PERSIST_MIB}, partition tables 2; enlarge the disk or make the slots smaller",
                recipe.file,
                least / MIB,
                size / MIB,
                disk.esp_mib,
                OS_STATE_SIZE / MIB,
                disk.slot_mib,
            ),
        ));
    }
    let bootable = recipe.boot.loader == Loader::Grub;
    let mut out = Vec::new();
    let mut at = MIB;
    for role in PHYSICAL_ORDER {
        let (start, length) = match role {
            Role::Bios => (BIOS_START, MIB - BIOS_START),
            Role::Boot => (at, disk.esp_mib * MIB),
            Role::OsState => (at, OS_STATE_SIZE),
            Role::RootA | Role::RootB => (at, disk.slot_bytes()),
            Role::Persist => (at, size - TAIL - at),
        };
        if role != Role::Bios {
            at += length;
        }
        out.push(Partition {
            number: role.number(),
            name: role.name(),
            start,
            size: length,
            type_guid: role.type_guid(recipe.arch),
            guid: identifier(&recipe.name, &recipe.version, role.name()),
            content: content(role, bootable),
            role,
        });
    }
    Ok((out, size))
}
