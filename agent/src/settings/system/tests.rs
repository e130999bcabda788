#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::settings::plan::plan;
use crate::settings::request;
use crate::testdisk::Scratch;
use os_proto::layout::Role;
use os_proto::v1;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

/// A root directory, a state directory and a disk.
struct Bench {
    disk: Scratch,
    root: Utf8PathBuf,
    state: Utf8PathBuf,
    checker: Vec<Utf8PathBuf>,
}

const CONFIG: &str = "/etc/containerd/config.toml";

impl Bench {
    fn new() -> Bench {
        Bench::on(512)
    }

    fn on(sector: u32) -> Bench {
        let disk = Scratch::of(sector);
        let (root, state) = (disk.dir().join("root"), disk.dir().join("state"));
        for d in [
            "etc/containerd",
            "etc/sysctl.d",
            "etc/security",
            "var/lib/kubelet",
            "proc/sys/vm",
        ] {
            std::fs::create_dir_all(root.join(d)).unwrap();
        }
        let b = Bench {
            disk,
            root,
            state,
            checker: Vec::new(),
        };
        b.put(CONFIG, "version = 2 # ours\n");
        b.put("/var/lib/kubelet/config.yaml", "maxPods: 110\n");
        b.put("/proc/sys/vm/swappiness", "60\n");
        b.put("/proc/cmdline", "quiet\n");
        b
    }

    fn put(&self, path: &str, text: &str) {
        std::fs::write(self.root.join(&path[1..]), text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(&path[1..])).unwrap()
    }

    /// A program that takes containerd's place.
    fn checker(&mut self, script: &str) {
        let p = self.disk.dir().join("containerd");
        // By another process: a descriptor of ours, inherited for a moment by the child of another test, would keep the
        // program from being started.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let done = std::process::Command::new("/bin/sh")
            .args(["-c", write, "sh", p.as_str(), script])
            .status();
        assert!(done.unwrap().success());
        self.checker = vec![p];
    }

    fn system(&self) -> System {
        System::at(
            &self.root,
            &self.state,
            Ok(self.disk.region(Role::Boot)),
            self.checker.clone(),
        )
    }

    fn run(&self, configs: &[v1::Config]) -> Result<(Plan, Vec<Written>)> {
        self.run_with(&self.system(), configs, &[])
    }

    fn run_with(
        &self,
        s: &System,
        configs: &[v1::Config],
        waiting: &[Written],
    ) -> Result<(Plan, Vec<Written>)> {
        let items = request::items(configs, &Ok(Slot::A))?;
        let p = plan(&items, &s.gather(&items));
        if let Some(e) = p.error() {
            return Err(e);
        }
        let w = s.apply(&p, waiting)?;
        Ok((p, w))
    }
}

fn set(model: &str, path: &str, key: &str, value: Value) -> v1::Config {
    v1::Config {
        model: model.into(),
        configpath: path.into(),
        contents: vec![v1::ConfigContent {
            key: key.into(),
            value_json: value.to_string(),
            operation: String::new(),
        }],
    }
}

fn image(v: &str) -> v1::Config {
    set("container.containerd", "", "sandbox", json!(v))
}

