//! Reads tar archives (POSIX ustar, pax, and GNU's long names) as a stream, without trusting a single number in them.

use std::io::{self, Read};

/// Unit of a tar archive.
pub const BLOCK: u64 = 512;
/// Most bytes of extended headers and long names of one member.
const EXTRA_MAX: u64 = 1 << 20;

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file; its bytes follow.
    File,
    /// A directory.
    Dir,
    /// A symbolic link and where it points, as it is.
    Symlink(Vec<u8>),
    /// Another name of an earlier member.
    Hardlink(Vec<Vec<u8>>),
    /// A character device: major, minor.
    Char(u32, u32),
    /// A block device: major, minor.
    Block(u32, u32),
    /// A named pipe.
    Fifo,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Names from the root on; empty = the root itself. Never `.` or `..`.
    pub path: Vec<Vec<u8>>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub mode: u16,
    /// Numeric owner; names are not looked at.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Unix seconds.
    pub mtime: i64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Extended attributes with their full names, capabilities and labels among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// The path for messages.
    pub fn shown(&self) -> String {
        shown(&self.path)
    }
}

/// A path for messages.
pub fn shown(path: &[Vec<u8>]) -> String {
    let mut out = String::new();
    for p in path {
        out.push('/');
        out.push_str(&String::from_utf8_lossy(p));
    }
    if out.is_empty() { "/".into() } else { out }
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("tar: {}", what.into()))
}

/// An archive.
pub struct Tar<R> {
    from: R,
    /// Bytes of the current member's data and padding that were not read yet.
    data: u64,
    padding: u64,
    ended: bool,
}

/// What extended headers say about the next member.
#[derive(Default)]
struct Extra {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<R: Read> Tar<R> {
    /// Reads from the archive's first byte on.
    pub fn new(from: R) -> Self {
        Tar {
            from,
            data: 0,
            padding: 0,
            ended: false,
        }
    }

    /// The reader, which stands somewhere in the archive.
    pub fn into_inner(self) -> R {
        self.from
    }

    /// The next member; what is left of the current one is passed over. `None` at the end mark.
    ///
    /// # Errors
    /// `InvalidData` with what is wrong, `UnexpectedEof`, and the reader's.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut extra = Extra::default();
        let mut budget = EXTRA_MAX;
        loop {
            self.pass(self.data + self.padding)?;
            (self.data, self.padding) = (0, 0);
            if self.ended {
                return Ok(None);
            }
            let mut h = [0u8; BLOCK as usize];
            self.from.read_exact(&mut h).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(io::ErrorKind::UnexpectedEof, "tar: ends without its end mark")
                }
                _ => e,
            })?;
            if h.iter().all(|b| *b == 0) {
                self.ended = true;
                return Ok(None);
            }
            let h = Header::check(&h)?;
            let kind = h.kind();
            let size = match (kind, extra.size) {
                // The size of an extended header is its own.
                (b'x' | b'g' | b'L' | b'K', _) | (_, None) => h.number(124, 12)?,
                (_, Some(s)) => s,
            };
            let has_data = !matches!(kind, b'1'..=b'6');
            self.data = if has_data { size } else { 0 };
            self.padding = self.data.wrapping_neg() % BLOCK;
            match kind {
                b'x' | b'g' | b'L' | b'K' => {
                    budget = budget
                        .checked_sub(size)
                        .ok_or_else(|| bad("headers of more than 1 MiB before one member"))?;
                    let mut text = vec![0; usize::try_from(size).map_err(|_| bad("header size"))?];
                    self.from.read_exact(&mut text)?;
                    self.data = 0;
                    match kind {
                        b'x' => extra.pax(&text)?,
                        b'L' => extra.path = Some(until_nul(&text).to_vec()),
                        b'K' => extra.link = Some(until_nul(&text).to_vec()),
                        // Global headers: comments such as a commit id.
                        _ => {}
                    }
                }
                _ => return h.entry(extra, size).map(Some),
            }
        }
    }

    fn pass(&mut self, mut n: u64) -> io::Result<()> {
        let mut sink = [0u8; 8192];
        while n > 0 {
            let want = usize::try_from(n).map_or(sink.len(), |n| n.min(sink.len()));
            let part = sink.get_mut(..want).unwrap_or_default();
            self.from.read_exact(part)?;
            n -= want as u64;
        }
        Ok(())
    }
}

