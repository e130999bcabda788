//! The recipe: what an image is made of. TOML, strict; all keys optional but `version` and `[rootfs]`.
//!
//! [`Recipe::parse`] is pure and reports every error of the text at once, each with its line and column.
//! [`Recipe::load`] reads the file, parses it and checks that the files which it names exist.
//! Paths in a recipe are relative to the directory that it lies in; in [`Recipe`] they are already joined with it.

mod load;
mod parse;
mod parse_content;
mod parse_rootfs;
mod parse_users;
mod reader;
#[cfg(test)]
mod tests;

use camino::{Utf8Path, Utf8PathBuf};
use os_proto::layout::{Arch, MIB};

/// Default size of a slot in MiB.
pub const DEFAULT_SLOT_MIB: u64 = 2560;
/// Default size of the EFI system partition in MiB.
pub const DEFAULT_ESP_MIB: u64 = 512;
/// Smallest EFI system partition in MiB.
pub const MIN_ESP_MIB: u64 = 64;
/// Smallest PERSIST in MiB; also its size when `[disk] size` is not given (it grows on the node).
pub const MIN_PERSIST_MIB: u64 = 256;

/// A whole recipe, defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The recipe file as the user named it (for messages).
    pub file: Utf8PathBuf,
    /// `name`, default `Slipway`.
    pub name: String,
    /// `version`, becomes VERSION_ID.
    pub version: String,
    /// `arch`, default `x86_64`.
    pub arch: Arch,
    /// `[rootfs]`.
    pub rootfs: Rootfs,
    /// `[agent] path`: the agent binary to install; none = the packages or the tree bring it.
    pub agent: Option<Utf8PathBuf>,
    /// `[disk]`.
    pub disk: Disk,
    /// `[boot]`.
    pub boot: Boot,
    /// `[[files]]`, in order.
    pub files: Vec<FileEntry>,
    /// `[[users]]`, in order.
    pub users: Vec<User>,
    /// `[units]`.
    pub units: Units,
    /// `[trial] deadline_secs`; none = the agent's default (900).
    pub trial_deadline_secs: Option<u32>,
    /// `[os] image_url`: where nodes will fetch `update.img`, for os.yaml.
    pub image_url: Option<String>,
    /// Files that the recipe names, with the place that names them.
    pub paths: Vec<PathRef>,
    /// Things to tell the user that are not errors.
    pub warnings: Vec<Warning>,
}

/// Where the root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rootfs {
    /// `from = "packages"`.
    Packages {
        /// What to install, as dnf takes it: name, name-version, `@group`.
        packages: Vec<String>,
        /// Where from; at least one.
        repos: Vec<Repo>,
    },
    /// `from = "tree"`: this directory as it is.
    Tree(Utf8PathBuf),
}

/// A package repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    /// `id`.
    pub id: String,
    /// `url` or `file`.
    pub source: RepoSource,
    /// `key` or `allow_unsigned = true`.
    pub trust: Trust,
}

/// Location of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepoSource {
    /// `url`: http, https or file (a plain directory in the recipe has become an absolute `file://` URL).
    Url(String),
    /// `file`: a `.repo` file whose enabled sections are used for their locations only.
    RepoFile(Utf8PathBuf),
}

/// Why packages of a repository are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// `key`: signatures are checked against this public key file.
    Key(Utf8PathBuf),
    /// `allow_unsigned = true`: not checked; warned about and recorded.
    AllowUnsigned,
}

/// `[disk]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Size of the whole disk in bytes; none = as small as the partitions allow.
    pub size: Option<u64>,
    /// Size of each slot in MiB.
    pub slot_mib: u64,
    /// Size of the EFI system partition in MiB.
    pub esp_mib: u64,
    /// Logical sector size in bytes; 512.
    pub sector_size: u32,
}

impl Disk {
    /// Size of a slot in bytes.
    pub const fn slot_bytes(&self) -> u64 {
        self.slot_mib * MIB
    }
}

