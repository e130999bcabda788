//! PURE: which files a model may change. A path outside is refused, whoever asks.

use super::Model;
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

/// A place: a directory, or a file where `endings` is empty.
struct Place {
    at: &'static str,
    endings: &'static [&'static str],
}

const fn file(at: &'static str) -> Place {
    Place { at, endings: &[] }
}

const fn dir(at: &'static str, endings: &'static [&'static str]) -> Place {
    Place { at, endings }
}

const YAML: &[&str] = &["yaml", "yml", "json"];

const SYSCTL: &[Place] = &[file("/etc/sysctl.conf"), dir("/etc/sysctl.d", &["conf"])];
// Not below: /etc/kubernetes/manifests holds pods that kubelet starts, and *.conf there are credentials.
const KUBELET: &[Place] = &[
    dir("/var/lib/kubelet", YAML),
    dir("/etc/kubernetes", YAML),
    dir("/etc/kubernetes/kubelet", YAML),
];
const CONTAINERD: &[Place] = &[
    dir("/etc/containerd", &["toml"]),
    dir("/etc/containerd/conf.d", &["toml"]),
];
const LIMITS: &[Place] = &[file("/etc/security/limits.conf")];

fn places(model: Model) -> &'static [Place] {
    match model {
        Model::SysctlPersist => SYSCTL,
        Model::Kubelet => KUBELET,
        Model::Containerd => CONTAINERD,
        Model::Limits => LIMITS,
        Model::Sysctl | Model::GrubCurrent | Model::GrubNext => &[],
    }
}

/// The file of a model where `configpath` is empty or not honoured; `None` = the model has no file of its own.
pub fn default_path(model: Model) -> Option<&'static str> {
    match model {
        Model::SysctlPersist => Some("/etc/sysctl.conf"),
        Model::Kubelet => Some("/var/lib/kubelet/config.yaml"),
        Model::Containerd => Some("/etc/containerd/config.toml"),
        Model::Limits => Some("/etc/security/limits.conf"),
        Model::Sysctl | Model::GrubCurrent | Model::GrubNext => None,
    }
}

/// Whether KubeOS honours `configpath` for a model.
pub fn honours_path(model: Model) -> bool {
    matches!(model, Model::SysctlPersist | Model::Kubelet | Model::Containerd)
}

/// Whether `path` is one that the model may change.
///
/// # Errors
/// A message that names the path and what is allowed.
pub fn allowed(model: Model, path: &str) -> Result<Utf8PathBuf, String> {
    let given = Utf8Path::new(path);
    let plain = given.is_absolute()
        && given
            .components()
            .all(|c| matches!(c, Utf8Component::RootDir | Utf8Component::Normal(_)))
        && !path.chars().any(char::is_control);
    // Without doubled and trailing slashes.
    let clean: Utf8PathBuf = given.components().collect();
    let fits = |p: &Place| {
        if p.endings.is_empty() {
            return clean == p.at;
        }
        clean.parent() == Some(Utf8Path::new(p.at))
            && clean.extension().is_some_and(|e| p.endings.contains(&e))
            && clean.file_name().is_some_and(|n| !n.starts_with('.'))
    };
    if plain && places(model).iter().any(fits) {
        return Ok(clean);
    }
    let list: Vec<String> = places(model)
        .iter()
        .map(|p| match p.endings {
            [] => p.at.to_owned(),
            e => format!("{}/*.{}", p.at, e.join("|")),
        })
        .collect();
    Err(format!(
        "configpath {path:?} is not a file that {model} may change; expected {}",
        list.join(" or ")
    ))
}