impl<R: Read> Read for Tar<R> {
    /// Bytes of the current member.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.data).map_or(buf.len(), |d| d.min(buf.len()));
        if want == 0 {
            return Ok(0);
        }
        let n = self.from.read(buf.get_mut(..want).unwrap_or_default())?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "tar: ends inside a member",
            ));
        }
        self.data -= n as u64;
        Ok(n)
    }
}

fn until_nul(b: &[u8]) -> &[u8] {
    b.split(|b| *b == 0).next().unwrap_or_default()
}

struct Header<'a>(&'a [u8; BLOCK as usize]);

impl<'a> Header<'a> {
    /// A block whose checksum is right.
    fn check(h: &'a [u8; BLOCK as usize]) -> io::Result<Header<'a>> {
        let sum: u64 = h
            .iter()
            .enumerate()
            .map(|(i, b)| {
                if (148..156).contains(&i) {
                    u64::from(b' ')
                } else {
                    u64::from(*b)
                }
            })
            .sum();
        let h = Header(h);
        if h.number(148, 8)? != sum {
            return Err(bad("a header's checksum is wrong"));
        }
        Ok(h)
    }

    fn field(&self, at: usize, len: usize) -> &'a [u8] {
        self.0.get(at..at + len).unwrap_or_default()
    }

    fn kind(&self) -> u8 {
        self.0.get(156).copied().unwrap_or(0)
    }

    /// Octal, or GNU's binary numbers.
    fn number(&self, at: usize, len: usize) -> io::Result<u64> {
        let f = self.field(at, len);
        if f.first().is_some_and(|b| b & 0x80 != 0) {
            return f.iter().enumerate().try_fold(0u64, |n, (i, b)| {
                let b = if i == 0 { b & 0x7f } else { *b };
                n.checked_mul(256)
                    .map(|n| n + u64::from(b))
                    .ok_or_else(|| bad("a number is out of range"))
            });
        }
        let text = f.iter().filter(|b| !matches!(b, b' ' | 0));
        text.copied().try_fold(0u64, |n, b| match b {
            b'0'..=b'7' => n
                .checked_mul(8)
                .map(|n| n + u64::from(b - b'0'))
                .ok_or_else(|| bad("a number is out of range")),
            _ => Err(bad("a number is none")),
        })
    }

    fn path(&self) -> Vec<u8> {
        let name = until_nul(self.field(0, 100));
        let prefix = until_nul(self.field(345, 155));
        // GNU archives use these bytes for something else.
        if self.field(257, 6) == b"ustar\0" && !prefix.is_empty() {
            [prefix, b"/", name].concat()
        } else {
            name.to_vec()
        }
    }

    fn entry(&self, extra: Extra, size: u64) -> io::Result<Entry> {
        let raw = extra.path.unwrap_or_else(|| self.path());
        let path = components(&raw)?;
        let name = shown(&path);
        let link = || {
            let l = extra
                .link
                .clone()
                .unwrap_or_else(|| until_nul(self.field(157, 100)).to_vec());
            if l.is_empty() || l.contains(&0) {
                return Err(bad(format!("{name}: a link to nothing")));
            }
            Ok(l)
        };
        let device = |what: &str| -> io::Result<(u32, u32)> {
            let n =
                |at| u32::try_from(self.number(at, 8)?).map_err(|_| bad(format!("{name}: {what} number")));
            Ok((n(329)?, n(337)?))
        };
        let kind = match self.kind() {
            // Old archives mark a directory by its name alone.
            b'0' | 0 | b'7' if raw.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::Hardlink(components(&link()?)?),
            b'2' => Kind::Symlink(link()?),
            b'3' => device("character device").map(|(a, b)| Kind::Char(a, b))?,
            b'4' => device("block device").map(|(a, b)| Kind::Block(a, b))?,
            b'5' => Kind::Dir,
            b'6' => Kind::Fifo,
            other => {
                return Err(bad(format!(
                    "{name}: a member of kind {:?}, which is not supported (sparse and multi-volume archives are not)",
                    char::from(other)
                )));
            }
        };
        let id = |given: Option<u64>, at| -> io::Result<u32> {
            let n = match given {
                Some(n) => n,
                None => self.number(at, 8)?,
            };
            u32::try_from(n).map_err(|_| bad(format!("{name}: owner {n} is out of range")))
        };
        let mtime = match extra.mtime {
            Some(t) => t,
            None => self.number(136, 12).map_or(0, |t| i64::try_from(t).unwrap_or(0)),
        };
        Ok(Entry {
            size: if kind == Kind::File { size } else { 0 },
            mode: (self.number(100, 8)? & 0o7777) as u16,
            uid: id(extra.uid, 108)?,
            gid: id(extra.gid, 116)?,
            mtime,
            xattrs: extra.xattrs,
            path,
            kind,
        })
    }
}

