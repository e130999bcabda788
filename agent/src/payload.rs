//! What a payload is, decided by its first bytes, and its unpacked content as a stream. Nothing is written here.
//!
//! A container image's layer is an archive whose one file, `os.tar`, is looked into in turn.

pub mod sniff;
mod stream;
mod tap;

use crate::error::{AgentError, Result};
use crate::ports::{Download, Object};
use crate::rootfs::tar;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use sniff::Kind;
use std::io::{self, Read};
use stream::Stream;

/// Bytes that a decision is made on, where there are so many.
const HEAD: usize = 64 << 10;
/// log2 of the largest window that a zstd frame may ask for: 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;

/// A payload that was recognised as a slot image and fits the slot as far as its first bytes and its length tell.
pub struct Payload {
    reader: Reader,
    /// Unpacked bytes that were looked at and not yet handed out.
    head: Vec<u8>,
    head_at: usize,
    packing: Packing,
    form: Form,
    /// Bytes that remain of a file inside an archive; `None` = not inside one.
    inside: Option<u64>,
    fs_bytes: u64,
    name: String,
}

/// What the unpacked content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A file system.
    Image,
    /// An archive of a root file system.
    Archive,
}

/// The file that a container image holds its system in.
const OS_TAR: &[u8] = b"os.tar";

/// How the image is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    Raw,
    /// gzip, one or more members.
    Gzip,
    /// zstd, one or more frames, skippable ones among them.
    Zstd,
}

enum Reader {
    Raw(Stream),
    Gzip(Box<flate2::bufread::MultiGzDecoder<Stream>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Stream>>),
}

/// What is known once a payload was read to its end.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Bytes of the payload file.
    pub fetched: u64,
    /// SHA-256 of the payload file; `None` for a raw image, whose own hash it is.
    pub digest: Option<Sha256Digest>,
}

/// Looks at a payload's first bytes, inside one level of packing too.
///
/// # Errors
/// `NotAPayload`, `UnsupportedFormat`, `SlotTooSmall`, `PayloadCorrupt`, and the download's.
pub fn open(download: Box<dyn Download>, slot_size: u64) -> Result<Payload> {
    let name = download.describe();
    let total = download.total();
    let mut stream = Stream::new(download);
    let outer = stream.peek(HEAD)?;
    let kind = sniff::sniff(&outer);
    let packing = match kind {
        Kind::Ext4 { .. } | Kind::Tar => Packing::Raw,
        Kind::Gzip => Packing::Gzip,
        Kind::Zstd => Packing::Zstd,
        other => return Err(refused(&name, other, false)),
    };
    let too_large = |n: u64, what: &str| {
        AgentError::new(
            Code::SlotTooSmall,
            format!("{name}: {what} {n} bytes, the slot has {slot_size}; nothing was written"),
        )
    };
    let mut unpacked = None;
    let mut payload = match packing {
        Packing::Raw => {
            if kind == Kind::Tar {
                // Of an archive the file's own hash is wanted, not that of what it becomes.
                stream.tap();
            } else if let Some(t) = total.filter(|t| *t > slot_size) {
                return Err(too_large(t, "the image has"));
            }
            Payload::new(Reader::Raw(stream), packing, name.clone())
        }
        Packing::Gzip => {
            stream.tap();
            let d = flate2::bufread::MultiGzDecoder::new(stream);
            Payload::new(Reader::Gzip(Box::new(d)), packing, name.clone())
        }
        Packing::Zstd => {
            unpacked = zstd_content_size(&outer);
            stream.tap();
            let bad = |e: io::Error| from_io(&name, &e);
            let mut d = zstd::stream::read::Decoder::with_buffer(stream).map_err(bad)?;
            d.window_log_max(ZSTD_WINDOW_LOG).map_err(bad)?;
            Payload::new(Reader::Zstd(Box::new(d)), packing, name.clone())
        }
    };
    let mut head = vec![0; HEAD];
    let n = payload.fill(&mut head)?;
    head.truncate(n);
    let mut found = sniff::sniff(&head);
    if found == Kind::Tar
        && let Some((first, at)) = tar::first_file(&head)
        && first.path == [OS_TAR]
    {
        let at = usize::try_from(at).unwrap_or(HEAD).min(head.len());
        payload.inside = Some(first.size);
        payload.head_at = at;
        let end = head
            .len()
            .min(at.saturating_add(usize::try_from(first.size).unwrap_or(HEAD)));
        found = sniff::sniff(head.get(at..end).unwrap_or_default());
    }
    (payload.form, payload.fs_bytes) = match found {
        Kind::Ext4 { bytes } => (Form::Image, bytes),
        Kind::Tar => (Form::Archive, 0),
        other => return Err(refused(&name, other, true)),
    };
    payload.head = head;
    // After its kind: a whole disk is too large as well, but that is not what is wrong with it.
    if let Some(n) = unpacked.filter(|n| *n > slot_size) {
        return Err(too_large(n, "unpacked, the image has"));
    }
    if payload.fs_bytes > slot_size {
        return Err(too_large(payload.fs_bytes, "its file system has"));
    }
    payload.long_enough()?;
    Ok(payload)
}

