//! The images that boot tests and the demo share: versions 1 and 2 from the fixture distribution, and broken versions 3.

use crate::disk::noise;
use crate::ext4::Ext4;
use crate::fixture;
use crate::proc;
use crate::product::{self, Product, cache_dir, workspace};
use anyhow::{Context, Result};
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

/// Version of every broken image.
pub const BROKEN_VERSION: &str = "3";

/// Where the built images lie: `1/`, `2/` as imgbuild leaves them, `3-*.img`.
#[derive(Debug, Clone)]
pub struct Images {
    /// Cache entry.
    pub dir: Utf8PathBuf,
    /// What built them and runs in them.
    pub product: Product,
    /// Built by this call, not found in the cache.
    pub fresh: bool,
}

/// How a version 3 is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// An initramfs of noise: the kernel panics.
    Panic,
    /// No init: the initramfs hangs until the watchdog ends it.
    NoInit,
    /// A health hook that says no, at once.
    Hook,
    /// The agent ends as soon as it starts; the trial's deadline is 60 s.
    AgentExits,
    /// No kernel: staging refuses it.
    NoKernel,
    /// No agent: staging refuses it.
    NoAgent,
    /// Its first boot ruins a file below /etc, and a health hook says no.
    RuinsEtc,
    /// The kernel panics once the initramfs is done.
    PanicsLate,
    /// It resets the machine once the initramfs is done, without a word.
    Resets,
    /// A health hook that never says yes.
    NeverReady,
}

impl Broken {
    /// For file names and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Broken::Panic => "panic",
            Broken::NoInit => "no-init",
            Broken::Hook => "hook",
            Broken::AgentExits => "agent-exits",
            Broken::NoKernel => "no-kernel",
            Broken::NoAgent => "no-agent",
            Broken::RuinsEtc => "ruins-etc",
            Broken::PanicsLate => "panics-late",
            Broken::Resets => "resets",
            Broken::NeverReady => "never-ready",
        }
    }
}

/// The recipe of a version: the demo's with this version and that of test-package.
pub fn recipe(version: &str) -> Result<String> {
    let text = fs_err::read_to_string(workspace().join("tests/recipes/demo.toml"))?;
    Ok(text
        .replace("version = \"1\"", &format!("version = \"{version}\""))
        .replace("test-package-1.0", &format!("test-package-{version}.0")))
}

/// A directory with a recipe and what it names beside it.
///
/// # Errors
/// When files cannot be made.
pub fn recipe_dir(dir: &Utf8Path, recipe: &str, product: &Product) -> Result<Utf8PathBuf> {
    use std::os::unix::fs::symlink;
    let fixture = fixture::ensure()?;
    fs_err::create_dir_all(dir)?;
    for (name, to) in [
        ("repo", fixture.dir.join("repo")),
        ("keys", fixture.dir.join("keys")),
        ("os-agent", product.agent.clone()),
    ] {
        if !dir.join(name).exists() {
            symlink(&to, dir.join(name)).with_context(|| format!("{dir}/{name}"))?;
        }
    }
    let file = dir.join("recipe.toml");
    fs_err::write(&file, recipe)?;
    Ok(file)
}