/// Splits a path; whatever would lead out of the archive is refused.
fn components(raw: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for c in raw.split(|b| *b == b'/') {
        match c {
            b"" | b"." => {}
            b".." => {
                return Err(bad(format!(
                    "{:?} leads out of the archive",
                    String::from_utf8_lossy(raw)
                )));
            }
            c if c.len() > 255 || c.contains(&0) => {
                return Err(bad(format!(
                    "{:?}: not a file name",
                    String::from_utf8_lossy(raw)
                )));
            }
            c => out.push(c.to_vec()),
        }
    }
    Ok(out)
}

impl Extra {
    /// Records `LENGTH KEY=VALUE\n` (POSIX.1-2001, pax).
    fn pax(&mut self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            let malformed = || bad("a malformed extended header");
            let space = text.iter().position(|b| *b == b' ').ok_or_else(malformed)?;
            let len: usize = std::str::from_utf8(text.get(..space).unwrap_or_default())
                .ok()
                .and_then(|t| t.parse().ok())
                .ok_or_else(malformed)?;
            let record = text.get(space + 1..len).ok_or_else(malformed)?;
            text = text.get(len..).unwrap_or_default();
            let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
            let eq = record.iter().position(|b| *b == b'=').ok_or_else(malformed)?;
            let (key, value) = (
                record.get(..eq).unwrap_or_default(),
                record.get(eq + 1..).unwrap_or_default(),
            );
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|t| t.parse::<u64>().ok())
                    .ok_or_else(malformed)
            };
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.uid = Some(number()?),
                b"gid" => self.gid = Some(number()?),
                b"mtime" => {
                    let whole = value.split(|b| *b == b'.').next().unwrap_or_default();
                    self.mtime = Some(
                        std::str::from_utf8(whole)
                            .ok()
                            .and_then(|t| t.parse().ok())
                            .ok_or_else(malformed)?,
                    );
                }
                b"SCHILY.acl.access" | b"SCHILY.acl.default" => {
                    return Err(bad(
                        "a member with an access control list (as tar --acls writes it), which cannot be kept: \
                         remove it (setfacl -b) or make the archive without --acls",
                    ));
                }
                k if k.starts_with(b"GNU.sparse.") => {
                    return Err(bad("a sparse archive, which is not supported"));
                }
                k => {
                    if let Some(name) = k.strip_prefix(b"SCHILY.xattr.") {
                        self.xattrs.push((name.to_vec(), value.to_vec()));
                    } else if let Some(b"selinux") = k.strip_prefix(b"RHT.security.") {
                        // As written by tar --selinux.
                        let mut v = value.to_vec();
                        v.push(0);
                        self.xattrs.push((b"security.selinux".to_vec(), v));
                    }
                }
            }
        }
        Ok(())
    }
}

/// PURE: where the first regular file of an archive begins, if its headers are within `head`: its name, offset and size.
pub fn first_file(head: &[u8]) -> Option<(Entry, u64)> {
    let mut tar = Tar::new(Counted { from: head, read: 0 });
    loop {
        let e = tar.next_entry().ok()??;
        match e.kind {
            Kind::File => return Some((e, tar.from.read)),
            Kind::Dir => {}
            _ => return None,
        }
    }
}

struct Counted<'a> {
    from: &'a [u8],
    read: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buf)?;
        self.read += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
pub(crate) mod tests;
