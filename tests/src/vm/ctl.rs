//! Commands into the guest: one base64 line each over virtio-serial, answered by `RESULT <status> <base64 output>`.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connection to the test driver of one boot.
#[derive(Debug)]
pub struct Channel {
    sock: UnixStream,
    buffer: Vec<u8>,
}

impl Channel {
    /// Over QEMU's socket.
    pub fn new(sock: UnixStream) -> Channel {
        Channel {
            sock,
            buffer: Vec::new(),
        }
    }

    fn line(&mut self, end: Instant) -> Result<String> {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer in time");
            }
            self.sock.set_read_timeout(Some(left))?;
            let mut chunk = [0u8; 65536];
            match self.sock.read(&mut chunk) {
                Ok(0) => bail!("the command channel was closed"),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    bail!("no answer in time")
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("command channel"),
            }
        }
    }

    /// Runs a script by the guest's shell.
    ///
    /// # Errors
    /// When no answer comes within `limit` or it is not one.
    pub fn exec(&mut self, script: &str, limit: Duration) -> Result<(i32, String)> {
        let end = Instant::now() + limit;
        self.sock
            .write_all(format!("{}\n", encode(script.as_bytes())).as_bytes())?;
        loop {
            let line = self.line(end)?;
            // The driver greets when it starts; such lines are not answers.
            let Some(rest) = line.strip_prefix("RESULT ") else {
                continue;
            };
            let (rc, out) = rest.split_once(' ').unwrap_or((rest, ""));
            let rc = rc.parse().with_context(|| format!("status in {line:?}"))?;
            let out = decode(out.trim()).with_context(|| format!("output in {line:?}"))?;
            return Ok((rc, String::from_utf8_lossy(&out).into_owned()));
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648, section 4).
pub fn encode(data: &[u8]) -> String {
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for group in data.chunks(3) {
        let n = group.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for i in 0..4 {
            if i <= group.len() {
                out.push(ALPHABET[(n >> (18 - 6 * i) & 63) as usize] as char);
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// The inverse of [`encode`].
///
/// # Errors
/// On a character outside the alphabet.
pub fn decode(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut n, mut bits) = (0u32, 0);
    for c in text.bytes().take_while(|c| *c != b'=') {
        let v = ALPHABET
            .iter()
            .position(|a| *a == c)
            .with_context(|| format!("{:?} is not base64", c as char))?;
        n = n << 6 | v as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((n >> bits) as u8);
            n &= (1 << bits) - 1;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_standard() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).unwrap(), plain.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert!(decode("Zg!=").is_err());
    }

    #[test]
    fn greetings_are_not_answers() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let guest = std::thread::spawn(move || {
            let mut got = [0u8; 64];
            let n = there.read(&mut got).unwrap();
            let script = decode(String::from_utf8_lossy(&got[..n]).trim()).unwrap();
            there
                .write_all(format!("HELLO version=1\nRESULT 3 {}\n", encode(&script)).as_bytes())
                .unwrap();
            there
        });
        let mut c = Channel::new(here);
        assert_eq!(
            c.exec("exit 3", Duration::from_secs(5)).unwrap(),
            (3, "exit 3".into())
        );
        let _keep = guest.join().unwrap();
        assert!(c.exec("silence", Duration::from_millis(50)).is_err());
    }
}
