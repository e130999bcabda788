//! `[units]`: what starts at boot.

use super::super::inroot;
use crate::cmd::{Cmd, chroot, sandbox};
use crate::error::{BuildError, Kind, Result};
use crate::recipe::Recipe;
use camino::Utf8Path;
use os_proto::suggest;
use std::collections::BTreeSet;

const DIRECTORIES: [&str; 4] = [
    "etc/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "usr/local/lib/systemd/system",
];

/// Enables and disables units.
pub(super) fn apply(recipe: &Recipe, root: &Utf8Path) -> Result<()> {
    let units = &recipe.units;
    if units.enable.is_empty() && units.disable.is_empty() {
        return Ok(());
    }
    let known = known(root);
    let errors: Vec<String> = units
        .enable
        .iter()
        .chain(&units.disable)
        .filter(|u| !exists(&known, u))
        .map(|u| {
            format!(
                "unit {u:?} not found{}",
                suggest::hint(u, known.iter().map(String::as_str))
            )
        })
        .collect();
    if !errors.is_empty() {
        return Err(BuildError::new(Kind::Build, "IMG004", errors.join("\n")));
    }
    let mounts = if sandbox::inside() {
        Some(chroot::Mounts::new(root)?)
    } else {
        None
    };
    for (verb, list) in [("enable", &units.enable), ("disable", &units.disable)] {
        for unit in list {
            systemctl(root, mounts.is_some(), verb, unit)?;
        }
    }
    Ok(())
}

/// By the image's own systemctl where we can enter it, else by the host's.
fn systemctl(root: &Utf8Path, enter: bool, verb: &str, unit: &str) -> Result<()> {
    let command = if enter {
        Cmd::new("systemctl").chroot(root)
    } else {
        Cmd::new("systemctl").arg(format!("--root={root}"))
    };
    let out = command
        .args([verb, unit])
        .env("SYSTEMD_OFFLINE", "1")
        .env("SYSTEMCTL_SKIP_SYSV", "1")
        .run()?;
    if verb == "enable" && out.stderr_tail.contains("no installation config") {
        return Err(BuildError::new(
            Kind::Build,
            "IMG004",
            format!("unit {unit:?} has no [Install] section: other units start it, it cannot be enabled"),
        ));
    }
    Ok(())
}

fn known(root: &Utf8Path) -> BTreeSet<String> {
    DIRECTORIES
        .iter()
        .filter_map(|d| inroot::resolve_all(root, d).ok()?.read_dir_utf8().ok())
        .flatten()
        .filter_map(|e| Some(e.ok()?.file_name().to_owned()))
        .filter(|n| !n.ends_with(".d") && !n.ends_with(".wants") && !n.ends_with(".requires"))
        .collect()
}

/// `name@instance.service` exists when `name@.service` does.
fn exists(known: &BTreeSet<String>, unit: &str) -> bool {
    known.contains(unit)
        || unit.split_once('@').is_some_and(|(name, rest)| {
            rest.rsplit_once('.')
                .is_some_and(|(_, suffix)| known.contains(&format!("{name}@.{suffix}")))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_instances() {
        let known = BTreeSet::from(["a.service".to_owned(), "getty@.service".to_owned()]);
        assert!(exists(&known, "a.service"));
        assert!(exists(&known, "getty@tty1.service"));
        assert!(!exists(&known, "b.service"));
        assert!(!exists(&known, "b@x.service"));
    }
}
