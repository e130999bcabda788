//! A control group per attempt, where the kernel and the unit (Delegate=yes) give us one: the only way to end a process
//! tree that cannot be escaped.

use camino::{Utf8Path, Utf8PathBuf};
use std::fs::{File, OpenOptions};
use std::io::Write;

/// Where attempts get their groups; made once per run.
#[derive(Debug, Clone)]
pub struct Parent(Utf8PathBuf);

/// The group of one attempt; removed when dropped.
#[derive(Debug)]
pub struct Group {
    dir: Utf8PathBuf,
}

/// Directory of the second-version hierarchy and this process's path in it. PURE.
pub fn locate(mountinfo: &str, cgroup: &str) -> Option<Utf8PathBuf> {
    let mount = mountinfo.lines().find_map(|l| {
        let (left, right) = l.split_once(" - ")?;
        right
            .starts_with("cgroup2 ")
            .then(|| left.split(' ').nth(4))
            .flatten()
    })?;
    let own = cgroup.lines().find_map(|l| l.strip_prefix("0::"))?;
    Some(Utf8Path::new(mount).join(own.trim_start_matches('/')))
}

impl Parent {
    /// The place for our groups, if this process may make any. Leftovers of a killed runner are ended and removed.
    pub fn find(tag: &str) -> Option<Parent> {
        let own = locate(
            &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
            &std::fs::read_to_string("/proc/self/cgroup").ok()?,
        )?;
        let dir = own.join(format!("steps-{tag}"));
        for old in dir
            .read_dir_utf8()
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().is_dir())
        {
            drop(Group {
                dir: old.path().to_owned(),
            });
        }
        let _ = std::fs::create_dir(&dir);
        // Without a kill file (before Linux 5.14) a group is no better than a process group.
        (dir.join("cgroup.kill").exists()
            && OpenOptions::new()
                .write(true)
                .open(dir.join("cgroup.procs"))
                .is_ok())
        .then_some(Parent(dir))
    }

    /// A group for one attempt.
    pub fn group(&self, name: &str) -> Option<Group> {
        let dir = self.0.join(name);
        std::fs::create_dir(&dir).ok()?;
        Some(Group { dir })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        // Emptied a moment after the kill; what stays is removed by the next run.
        for _ in 0..50 {
            match std::fs::remove_dir(&self.dir) {
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                    super::clock::sleep(
                        std::time::Duration::from_millis(2),
                        &super::clock::Stop::default(),
                    );
                }
                _ => return,
            }
        }
    }
}

impl Group {
    /// The file that a process writes `0` to in order to enter.
    pub fn entry(&self) -> Option<File> {
        OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.procs"))
            .ok()
    }

    /// How many processes are in it.
    pub fn members(&self) -> usize {
        std::fs::read_to_string(self.dir.join("cgroup.procs")).map_or(0, |t| t.lines().count())
    }

    /// Ends everything in it.
    pub fn kill(&self) {
        if let Ok(mut f) = OpenOptions::new().write(true).open(self.dir.join("cgroup.kill")) {
            let _ = f.write_all(b"1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_hierarchy_is_found_in_both_layouts() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let hybrid = "31 25 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw\n";
        assert_eq!(
            locate(unified, "0::/system.slice/x.service\n").unwrap(),
            "/sys/fs/cgroup/system.slice/x.service"
        );
        assert_eq!(
            locate(hybrid, "4:cpu:/\n0::/\n").unwrap(),
            "/sys/fs/cgroup/unified/"
        );
        assert!(locate("", "0::/\n").is_none());
    }
}
