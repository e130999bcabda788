//! Installs packages into an empty root with dnf, and believes nothing that dnf does not prove.
//!
//! dnf gets a configuration of its own, so that nothing of the host's reaches the image. It runs three times: once to solve
//! (and to see whether the result could boot), once to download and check signatures, once without any network to run the transaction and the packages' scriptlets. Its exit
//! status 0 does not mean that all went well: output and package database are looked through afterwards.

mod conf;
mod database;
mod messages;
mod needed;
mod owners;
mod repofile;

use crate::cmd::{self, Cmd, Stream, chroot, sandbox};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::{Loader, Recipe, Rootfs, Trust};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::suggest;
use std::time::Duration;

pub use database::Package;

/// Where dnf keeps cache, logs and history: a bind mount of the working directory, so that nothing of it enters the image.
const STATE: &str = ".dnf";

/// Most time for downloads.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Installs the recipe's packages into `root`, which is created. Returns what is installed, sorted by name.
///
/// # Errors
/// Codes `REPO…` (repositories), `RPM…` (packages and scriptlets), `SIG…` (signatures), `DEP001` (dnf or rpm missing).
pub fn install(
    recipe: &Recipe,
    root: &Utf8Path,
    work: &Utf8Path,
    progress: &dyn Progress,
) -> Result<Vec<Package>> {
    let Rootfs::Packages { packages, repos } = &recipe.rootfs else {
        return Ok(Vec::new());
    };
    cmd::need_tools(&["dnf", "rpm"])?;
    if !sandbox::inside() {
        return Err(BuildError::new(
            Kind::Input,
            "SBX004",
            "installing packages needs root; start imgbuild as root",
        ));
    }
    if recipe.arch.as_str() != std::env::consts::ARCH {
        return Err(BuildError::new(
            Kind::Tools,
            "DEP002",
            format!(
                "packages for {} run their scriptlets at installation, and this machine is {}; build on a machine of that architecture",
                recipe.arch.as_str(),
                std::env::consts::ARCH
            ),
        ));
    }
    for repo in repos.iter().filter(|r| r.trust == Trust::AllowUnsigned) {
        progress.warning(
            "SEC002",
            &format!(
                "repo {:?}: signatures of packages are not checked (allow_unsigned)",
                repo.id
            ),
        );
    }
    let aliases = conf::Aliases::default();
    let dir = work.join("dnf");
    let setup = conf::prepare(recipe, repos, &dir, &aliases)?;
    let dnf = Dnf {
        root,
        home: dir.join("home"),
        config: setup,
        arch: recipe.arch.as_str(),
        progress,
    };

    fs_err::create_dir_all(root).map_err(|e| io("cannot create the root", &e))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(root, mode).map_err(|e| io("cannot create the root", &e))?;
    let mut mounts = chroot::Mounts::new(root)?;
    mounts.bind(&dir.join("state"), root, STATE)?;
    progress.stage("resolve packages");
    dnf.resolve(recipe, packages)?;
    progress.stage("download packages");
    let downloaded = dnf.install(packages, Phase::Download)?;
    let origin = messages::transaction_table(&downloaded);
    progress.stage("install packages");
    let log = dnf.install(packages, Phase::Install)?;
    drop(mounts);
    fs_err::remove_dir(root.join(STATE)).map_err(|e| io("cannot remove dnf's mount point", &e))?;

    progress.stage("check the installed packages");
    let home = dir.join("home");
    messages::scriptlet_failures(&log)?;
    let packages = database::query(root, &home, &origin)?;
    owners::settle(root, &home, &messages::unknown_owners(&log), progress)?;
    database::normalise(root)?;
    Ok(packages)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resolve,
    Download,
    Install,
}

struct Dnf<'a> {
    root: &'a Utf8Path,
    home: Utf8PathBuf,
    config: Utf8PathBuf,
    arch: &'static str,
    progress: &'a dyn Progress,
}

impl Dnf<'_> {
    fn command(&self, extra: &[&str]) -> Cmd<'_> {
        Cmd::new("dnf")
            .arg("-y")
            .arg(format!("--installroot={}", self.root))
            .arg(format!("--config={}", self.config))
            .arg(format!("--forcearch={}", self.arch))
            .arg("--releasever=0")
            .args(extra)
            .env("HOME", self.home.as_str())
            // Debian's rpm refuses ordinary use without it; others ignore it.
            .env("RPM_FORCE_DEBIAN", "1")
            .env("SYSTEMD_OFFLINE", "1")
            // The initramfs is made once, at the end: keep kernel packages from making theirs.
            .env("KERNEL_INSTALL_BYPASS", "1")
            .env("INITRD", "No")
    }

    /// Runs `dnf install` and returns its lines, both streams in the order in which they came.
    fn install(&self, packages: &[String], phase: Phase) -> Result<Vec<String>> {
        let mut log = Vec::new();
        let command = match phase {
            Phase::Resolve => self.command(&["--assumeno", "install"]).timeout(DOWNLOAD_LIMIT),
            // dnf gives up on a server that stands still; this is for one that is merely slow.
            Phase::Download => self
                .command(&["--downloadonly", "install"])
                .timeout(DOWNLOAD_LIMIT),
            Phase::Install => self.command(&["--cacheonly", "install"]).no_network(),
        };
        let (status, _) = command
            .args(packages)
            .on_line(|stream, line| {
                if stream == Stream::Out
                    && let Some((done, total, what)) = messages::progress(line)
                {
                    self.progress.step(done, total, what);
                }
                log.push(line.to_owned());
            })
            .status()?;
        if status.success() || (phase == Phase::Resolve && messages::only_asked(&log)) {
            return Ok(log);
        }
        let mut error = messages::explain(&log, self.arch);
        if error.code == "RPM001" {
            error.message = self.with_closest(&log);
        }
        Err(error)
    }

    /// Solves, and refuses packages that could not boot before any of them is downloaded. Where the lists of files cannot
    /// be had, the stages that need the files say what is missing.
    fn resolve(&self, recipe: &Recipe, packages: &[String]) -> Result<()> {
        let log = self.install(packages, Phase::Resolve)?;
        let names: Vec<String> = messages::transaction_table(&log)
            .into_keys()
            .map(|(name, arch)| format!("{name}.{arch}"))
            .collect();
        if recipe.boot.loader == Loader::None || messages::package_count(&log) != Some(names.len()) {
            return Ok(());
        }
        let listed = self
            .command(&["--cacheonly", "repoquery", "--available", "--list"])
            .args(names)
            .run();
        match listed {
            Ok(out) => needed::check(recipe, out.stdout_text().lines()).map_or(Ok(()), Err),
            Err(_) => Ok(()),
        }
    }

    /// The message for packages that no repository has, with the closest names there are.
    fn with_closest(&self, log: &[String]) -> String {
        let names = self
            .command(&["--cacheonly", "repoquery", "--available", "--qf", "%{name}"])
            .run()
            .map(|o| o.stdout_text())
            .unwrap_or_default();
        messages::missing_packages(log)
            .iter()
            .map(|wanted| {
                let name = suggest::closest(wanted, names.lines().map(str::trim));
                match name {
                    Some(name) => format!("no package matches {wanted:?}; closest: {name}"),
                    None => format!("no package matches {wanted:?} in the recipe's repositories"),
                }
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn io(what: &str, e: &std::io::Error) -> BuildError {
    crate::rootfs::io_error(what, e)
}
