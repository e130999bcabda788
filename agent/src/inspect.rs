//! Looks into a staged file system in user space, never mounting it: is it the wanted version, for this machine, bootable, and
//! can it be updated again?

pub mod kernel;

use crate::error::{AgentError, Result};
use crate::ports::{OsRelease, SlotDevice};
use crate::write::Installed;
use ext4_view::{Ext4, Ext4Error, Ext4Read, FileType};
use os_proto::codes::Code;
use os_proto::layout::{Arch, root};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of an os-release.
const OS_RELEASE_MAX: u64 = 64 << 10;
/// Unit of reading the device in bytes.
const PAGE: usize = 64 << 10;
/// Pages that are kept.
const PAGES: usize = 16;

/// What the initramfs starts.
const INIT: &str = "/sbin/init";

/// What the caller wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Must equal PRETTY_NAME or VERSION_ID.
    pub version: Option<String>,
    /// The node's architecture.
    pub arch: Option<Arch>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// PRETTY_NAME.
    pub pretty_name: String,
    /// VERSION_ID.
    pub version_id: String,
    /// Architecture of the agent inside.
    pub arch: Option<Arch>,
}

/// Inspects an installed image.
///
/// # Errors
/// `WrongVersion`, `WrongArch`, `NotBootable`, `PayloadCorrupt`.
pub fn inspect(installed: &Installed, wanted: &Wanted) -> Result<Inspected> {
    let slot = installed.open_slot();
    device(slot.device(), installed.image_size(), slot.describe(), wanted)
}

/// Inspects the file system of `size` bytes on a device.
///
/// # Errors
/// As [`inspect`].
pub fn device(
    device: &Arc<Mutex<Box<dyn SlotDevice>>>,
    size: u64,
    name: &str,
    wanted: &Wanted,
) -> Result<Inspected> {
    let fs = Ext4::load(Box::new(Cached::new(Arc::clone(device), size))).map_err(|e| damaged(name, &e))?;
    let found = Image { fs, name };
    let release = found.os_release()?;
    if let Some(w) = &wanted.version
        && *w != release.pretty_name
        && *w != release.version_id
    {
        return Err(AgentError::new(
            Code::WrongVersion,
            format!(
                "{name}: image is {:?} (VERSION_ID {:?}), wanted {w:?}",
                release.pretty_name, release.version_id
            ),
        ));
    }
    let size = found.file(root::KERNEL, "kernel")?;
    found.file(root::INITRAMFS, "initramfs")?;
    let arch = found.agent_arch()?;
    if let (Some(w), Some(a)) = (wanted.arch, arch)
        && w != a
    {
        return Err(AgentError::new(
            Code::WrongArch,
            format!("{name}: image is for {}, this node is {}", a.as_str(), w.as_str()),
        ));
    }
    found.init()?;
    // Of machines that this agent does not know it does not know the kernels either.
    if let Some(arch) = arch {
        found.kernel(size, arch)?;
    }
    Ok(Inspected {
        pretty_name: release.pretty_name,
        version_id: release.version_id,
        arch,
    })
}

struct Image<'a> {
    fs: Ext4,
    name: &'a str,
}

