//! PURE: `/proc/self/mountinfo` and `/proc/swaps` (proc(5)).

use std::fmt;

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevNo {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DevNo {
    /// A device number.
    pub const fn new(major: u32, minor: u32) -> DevNo {
        DevNo { major, minor }
    }

    /// From `st_rdev`.
    pub fn from_rdev(rdev: u64) -> DevNo {
        DevNo {
            major: rustix::fs::major(rdev),
            minor: rustix::fs::minor(rdev),
        }
    }

    /// Reads `8:1`.
    pub fn parse(text: &str) -> Option<DevNo> {
        let (a, b) = text.trim().split_once(':')?;
        Some(DevNo {
            major: a.parse().ok()?,
            minor: b.parse().ok()?,
        })
    }
}

impl fmt::Display for DevNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Device of the file system.
    pub dev: DevNo,
    /// Where, with escapes resolved.
    pub at: String,
    /// File system type.
    pub fs: String,
    /// What was mounted, with escapes resolved.
    pub source: String,
}

/// Parses mountinfo; lines that are not understood are skipped.
pub fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(line).collect()
}

fn line(l: &str) -> Option<Mount> {
    let (left, right) = l.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let dev = DevNo::parse(left.next()?)?;
    let at = unescape(left.nth(1)?);
    let mut right = right.split(' ');
    let fs = right.next()?.to_owned();
    let source = unescape(right.next().unwrap_or_default());
    Some(Mount { dev, at, fs, source })
}

/// The mount that is visible at `/`: the last one there.
pub fn root(mounts: &[Mount]) -> Option<&Mount> {
    mounts.iter().rev().find(|m| m.at == "/")
}

/// Devices or files that are swapped on, from `/proc/swaps`.
pub fn swaps(text: &str) -> Vec<String> {
    text.lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .map(unescape)
        .collect()
}

/// Resolves `\040` and the like.
fn unescape(s: &str) -> String {
    let b = s.as_bytes();
    let mut out = Vec::with_capacity(b.len());
    let mut i = 0;
    while let Some(c) = b.get(i) {
        let oct = (*c == b'\\')
            .then(|| s.get(i + 1..i + 4))
            .flatten()
            .and_then(|o| u8::from_str_radix(o, 8).ok());
        match oct {
            Some(o) => {
                out.push(o);
                i += 4;
            }
            None => {
                out.push(*c);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_as_the_kernel_writes_it() {
        let text = "1 0 0:2 / / rw - rootfs rootfs rw\n\
            22 1 259:2 / / ro,relatime shared:1 master:7 - ext4 /dev/root ro\n\
            30 22 0:25 / /a\\040b rw - tmpfs tm\\134pfs rw\n\
            garbage\n";
        let m = parse(text);
        assert_eq!(m.len(), 3);
        assert_eq!(root(&m).map(|r| r.dev), Some(DevNo::new(259, 2)));
        let Some(last) = m.last() else {
            panic!("three mounts")
        };
        assert_eq!((last.at.as_str(), last.source.as_str()), ("/a b", "tm\\pfs"));
    }

    #[test]
    fn swaps_are_the_first_column() {
        assert_eq!(
            swaps(
                "Filename Type Size Used Priority\n/dev/sda5 partition 1 0 -2\n/swap\\040file file 1 0 -3\n"
            ),
            ["/dev/sda5", "/swap file"]
        );
        assert!(swaps("").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(t in "\\PC*") {
            let _ = parse(&t);
            let _ = swaps(&t);
        }
    }
}