/// Both images, built first if the cache has none for these programs, this fixture and this recipe (as root).
///
/// # Errors
/// When a build fails.
pub fn images() -> Result<Images> {
    let product = product::product()?;
    let fixture = fixture::ensure()?;
    let mut key = Sha256::new();
    for part in [
        product.agent.as_str(),
        fixture.dir.as_str(),
        &recipe("1")?,
        &recipe("2")?,
    ] {
        key.update(part);
        key.update([0]);
    }
    let key = hex::encode(key.finalize());
    let dir = cache_dir()?.join(format!("image-{}", &key[..16]));
    fs_err::create_dir_all(&dir)?;
    let lock = fs_err::File::create(dir.join(".lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    let mut fresh = false;
    for version in ["1", "2"] {
        let out = dir.join(version);
        if out.join("SHA256SUMS").exists() {
            continue;
        }
        fresh = true;
        eprintln!("building the image of version {version} (imgbuild)");
        let file = recipe_dir(
            &dir.join(format!("recipe-{version}")),
            &recipe(version)?,
            &product,
        )?;
        let start = std::time::Instant::now();
        let args = ["build", file.as_str(), "--out", out.as_str()];
        proc::run(proc::command(&product.imgbuild).args(args))?;
        eprintln!("  {:.0} s: {out}", start.elapsed().as_secs_f64());
    }
    Ok(Images { dir, product, fresh })
}

/// A unit that runs on a trial, before the system is up.
fn early_unit(fs: &Ext4, script: &str) -> Result<()> {
    let dir = "/usr/lib/systemd/system";
    let unit = format!(
        "[Unit]\nDefaultDependencies=no\nConditionKernelCommandLine=os.trial\nAfter=systemd-remount-fs.service\n\
         Before=sysinit.target\n[Service]\nType=oneshot\nExecStart=/bin/sh -c \"{script}\"\n"
    );
    fs.write(&format!("{dir}/broken.service"), unit.as_bytes(), 0o644)?;
    fs.mkdir(&format!("{dir}/sysinit.target.d"))?;
    let wants = b"[Unit]\nWants=broken.service\n";
    fs.write(&format!("{dir}/sysinit.target.d/50-broken.conf"), wants, 0o644)
}

/// A health hook of the image.
fn hook(fs: &Ext4, name: &str, script: &str) -> Result<()> {
    let dir = "/usr/lib/os-agent/health.d";
    fs.mkdir(dir)?;
    fs.write(
        &format!("{dir}/{name}"),
        format!("#!/bin/sh\n{script}\n").as_bytes(),
        0o755,
    )
}

impl Images {
    /// A whole disk of a version.
    pub fn disk(&self, version: &str) -> Utf8PathBuf {
        self.dir.join(version).join("system.img")
    }

    /// What nodes stage.
    pub fn update(&self, version: &str) -> Utf8PathBuf {
        self.dir.join(version).join("update.img")
    }

    /// A broken version 3, made once from version 2's update image by editing the file system in place, without a mount.
    ///
    /// # Errors
    /// When an edit fails.
    pub fn broken(&self, how: Broken) -> Result<Utf8PathBuf> {
        let out = self.dir.join(format!("3-{}.img", how.name()));
        if out.exists() {
            return Ok(out);
        }
        let tmp = self.dir.join(format!("3-{}.tmp", how.name()));
        let base = self.update("2");
        proc::sh(&["cp", "--sparse=always", base.as_str(), tmp.as_str()])?;
        let fs = Ext4 { image: tmp.clone() };
        let release = fs.read("/usr/lib/os-release")?;
        let release = String::from_utf8_lossy(&release)
            .replace("Slipway 2", "Slipway 3")
            .replace("VERSION_ID=\"2\"", "VERSION_ID=\"3\"")
            .replace("VERSION_ID=2", "VERSION_ID=3")
            .replace("VERSION=\"2\"", "VERSION=\"3\"");
        fs.write("/usr/lib/os-release", release.as_bytes(), 0o644)?;
        match how {
            Broken::Panic => fs.write("/boot/initramfs.img", &noise(1_000_000), 0o644)?,
            Broken::NoInit => fs.remove("/usr/lib/systemd/systemd")?,
            Broken::Hook => {
                let hook = "#!/bin/sh\necho 'the broken part of version 3'\nexit 1\n";
                let dir = "/usr/lib/os-agent/health.d";
                fs.mkdir(dir)?;
                fs.write(&format!("{dir}/critical-broken"), hook.as_bytes(), 0o755)?;
            }
            Broken::AgentExits => {
                let program = fs.read("/usr/bin/false")?;
                fs.write("/usr/bin/os-agent", &program, 0o755)?;
                let dir = "/usr/lib/systemd/system/os-agent-trial-deadline.timer.d";
                fs.mkdir(dir)?;
                fs.write(
                    &format!("{dir}/30-short.conf"),
                    b"[Timer]\nOnActiveSec=\nOnActiveSec=60\n",
                    0o644,
                )?;
            }
            Broken::NoKernel => fs.remove("/boot/vmlinuz")?,
            Broken::NoAgent => fs.remove("/usr/bin/os-agent")?,
            Broken::RuinsEtc => {
                let script = "mkdir -p /etc/containerd; echo ruined > /etc/containerd/config.toml; echo 'root:ruined' | chpasswd; \
                              rm -f /etc/hosts; sync";
                early_unit(&fs, script)?;
                hook(
                    &fs,
                    "critical-containerd",
                    "grep -q ruined /etc/containerd/config.toml && { echo 'containerd: bad config'; exit 1; }",
                )?;
            }
            Broken::PanicsLate => early_unit(
                &fs,
                "echo 1 > /proc/sys/kernel/sysrq; echo 'version 3 is about to crash' > /dev/kmsg; echo c > /proc/sysrq-trigger",
            )?,
            Broken::Resets => early_unit(
                &fs,
                "echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger",
            )?,
            Broken::NeverReady => hook(&fs, "10-wait", "echo 'not yet'; exit 75")?,
        }
        fs_err::rename(&tmp, &out)?;
        Ok(out)
    }
}
