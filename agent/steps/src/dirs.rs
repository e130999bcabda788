//! Where everything lies. Tests and dry runs put another root in front.

use crate::error::Result;
use crate::sys::atomic;
use camino::{Utf8Path, Utf8PathBuf};

/// The runner's directories and those that steps expect (Deckhouse's conventions).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Ours: bundles, state, output of runs.
    pub steps: Utf8PathBuf,
    /// `/var/lib/bashible`.
    pub base: Utf8PathBuf,
    /// `/opt/deckhouse`.
    pub opt: Utf8PathBuf,
    /// `/var/cache/registrypackages`.
    pub packages: Utf8PathBuf,
    /// `/var/log/d8/bashible`.
    pub log: Utf8PathBuf,
    /// `/etc`.
    pub etc: Utf8PathBuf,
}

impl Dirs {
    /// The real ones, or all of them below `root`; `steps` is taken as it is.
    pub fn new(steps: &Utf8Path, root: Option<&Utf8Path>) -> Dirs {
        let at = |p: &str| root.unwrap_or(Utf8Path::new("/")).join(p);
        Dirs {
            steps: steps.to_owned(),
            base: at("var/lib/bashible"),
            opt: at("opt/deckhouse"),
            packages: at("var/cache/registrypackages"),
            log: at("var/log/d8/bashible"),
            etc: at("etc"),
        }
    }

    /// Flags of steps; they survive steps and runs.
    pub fn flags(&self) -> Utf8PathBuf {
        self.base.join(".bb-workspace/flag")
    }

    /// Files and packages that were changed and whose consequences did not happen yet.
    pub fn unhandled(&self) -> Utf8PathBuf {
        self.base.join(".bb-workspace/unhandled")
    }

    /// Stored bundles.
    pub fn bundles(&self) -> Utf8PathBuf {
        self.steps.join("bundles")
    }

    /// Journals and output of runs.
    pub fn runs(&self) -> Utf8PathBuf {
        self.steps.join("runs")
    }

    /// Answers of people: a file named `update`, `disruption` or `drained`.
    pub fn approvals(&self) -> Utf8PathBuf {
        self.steps.join("approvals")
    }

    /// What the node asks for, one file each.
    pub fn requests(&self) -> Utf8PathBuf {
        self.steps.join("requests")
    }

    /// Ours only: what looking at a state needs.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    pub fn make_own(&self) -> Result<()> {
        for d in [
            &self.steps,
            &self.bundles(),
            &self.runs(),
            &self.approvals(),
            &self.requests(),
        ] {
            atomic::private_dir(d)?;
        }
        Ok(())
    }

    /// Everything that a step may expect before the first one runs.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    pub fn make_all(&self) -> Result<()> {
        self.make_own()?;
        atomic::private_dir(&self.base)?;
        for d in [self.base.join("bundle_steps"), self.flags(), self.unhandled()] {
            atomic::private_dir(&d)?;
        }
        for d in [
            self.opt.join("bin"),
            self.opt.join("tmp"),
            self.opt.join("share/ca-certificates"),
            self.packages.clone(),
            self.log.clone(),
        ] {
            std::fs::create_dir_all(&d).map_err(|e| crate::error::StepsError::io(&d, &e))?;
        }
        Ok(())
    }
}