/// An image that ends before its file system does.
pub(crate) fn cut_off(name: &str, fs_bytes: u64, image: u64) -> AgentError {
    AgentError::new(
        Code::SizeMismatch,
        format!(
            "{name}: {} bytes missing: its file system has {fs_bytes}, the image only {image}",
            fs_bytes.saturating_sub(image)
        ),
    )
}

/// Content size of the first frame, where its header says it.
fn zstd_content_size(head: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(head).ok().flatten()
}

fn refused(name: &str, kind: Kind, inside: bool) -> AgentError {
    let place = if inside { " after unpacking" } else { "" };
    let (code, what) = match kind {
        Kind::SlipwayUpdate => (
            Code::UnsupportedFormat,
            "a Slipway update file, which needs a newer agent",
        ),
        Kind::Gzip | Kind::Zstd => (Code::UnsupportedFormat, "packed a second time"),
        Kind::Known(what) => (Code::NotAPayload, what),
        Kind::Empty => (Code::NotAPayload, "empty"),
        Kind::Ext4 { .. } | Kind::Tar | Kind::Unknown => (Code::NotAPayload, "of no known kind"),
    };
    AgentError::new(
        code,
        format!(
            "{name}: is {what}{place}; expected a raw ext4 slot image or a tar of a root file system, plain or packed with gzip or zstd"
        ),
    )
}

impl Payload {
    fn new(reader: Reader, packing: Packing, name: String) -> Payload {
        Payload {
            reader,
            head: Vec::new(),
            head_at: 0,
            packing,
            form: Form::Image,
            inside: None,
            fs_bytes: 0,
            name,
        }
    }

    /// What is not packed shows a cut before anything is written: by the length of the file, or of the member that the image is
    /// in. Of what is packed only its end tells.
    fn long_enough(&self) -> Result<()> {
        let total = self.total().filter(|_| self.packing == Packing::Raw);
        if let (Some(member), Some(total)) = (self.inside, total)
            && total < member.saturating_add(self.head_at as u64)
        {
            return Err(AgentError::new(
                Code::SizeMismatch,
                format!(
                    "{}: os.tar in it has {member} bytes, the whole file only {total}: it is cut off; nothing was written",
                    self.name
                ),
            ));
        }
        match self.inside.or(total).filter(|n| *n < self.fs_bytes) {
            Some(image) => {
                let mut e = cut_off(&self.name, self.fs_bytes, image);
                e.message.push_str("; nothing was written");
                Err(e)
            }
            None => Ok(()),
        }
    }

    /// What the unpacked content is.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Whether the file is the image, byte for byte.
    pub fn is_plain(&self) -> bool {
        self.packing == Packing::Raw && self.form == Form::Image && self.inside.is_none()
    }

    /// How the image is packed.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Size of the file system inside, as its superblock says. The image may be longer, never shorter.
    pub fn fs_bytes(&self) -> u64 {
        self.fs_bytes
    }

    /// Size of the payload file, where the source says it.
    pub fn total(&self) -> Option<u64> {
        self.stream().total()
    }

    /// Bytes of the payload file read so far.
    pub fn fetched(&self) -> u64 {
        self.stream().fetched()
    }

    /// How far in the payload file it is: what was fetched and what was passed over.
    pub fn position(&self) -> u64 {
        self.stream().position()
    }

    /// What identifies the payload file at its source.
    pub fn object(&self) -> Option<Object> {
        self.stream().object()
    }