#[test]
fn files_are_replaced_whole_with_owner_and_mode_and_the_bytes_before_are_kept() {
    let b = Bench::new();
    let file = b.root.join("etc/containerd/config.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(&file).unwrap();
    let (_, written) = b.run(&[image("a")]).unwrap();
    assert_eq!(b.text(CONFIG), "version = 2 # ours\nsandbox = \"a\"\n");
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    assert_ne!(after.ino(), before.ino(), "renamed into place, not rewritten");
    assert_eq!(written[0].unit, "containerd.service");
    assert_eq!(
        std::fs::read_to_string(&written[0].previous).unwrap(),
        "version = 2 # ours\n"
    );
    // A second change before the restart keeps what was last in effect.
    let (_, again) = b.run_with(&b.system(), &[image("b")], &written).unwrap();
    assert_eq!(
        std::fs::read_to_string(&again[0].previous).unwrap(),
        "version = 2 # ours\n"
    );
    b.system().forget(&again[0]);
    assert!(!Utf8Path::new(&again[0].previous).exists());
    // Nothing is left beside the file.
    assert_eq!(
        std::fs::read_dir(b.root.join("etc/containerd")).unwrap().count(),
        1
    );
}

#[test]
fn kf_a7_a_write_that_fails_leaves_the_old_bytes_and_undoes_the_rest() {
    let b = Bench::new();
    // The temporary file of the second one cannot be made, as on a full disk.
    std::fs::create_dir(b.root.join("var/lib/kubelet/.config.yaml.tmp")).unwrap();
    let e = b
        .run(&[
            set("kernel.sysctl", "", "vm.swappiness", json!(10)),
            image("a"),
            set(
                "kernel.sysctl.persist",
                "/etc/sysctl.d/9.conf",
                "vm.swappiness",
                json!(10),
            ),
            set("kubernetes.kubelet", "", "maxPods", json!(250)),
        ])
        .unwrap_err();
    assert_eq!(e.code, Code::StateWriteFailed);
    assert!(
        e.message.contains("/var/lib/kubelet/config.yaml was not changed"),
        "{e}"
    );
    assert_eq!(b.text(CONFIG), "version = 2 # ours\n");
    assert_eq!(b.text("/var/lib/kubelet/config.yaml"), "maxPods: 110\n");
    assert_eq!(b.text("/proc/sys/vm/swappiness").trim(), "60");
    assert!(
        !b.root.join("etc/sysctl.d/9.conf").exists(),
        "a file that was new is gone again"
    );
}

#[test]
fn kf_a7_a_kill_between_open_and_write_leaves_the_old_bytes() {
    // What a killed agent leaves: a half-written temporary file. The next call replaces it.
    let b = Bench::new();
    b.put("/etc/containerd/.config.toml.tmp", "versi");
    assert_eq!(b.text(CONFIG), "version = 2 # ours\n");
    b.run(&[image("a")]).unwrap();
    assert!(b.text(CONFIG).ends_with("sandbox = \"a\"\n"));
    assert!(!b.root.join("etc/containerd/.config.toml.tmp").exists());
}

#[test]
fn new_content_is_judged_by_its_own_program_before_it_counts() {
    let mut b = Bench::new();
    b.checker("[ \"$1 $3 $4\" = '--config config dump' ] || exit 9\ncase $2 in */etc/containerd/*) ;; *) exit 8;; esac\n! grep -q bad \"$2\" || { echo 'unknown plugin bad' >&2; exit 1; }");
    b.run(&[image("good")]).unwrap();
    let e = b
        .run(&[image("bad"), set("kernel.sysctl", "", "vm.swappiness", json!(1))])
        .unwrap_err();
    assert_eq!(e.code, Code::SettingRejected);
    assert!(
        e.message.contains("unknown plugin bad") && e.message.contains(CONFIG),
        "{e}"
    );
    assert!(b.text(CONFIG).contains("good"));
    assert_eq!(b.text("/proc/sys/vm/swappiness"), "60\n");
    assert_eq!(
        std::fs::read_dir(b.root.join("etc/containerd")).unwrap().count(),
        1
    );
}

#[test]
fn kf_a12_a_program_that_hangs_is_given_up() {
    let mut b = Bench::new();
    b.checker("sleep 600");
    let mut s = b.system();
    s.check_limit = Duration::from_millis(300);
    let e = b.run_with(&s, &[image("a")], &[]).unwrap_err();
    assert!(
        e.code == Code::SettingRejected && e.message.contains("no answer"),
        "{e}"
    );
    assert_eq!(b.text(CONFIG), "version = 2 # ours\n");
}

#[test]
fn kf_s2_links_do_not_lead_out() {
    let b = Bench::new();
    b.put("/etc/shadow", "secret\n");
    symlink("../shadow", b.root.join("etc/sysctl.d/x.conf")).unwrap();
    symlink("/etc", b.root.join("etc/containerd/conf.d")).unwrap();
    let e = b
        .run(&[set(
            "kernel.sysctl.persist",
            "/etc/sysctl.d/x.conf",
            "a",
            json!(1),
        )])
        .unwrap_err();
    assert!(
        e.code == Code::SettingRejected && e.message.contains("link"),
        "{e}"
    );
    assert!(
        b.run(&[set(
            "container.containerd",
            "/etc/containerd/conf.d/x.toml",
            "a",
            json!(1)
        )])
        .is_err()
    );
    assert_eq!(b.text("/etc/shadow"), "secret\n");
    // A link to another file that the model may change is followed, and stays a link.
    b.put("/etc/sysctl.conf", "a=1\n");
    symlink("../sysctl.conf", b.root.join("etc/sysctl.d/99-sysctl.conf")).unwrap();
    b.run(&[set(
        "kernel.sysctl.persist",
        "/etc/sysctl.d/99-sysctl.conf",
        "a",
        json!(2),
    )])
    .unwrap();
    assert_eq!(b.text("/etc/sysctl.conf"), "a=2\n");
    assert!(b.root.join("etc/sysctl.d/99-sysctl.conf").is_symlink());
    // A directory that is missing is named.
    std::fs::remove_dir_all(b.root.join("var/lib/kubelet")).unwrap();
    let e = b
        .run(&[set("kubernetes.kubelet", "", "a", json!(1))])
        .unwrap_err();
    assert!(e.message.contains("/var/lib/kubelet/config.yaml"), "{e}");
}

#[test]
fn the_kernel_is_asked_and_written() {
    let b = Bench::new();
    let (p, w) = b
        .run(&[set("kernel.sysctl", "", "vm.swappiness", json!(10))])
        .unwrap();
    assert!(p.entries[0].message.contains("was \"60\"") && w.is_empty());
    assert_eq!(b.text("/proc/sys/vm/swappiness").trim(), "10");
    let (p, _) = b
        .run(&[set("kernel.sysctl", "", "vm/swappiness", json!("10"))])
        .unwrap();
    assert_eq!(p.entries[0].outcome, crate::settings::Outcome::Unchanged);
    for key in ["vm", "vm.nosuch", "../cmdline"] {
        assert!(
            b.run(&[set("kernel.sysctl", "", key, json!(1))]).is_err(),
            "{key}"
        );
    }
    // What the file names and the kernel has not yet.
    let (p, w) = b
        .run(&[set(
            "kernel.sysctl.persist",
            "/etc/sysctl.d/1.conf",
            "vm.swappiness",
            json!(20),
        )])
        .unwrap();
    assert!(p.entries[0].pending);
    let seen = |b: &Bench| b.system().seen(&w, "", Some(Slot::A));
    assert!(w[0].waits_for(&seen(&b)).is_some());
    b.put("/proc/sys/vm/swappiness", "20\n");
    assert!(w[0].waits_for(&seen(&b)).is_none());
}

/// `sudo -E cargo test -p os-agent --lib -- --ignored the_kernel_itself`
#[test]
#[ignore = "needs root: writes a kernel setting and puts it back"]
fn the_kernel_itself_judges_values() {
    let b = Bench::new();
    let s = System::at(
        Utf8Path::new("/"),
        &b.state,
        Ok(b.disk.region(Role::Boot)),
        Vec::new(),
    );
    let path = "/proc/sys/kernel/printk_ratelimit";
    let old = std::fs::read_to_string(path).unwrap();
    let other = if old.trim() == "7" { 8 } else { 7 };
    if std::fs::OpenOptions::new().write(true).open(path).is_err() {
        println!("skipped: this machine does not let kernel settings be written");
        return;
    }
    b.run_with(
        &s,
        &[set("kernel.sysctl", "", "kernel.printk_ratelimit", json!(other))],
        &[],
    )
    .unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), other.to_string());
    // The second value is no number: the first one is taken back.
    let e = b
        .run_with(
            &s,
            &[
                set("kernel.sysctl", "", "kernel.printk_ratelimit", json!(old.trim())),
                set(
                    "kernel.sysctl",
                    "",
                    "kernel.printk_ratelimit_burst",
                    json!("many"),
                ),
            ],
            &[],
        )
        .unwrap_err();
    assert!(e.message.contains("printk_ratelimit_burst"), "{e}");
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), other.to_string());
    std::fs::write(path, old).unwrap();
}