impl Image<'_> {
    fn not_bootable(&self, what: &str, path: &str, why: impl std::fmt::Display) -> AgentError {
        AgentError::new(
            Code::NotBootable,
            format!(
                "{}: {what} {path} {why}; the slot could not boot or be updated again",
                self.name
            ),
        )
    }

    /// A file that must exist and hold something; its size.
    fn file(&self, path: &str, what: &str) -> Result<u64> {
        match self.fs.metadata(path) {
            Ok(m) if m.is_dir() => Err(self.not_bootable(what, path, "is a directory")),
            Ok(m) if m.file_type() != FileType::Regular => {
                Err(self.not_bootable(what, path, "is not a regular file"))
            }
            Ok(m) if m.len() == 0 => Err(self.not_bootable(what, path, "is empty")),
            Ok(m) => Ok(m.len()),
            Err(Ext4Error::NotFound) => Err(self.not_bootable(what, path, "is missing")),
            Err(Ext4Error::Io(e)) => Err(damaged(self.name, &Ext4Error::Io(e))),
            Err(e) => Err(self.not_bootable(what, path, format!("cannot be read ({e})"))),
        }
    }

    /// A program that must not lack the right to be run. Only root runs it, for whom any of the three bits is enough.
    fn executable(&self, path: &str, what: &str) -> Result<()> {
        let m = self.fs.metadata(path).map_err(|e| damaged(self.name, &e))?;
        if m.mode() & 0o111 != 0 {
            return Ok(());
        }
        let why = format!(
            "is not executable (mode {:04o}; expected 0755)",
            m.mode() & 0o7777
        );
        Err(self.not_bootable(what, path, why))
    }

    /// The first bytes of a file, at most `most`.
    fn head(&self, path: &str, most: usize) -> Result<Vec<u8>> {
        let mut head = vec![0u8; most];
        let mut file = self.fs.open(path).map_err(|e| damaged(self.name, &e))?;
        let mut done = 0;
        while let Some(rest) = head.get_mut(done..).filter(|r| !r.is_empty()) {
            match file.read_bytes(rest).map_err(|e| damaged(self.name, &e))? {
                0 => break,
                n => done += n,
            }
        }
        head.truncate(done);
        Ok(head)
    }

    /// The kernel of `size` bytes must be one, whole as far as its header tells, and for the machine that the agent is for.
    fn kernel(&self, size: u64, agent: Arch) -> Result<()> {
        let head = self.head(root::KERNEL, kernel::HEAD)?;
        let arch =
            kernel::judge(&head, size).map_err(|why| self.not_bootable("kernel", root::KERNEL, why))?;
        if arch == agent {
            return Ok(());
        }
        let why = format!(
            "is for {}, the agent beside it for {}",
            arch.as_str(),
            agent.as_str()
        );
        Err(self.not_bootable("kernel", root::KERNEL, why))
    }

    /// An init that is there must be executable. One that is missing is no refusal: the initramfs and the kernel's command line
    /// choose what is started, and a slot where nothing starts is ended by the watchdog.
    fn init(&self) -> Result<()> {
        match self.fs.metadata(INIT) {
            Ok(m) if m.file_type() == FileType::Regular => self.executable(INIT, "init"),
            Err(Ext4Error::Io(e)) => Err(damaged(self.name, &Ext4Error::Io(e))),
            _ => Ok(()),
        }
    }

    fn os_release(&self) -> Result<OsRelease> {
        let mut last = None;
        for path in [root::OS_RELEASE, "/etc/os-release"] {
            match self.file(path, "identity") {
                Ok(n) if n > OS_RELEASE_MAX => {
                    return Err(AgentError::new(
                        Code::NotBootable,
                        format!("{}: {path} has {n} bytes, which is no os-release", self.name),
                    ));
                }
                Ok(_) => {
                    let bytes = self.fs.read(path).map_err(|e| damaged(self.name, &e))?;
                    return Ok(parse_os_release(&String::from_utf8_lossy(&bytes)));
                }
                Err(e) => last = last.or(Some(e)),
            }
        }
        Err(last.unwrap_or_else(|| AgentError::new(Code::NotBootable, "no os-release")))
    }

    /// Architecture of the agent inside; `None` for one that this agent does not know.
    fn agent_arch(&self) -> Result<Option<Arch>> {
        self.file(root::AGENT, "agent")?;
        let head = self.head(root::AGENT, 64)?;
        if head.len() < 64 || !head.starts_with(b"\x7fELF") {
            return Err(AgentError::new(
                Code::NotBootable,
                format!(
                    "{}: agent {} is not a program (no whole ELF header)",
                    self.name,
                    root::AGENT
                ),
            ));
        }
        self.executable(root::AGENT, "agent")?;
        Ok(elf_arch(&head))
    }
}