/// `[boot]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// `loader`.
    pub loader: Loader,
    /// `args`: kernel arguments after the image's own.
    pub args: Vec<String>,
    /// `menu`: whether the boot menu is shown for a moment.
    pub menu: bool,
}

/// Boot loader of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// GRUB from the image's own packages, UEFI and BIOS.
    Grub,
    /// None: no loader, no initramfs; the disk is still laid out in full.
    None,
}

/// `[[files]]`: something to put into the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// `src` or `text`.
    pub source: FileSource,
    /// Absolute path in the image.
    pub dst: Utf8PathBuf,
    /// Permission bits; none = 0644, or 0755 when the source is executable or a directory.
    pub mode: Option<u32>,
    /// `user`, `user:group` or numbers, as the image's passwd knows them; default `root:root`.
    pub owner: String,
}

/// Content of a file entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSource {
    /// A file or directory beside the recipe.
    Path(Utf8PathBuf),
    /// Literal text.
    Text(String),
}

/// `[[users]]`.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Login name; `root` changes the existing root.
    pub name: String,
    /// Numeric id; none = the next free one from 1000 on.
    pub uid: Option<u32>,
    /// Supplementary groups.
    pub groups: Vec<String>,
    /// Login shell, default `/bin/bash`; for root none = unchanged.
    pub shell: Option<String>,
    /// Home, default `/home/NAME`; for root none = unchanged.
    pub home: Option<String>,
    /// crypt(3) hash; none = no password login.
    pub password_hash: Option<String>,
    /// authorized_keys lines.
    pub ssh_keys: Vec<String>,
}

impl std::fmt::Debug for User {
    /// Leaves the hash out, so that it cannot reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("uid", &self.uid)
            .field("groups", &self.groups)
            .field("has_password", &self.password_hash.is_some())
            .field("ssh_keys", &self.ssh_keys.len())
            .finish_non_exhaustive()
    }
}

/// `[units]`: systemd units by full name (`sshd` has become `sshd.service`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Units {
    /// To enable.
    pub enable: Vec<String>,
    /// To disable.
    pub disable: Vec<String>,
}

/// A file that the recipe names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRef {
    /// Joined path.
    pub path: Utf8PathBuf,
    /// `FILE:LINE:COLUMN` of the value.
    pub at: String,
    /// Which key, e.g. `files[0].src`.
    pub key: String,
    /// What must be there.
    pub want: Want,
}

/// What must be at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Either.
    Any,
    /// A non-empty regular file with a public key.
    Key,
    /// A `.repo` file.
    RepoFile,
}

/// A remark with a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Code, e.g. `SEC001`.
    pub code: &'static str,
    /// Text.
    pub message: String,
}

/// Whether a file looks like what `gpg --armor --export` writes.
pub(crate) fn is_public_key(bytes: &[u8]) -> bool {
    let has = |mark: &str| bytes.windows(mark.len()).any(|w| w == mark.as_bytes());
    has("-----BEGIN PGP PUBLIC KEY BLOCK-----") && has("-----END PGP PUBLIC KEY BLOCK-----")
}

impl Recipe {
    /// PRETTY_NAME of the image: `<name> <version>`.
    pub fn pretty_name(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// ID for os-release: the name in lower case, everything but `[a-z0-9._-]` a dash.
    pub fn os_id(&self) -> String {
        self.name
            .to_lowercase()
            .chars()
            .map(|c| {
                if c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .collect()
    }

    /// The directory that relative paths start from.
    pub fn dir(&self) -> &Utf8Path {
        match self.file.parent() {
            Some(p) if !p.as_str().is_empty() => p,
            _ => Utf8Path::new("."),
        }
    }
}

impl std::fmt::Display for RepoSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RepoSource::Url(u) => f.write_str(u),
            RepoSource::RepoFile(p) => f.write_str(p.as_str()),
        }
    }
}