#[test]
fn kf_c6_arguments_lie_on_boot_for_both_firmwares_and_both_sector_sizes() {
    for sector in [512, 4096] {
        let b = Bench::on(sector);
        let before = b.disk.bytes();
        let (_, w) = b
            .run(&[set("grub.cmdline.next", "", "hugepages", json!(4))])
            .unwrap();
        assert_eq!((w[0].slot, w[0].previous.as_str()), (Some(Slot::B), ""));
        let region = b.disk.region(Role::Boot);
        let file = boot::read(&region, "grub/user-B.env").unwrap().unwrap();
        assert_eq!(os_proto::kernel_args::user_args(&file), ["hugepages=4"]);
        assert_eq!(boot::read(&region, "grub/user-A.env").unwrap(), None);
        // Only BOOT changed, and a second change touches the file's own bytes alone.
        let outside = |a: &[u8], b: &[u8]| -> usize {
            let boot = region.offset as usize..(region.offset + region.size) as usize;
            (0..a.len())
                .filter(|i| a[*i] != b[*i] && !boot.contains(i))
                .count()
        };
        let first = b.disk.bytes();
        assert_eq!(outside(&before, &first), 0);
        let (_, w) = b
            .run(&[set("grub.cmdline.next", "", "hugepages", json!(8))])
            .unwrap();
        let second = b.disk.bytes();
        let changed: Vec<usize> = (0..first.len()).filter(|i| first[*i] != second[*i]).collect();
        assert_eq!(changed.len(), 1, "4 became 8 and nothing else: {changed:?}");
        assert_eq!(std::fs::read(&w[0].previous).unwrap(), file);
        // The file system is still one that others can read.
        let mut fat = std::io::Cursor::new(second[region.offset as usize..][..region.size as usize].to_vec());
        let fs = fatfs::FileSystem::new(&mut fat, fatfs::FsOptions::new()).unwrap();
        let names: Vec<String> = fs
            .root_dir()
            .open_dir("grub")
            .unwrap()
            .iter()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert!(names.contains(&"user-B.env".to_owned()), "{names:?}");
        assert!(!fs.read_status_flags().unwrap().dirty());
    }
}

#[test]
fn a_damaged_boot_partition_is_a_refusal_with_its_name() {
    let b = Bench::new();
    let region = b.disk.region(Role::Boot);
    std::os::unix::fs::FileExt::write_all_at(&b.disk.open(), &[0; 4096], region.offset).unwrap();
    let e = b.run(&[set("grub.cmdline.next", "", "a", json!(4))]).unwrap_err();
    assert!(
        e.code == Code::SettingRejected && e.message.contains("BOOT"),
        "{e}"
    );
}

#[test]
fn a_disk_that_does_not_run_here_takes_only_arguments() {
    let b = Bench::new();
    let s = System::offline(&b.state, &b.disk.path, Ok(b.disk.region(Role::Boot)));
    b.run_with(&s, &[set("grub.cmdline.current", "", "a", json!(1))], &[])
        .unwrap();
    for c in [
        set("kernel.sysctl", "", "vm.swappiness", json!(1)),
        set("kubernetes.kubelet", "", "a", json!(1)),
        image("a"),
    ] {
        let e = b.run_with(&s, &[c], &[]).unwrap_err();
        assert!(
            e.code == Code::SettingRejected && e.message.contains("--disk"),
            "{e}"
        );
    }
}
