//! When a service started, from its control group: no program is run for it, so that status may ask often.

use camino::Utf8Path;

/// Clock ticks per second in /proc, on every Linux that we run on.
const TICKS: u64 = 100;

/// When the main program of a unit (`kubelet` of `kubelet.service`) started, in seconds since boot; `None` = it does not run.
pub fn started_secs(root: &Utf8Path, unit: &str) -> Option<u64> {
    let program = unit.strip_suffix(".service")?;
    let procs = root
        .join("sys/fs/cgroup/system.slice")
        .join(unit)
        .join("cgroup.procs");
    std::fs::read_to_string(procs)
        .ok()?
        .lines()
        .filter_map(|pid| {
            let stat = std::fs::read_to_string(root.join("proc").join(pid.trim()).join("stat")).ok()?;
            parse_stat(&stat)
                .filter(|(name, _)| *name == program)
                .map(|(_, ticks)| ticks / TICKS)
        })
        // A child that is about to become something else may carry the name for a moment.
        .min()
}

/// Name and start time in ticks of `/proc/PID/stat` (proc(5)).
fn parse_stat(stat: &str) -> Option<(&str, u64)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name, rest.split_ascii_whitespace().nth(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn the_main_program_counts_not_what_runs_beside_it() {
        let line = |name: &str, start: u64| {
            format!("7 ({name}) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 9 0 {start} 1 1 1")
        };
        assert_eq!(parse_stat(&line("a ) b", 5)), Some(("a ) b", 5)));
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert_eq!(started_secs(root, "containerd.service"), None);
        let group = root.join("sys/fs/cgroup/system.slice/containerd.service");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), "7\n8\n9\n").unwrap();
        for (pid, text) in [(7, line("containerd-shim", 100)), (8, line("containerd", 4200))] {
            let p = root.join(format!("proc/{pid}"));
            std::fs::create_dir_all(&p).unwrap();
            std::fs::write(p.join("stat"), text).unwrap();
        }
        assert_eq!(started_secs(root, "containerd.service"), Some(42));
        // This process is a program of its own.
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(parse_stat(&own).is_some());
    }
}
