//! Who uses a block device: named in refusals, so that a person knows what to unmount.

use crate::sys::mount::{self, DevNo};
use camino::{Utf8Path, Utf8PathBuf};
use std::os::unix::fs::MetadataExt;

/// A use of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// It is the root file system.
    Root,
    /// Anything else, in words.
    Other(String),
}

/// Finds a holder of `dev`: a mount, swap, a stacked device, or a loop device on `node`.
pub fn of(dev: DevNo, node: &Utf8Path) -> Option<Holder> {
    let text = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let swaps = mount::swaps(&text("/proc/swaps"))
        .into_iter()
        .filter_map(|s| {
            let rdev = std::fs::metadata(&s).ok()?.rdev();
            (rdev != 0).then(|| DevNo::from_rdev(rdev))
        })
        .collect::<Vec<_>>();
    let stacked = names(&Utf8PathBuf::from(format!("/sys/dev/block/{dev}/holders")));
    decide(dev, &text("/proc/self/mountinfo"), &swaps, &stacked)
        .or_else(|| loop_on(node).map(|l| Holder::Other(format!("backs {l}"))))
}

/// The decision, from facts.
fn decide(dev: DevNo, mountinfo: &str, swaps: &[DevNo], stacked: &[String]) -> Option<Holder> {
    let mounts = mount::parse(mountinfo);
    if mount::root(&mounts).is_some_and(|m| m.dev == dev) {
        return Some(Holder::Root);
    }
    if let Some(m) = mounts.iter().find(|m| m.dev == dev) {
        return Some(Holder::Other(format!("mounted at {}", m.at)));
    }
    if swaps.contains(&dev) {
        return Some(Holder::Other("used as swap".into()));
    }
    (!stacked.is_empty()).then(|| Holder::Other(format!("used by {}", stacked.join(", "))))
}

fn loop_on(node: &Utf8Path) -> Option<String> {
    names(Utf8Path::new("/sys/block"))
        .into_iter()
        .filter(|n| n.starts_with("loop"))
        .find(|n| {
            std::fs::read_to_string(format!("/sys/block/{n}/loop/backing_file"))
                .is_ok_and(|b| Utf8Path::new(b.trim_end()) == node)
        })
}

fn names(dir: &Utf8Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .map(|d| d.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_holder_is_named() {
        let dev = DevNo::new(8, 3);
        let at = |path: &str| format!("22 1 8:3 / {path} rw - ext4 /dev/x rw\n");
        let other = |s: &str| Some(Holder::Other(s.into()));
        assert_eq!(decide(dev, "", &[], &[]), None);
        assert_eq!(decide(dev, &at("/"), &[], &[]), Some(Holder::Root));
        assert_eq!(decide(dev, &at("/mnt/b"), &[], &[]), other("mounted at /mnt/b"));
        assert_eq!(decide(dev, "", &[dev], &[]), other("used as swap"));
        assert_eq!(
            decide(dev, "", &[], &["dm-0".into(), "md1".into()]),
            other("used by dm-0, md1")
        );
        assert_eq!(decide(DevNo::new(8, 4), &at("/"), &[dev], &[]), None);
    }
}