/// e_machine of an ELF header (System V ABI): 62 = x86-64, 183 = 64-bit Arm.
fn elf_arch(head: &[u8]) -> Option<Arch> {
    let machine = head.get(18..20)?;
    let little = head.get(5)? == &1;
    let m = match (machine, little) {
        ([a, b], true) => u16::from_le_bytes([*a, *b]),
        ([a, b], false) => u16::from_be_bytes([*a, *b]),
        _ => return None,
    };
    match m {
        62 => Some(Arch::X86_64),
        183 => Some(Arch::Aarch64),
        _ => None,
    }
}

/// PURE: PRETTY_NAME and VERSION_ID of an os-release (os-release(5)); a missing key is empty.
pub fn parse_os_release(text: &str) -> OsRelease {
    let get = |key: &str| {
        text.lines()
            .filter_map(|l| l.trim().strip_prefix(key)?.strip_prefix('='))
            .next_back()
            .map(unquote)
            .unwrap_or_default()
    };
    OsRelease {
        pretty_name: get("PRETTY_NAME"),
        version_id: get("VERSION_ID"),
    }
}

/// Shell quoting as far as os-release(5) allows it.
fn unquote(v: &str) -> String {
    let v = v.trim();
    if let Some(inner) = v.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
        return inner.to_owned();
    }
    let inner = v.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(v);
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => chars.next().unwrap_or('\\'),
            c => c,
        });
    }
    out
}

pub(crate) fn damaged(name: &str, e: &Ext4Error) -> AgentError {
    if let Ext4Error::Io(inner) = e
        && let Some(own) = inner.downcast_ref::<AgentError>()
    {
        return own.clone();
    }
    AgentError::new(
        Code::PayloadCorrupt,
        format!("{name}: the staged file system cannot be read: {e}"),
    )
}

/// Reads a device page by page and keeps the last few, so that many small reads cost few large ones.
pub(crate) struct Cached {
    device: Arc<Mutex<Box<dyn SlotDevice>>>,
    size: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Cached {
    pub(crate) fn new(device: Arc<Mutex<Box<dyn SlotDevice>>>, size: u64) -> Self {
        Cached {
            device,
            size,
            pages: Vec::new(),
        }
    }

    /// The page at `base`, most recently used last.
    fn page(&mut self, base: u64) -> Result<&[u8]> {
        if let Some(i) = self.pages.iter().position(|(b, _)| *b == base) {
            let hit = self.pages.remove(i);
            self.pages.push(hit);
        } else {
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            let len = (device.size() - base.min(device.size())).min(PAGE as u64) as usize;
            let mut page = if self.pages.len() >= PAGES {
                self.pages.remove(0).1
            } else {
                Vec::new()
            };
            page.resize(len, 0);
            device.read_at(base, &mut page)?;
            drop(device);
            self.pages.push((base, page));
        }
        Ok(self.pages.last().map(|(_, p)| p.as_slice()).unwrap_or_default())
    }
}

impl Ext4Read for Cached {
    fn read(
        &mut self,
        start_byte: u64,
        dst: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        let outside = || {
            AgentError::new(
                Code::PayloadCorrupt,
                "the staged file system points outside of itself",
            )
        };
        let end = start_byte.checked_add(dst.len() as u64).ok_or_else(outside)?;
        if end > self.size {
            return Err(outside().into());
        }
        let mut done = 0usize;
        while done < dst.len() {
            let pos = start_byte + done as u64;
            let base = pos / PAGE as u64 * PAGE as u64;
            let page = self.page(base)?;
            let skip = (pos - base) as usize;
            let n = page.len().saturating_sub(skip).min(dst.len() - done);
            match (dst.get_mut(done..done + n), page.get(skip..skip + n)) {
                (Some(d), Some(s)) if n > 0 => d.copy_from_slice(s),
                _ => return Err(outside().into()),
            }
            done += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