    /// Passes over the next `n` bytes of an image that is not packed. Its hash then misses them: the caller has them.
    ///
    /// # Errors
    /// The download's; `Internal` for a packed image.
    pub fn skip(&mut self, n: u64) -> Result<()> {
        match &mut self.reader {
            Reader::Raw(r) if self.head.is_empty() => r.skip(n),
            _ => Err(AgentError::new(
                Code::Internal,
                "only an image that is not packed can be passed over, and not before its first bytes",
            )),
        }
    }

    /// For messages.
    pub fn describe(&self) -> &str {
        &self.name
    }

    /// Fills `buf` with the next bytes of the image; less only at its end.
    ///
    /// # Errors
    /// `PayloadCorrupt`, `UnsupportedFormat`, and the download's.
    pub fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            let n = self.read_some(rest).map_err(|e| from_io(&self.name, &e))?;
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    fn read_some(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(left) = self.inside else {
            return self.read_all(buf);
        };
        let want = usize::try_from(left).map_or(buf.len(), |l| l.min(buf.len()));
        let n = self.read_all(buf.get_mut(..want).unwrap_or_default())?;
        if n == 0 && want > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inside = Some(left - n as u64);
        Ok(n)
    }

    fn read_all(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.head.get(self.head_at..).filter(|l| !l.is_empty()) {
            let n = left.len().min(buf.len());
            if let (Some(d), Some(s)) = (buf.get_mut(..n), left.get(..n)) {
                d.copy_from_slice(s);
            }
            self.head_at += n;
            if self.head_at == self.head.len() {
                self.head = Vec::new();
                self.head_at = 0;
            }
            return Ok(n);
        }
        match &mut self.reader {
            Reader::Raw(r) => r.read(buf),
            Reader::Gzip(r) => r.read(buf).map_err(gzip_end),
            Reader::Zstd(r) => r.read(buf),
        }
    }

    fn stream(&self) -> &Stream {
        match &self.reader {
            Reader::Raw(r) => r,
            Reader::Gzip(r) => r.get_ref(),
            Reader::Zstd(r) => r.get_ref(),
        }
    }

    /// After the image's end: nothing may follow in the file; yields its hash.
    ///
    /// # Errors
    /// `PayloadCorrupt` when something follows, and the download's.
    pub fn finish(mut self) -> Result<End> {
        if self.inside.is_some() || self.form == Form::Archive {
            // An archive's padding belongs to its checksum.
            self.inside = None;
            io::copy(&mut self, &mut io::sink()).map_err(|e| from_io(&self.name, &e))?;
        }
        let mut stream = match self.reader {
            Reader::Raw(r) => r,
            Reader::Gzip(r) => r.into_inner(),
            Reader::Zstd(r) => r.finish(),
        };
        let mut one = [0u8; 1];
        let extra = stream.read(&mut one).map_err(|e| from_io(&self.name, &e))?;
        if extra != 0 {
            return Err(AgentError::new(
                Code::PayloadCorrupt,
                format!("{}: bytes follow the end of the packed image", self.name),
            ));
        }
        stream.finish()
    }
}

impl Read for Payload {
    /// The next bytes; errors carry an [`AgentError`].
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_some(buf)
            .map_err(|e| io::Error::other(from_io(&self.name, &e)))
    }
}

/// gzip has no end of its own: what follows is read as a further member, so that garbage looks like one that was cut off.
fn gzip_end(e: io::Error) -> io::Error {
    if e.kind() == io::ErrorKind::UnexpectedEof && e.get_ref().is_none_or(|i| !i.is::<AgentError>()) {
        return io::Error::new(
            io::ErrorKind::InvalidData,
            "it ends too early, or bytes that are not gzip follow its end",
        );
    }
    e
}

/// Gives a decoder's error its code; an error of the download keeps its own.
fn from_io(name: &str, e: &io::Error) -> AgentError {
    if let Some(own) = e.get_ref().and_then(|i| i.downcast_ref::<AgentError>()) {
        return own.clone();
    }
    let text = e.to_string();
    if text.contains("too much memory") {
        return AgentError::new(
            Code::UnsupportedFormat,
            format!("{name}: its zstd window is larger than 8 MiB; pack it with at most --long=23"),
        );
    }
    let what = match e.kind() {
        io::ErrorKind::UnexpectedEof => "the packed image ends too early".to_owned(),
        _ => format!("the packed image is damaged ({text})"),
    };
    AgentError::new(Code::PayloadCorrupt, format!("{name}: {what}"))
}

#[cfg(test)]
pub(crate) mod tests;
