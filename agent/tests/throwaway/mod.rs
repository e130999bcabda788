//! A root that is thrown away: this machine's own behind an overlay in memory, in private namespaces without a network.
//! Services are a stub that writes down what it is told.

use camino::{Utf8Path, Utf8PathBuf};
use std::process::{Command, Output};

/// Builds the root below `$W` and runs `$W/script.sh` in it.
const OUTER: &str = r#"
ip link set lo up 2>/dev/null || true
mkdir $W/mem; mount -t tmpfs -o size=2g tmpfs $W/mem
mkdir $W/mem/{upper,work,root}
R=$W/mem/root
mount -t overlay overlay -o lowerdir=/,upperdir=$W/mem/upper,workdir=$W/mem/work $R
mount -t proc proc $R/proc
mount --rbind /dev $R/dev
mount -t tmpfs tmpfs $R/run
mount -t tmpfs tmpfs $R/tmp
mkdir -p $R/run/w $R/run/upper
mount --bind $W $R/run/w
mount --bind $W/mem/upper $R/run/upper
touch $R/usr/bin/os-agent; mount --bind "$AGENT" $R/usr/bin/os-agent
rm -f $R/usr/bin/systemctl $R/bin/systemctl
install -m 0755 $W/systemctl $R/usr/local/bin/systemctl
exec chroot $R /bin/bash -euo pipefail /run/w/script.sh
"#;

/// Remembers what is enabled and started, and writes down everything else that it is told.
const SYSTEMCTL: &str = r#"#!/bin/bash
mkdir -p /run/sc
last=${*: -1}
case $1 in
  is-active) [ -e /run/sc/active-$last ]; exit ;;
  is-enabled) [ -e /run/sc/enabled-$last ]; exit ;;
  enable) : >/run/sc/enabled-$last ;;
  start|restart) : >/run/sc/active-$last ;;
esac
echo "$*" >>/run/sc/log
"#;

/// Functions for scripts: `listing` tells everything that differs from the machine's own root, except what the runner writes
/// for itself, logs and caches of its programs.
const PRELUDE: &str = r#"
export HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
listing() {
  cd /run/upper
  find . \( -path ./var/lib/os-agent -o -path ./var/lib/bashible -o -path ./var/log -o -path ./var/cache/ldconfig \
    -o -path ./opt/deckhouse/tmp -o -path ./root \) -prune \
    -o \( -type f -o -type l \) -printf '%p %m %U:%G %l\n' -o -type c -printf '%p removed\n' | sort >/run/w/names
  find . \( -path ./var/lib/os-agent -o -path ./var/lib/bashible -o -path ./var/log -o -path ./var/cache/ldconfig \
    -o -path ./opt/deckhouse/tmp -o -path ./root \) -prune -o -type f -print0 | sort -z | xargs -0 -r sha256sum >/run/w/sums
  cat /run/w/names /run/w/sums
  cd /
}
steps() { os-agent --json steps --boot-id-file /run/boot "$@"; }
boot() { echo "boot-$1" >/run/boot; }
boot 1
"#;

/// A directory that is `/run/w` inside.
pub(crate) struct Throwaway {
    _tmp: tempfile::TempDir,
    pub(crate) dir: Utf8PathBuf,
}

impl Throwaway {
    pub(crate) fn new() -> Throwaway {
        let tmp = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(tmp.path()).unwrap().to_owned();
        let t = Throwaway { _tmp: tmp, dir };
        t.put("systemctl", SYSTEMCTL);
        t
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    /// Runs a bash script (errexit, nounset, pipefail) in a fresh root.
    pub(crate) fn run(&self, script: &str) -> Output {
        self.put("script.sh", &format!("{PRELUDE}{script}"));
        Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--",
                "bash",
                "-euo",
                "pipefail",
                "-c",
                OUTER,
            ])
            .env("W", &self.dir)
            .env("AGENT", env!("CARGO_BIN_EXE_os-agent"))
            .env("OS_AGENT_LOG", "warn")
            .output()
            .unwrap()
    }
}
