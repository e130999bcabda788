//! Finding or building kube-apiserver, etcd and kubectl, and what a node that joins them runs.
//!
//! Order: `KUBEBUILDER_ASSETS`, the cache, a build from the pinned Go modules in `tests/kube`. Without a Go toolchain there
//! is no cluster part; the caller says so and how to get one.

use crate::fixture::cache::CacheEntry;
use crate::proc;
use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};

const GO_MOD: &str = include_str!("../../kube/go.mod");
const GO_SUM: &str = include_str!("../../kube/go.sum");
const TOOLS: &str = include_str!("../../kube/tools.go");
const RUNTIME_MOD: &str = include_str!("../../kube/runtime/go.mod");
const RUNTIME_SUM: &str = include_str!("../../kube/runtime/go.sum");
const RUNTIME_TOOLS: &str = include_str!("../../kube/runtime/tools.go");
/// Oldest Go that can fetch the toolchain which go.mod asks for.
const GO_MIN: (u32, u32) = (1, 21);
const PROGRAMS: [(&str, &str); 3] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// kubelet and what signs its certificates, from the module of the control plane.
const NODE_PROGRAMS: [(&str, &str); 2] = [
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    (
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
];
/// What a node runs beside kubelet.
const RUNTIME_PROGRAMS: [(&str, &str); 5] = [
    ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    (
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    (
        "bridge",
        "github.com/containernetworking/plugins/plugins/main/bridge",
    ),
    (
        "host-local",
        "github.com/containernetworking/plugins/plugins/ipam/host-local",
    ),
    (
        "loopback",
        "github.com/containernetworking/plugins/plugins/main/loopback",
    ),
];

/// The programs of a control plane.
#[derive(Debug, Clone)]
pub struct Assets {
    /// kube-apiserver.
    pub apiserver: Utf8PathBuf,
    /// etcd.
    pub etcd: Utf8PathBuf,
    /// kubectl of the same version; older ones may be in PATH beside it.
    pub kubectl: Utf8PathBuf,
    /// Where they are from, for people.
    pub origin: String,
}

/// What a look for the programs gives.
#[derive(Debug)]
pub enum Found {
    /// Here they are.
    Assets(Assets),
    /// There are none and none can be built: why, and what to do.
    Missing(String),
}

/// Kubernetes' version in go.mod, as `v1.2.3`.
pub fn pinned_version() -> &'static str {
    GO_MOD
        .lines()
        .find_map(|l| l.trim().strip_prefix("k8s.io/kubernetes "))
        .unwrap_or("v0.0.0")
}

fn in_dir(dir: &Utf8Path, origin: String) -> Assets {
    Assets {
        apiserver: dir.join("kube-apiserver"),
        etcd: dir.join("etcd"),
        kubectl: dir.join("kubectl"),
        origin,
    }
}

/// Finds the programs, or builds them: that takes 10 to 20 minutes of processor time once per machine and version.
///
/// # Errors
/// `KUBEBUILDER_ASSETS` is set but incomplete, or the build failed.
pub fn ensure() -> Result<Found> {
    if let Ok(dir) = std::env::var("KUBEBUILDER_ASSETS")
        && !dir.is_empty()
    {
        let dir = Utf8PathBuf::from(dir);
        for (name, _) in PROGRAMS {
            if !dir.join(name).is_file() {
                bail!(
                    "KUBEBUILDER_ASSETS is {dir}, but there is no {name} in it; expected kube-apiserver, etcd and kubectl"
                );
            }
        }
        return Ok(Found::Assets(in_dir(&dir, format!("KUBEBUILDER_ASSETS ({dir})"))));
    }
    let entry = CacheEntry::of("kube", &KUBERNETES)?;
    let origin = format!("Kubernetes {}, {}", pinned_version(), entry.dir());
    if !entry.is_whole() {
        if let Some(why) = no_toolchain() {
            return Ok(Found::Missing(why));
        }
        let say = |s: &str| println!("kube: {s}");
        say(&format!(
            "building kube-apiserver, etcd and kubectl {} once; this takes a while",
            pinned_version()
        ));
        entry.fill(&say, |into| build(&KUBERNETES, &PROGRAMS, into))?;
    }
    Ok(Found::Assets(in_dir(&entry.dir(), origin)))
}

/// The directory with kubelet, kube-controller-manager, containerd and network plug-ins, built like the control plane.
///
/// # Errors
/// There is no Go toolchain, or the build failed.
pub fn ensure_node() -> Result<Utf8PathBuf> {
    let entry = CacheEntry::of(
        "kube-node",
        &[
            ("go.mod", GO_MOD),
            ("go.sum", GO_SUM),
            ("tools.go", TOOLS),
            ("runtime/go.mod", RUNTIME_MOD),
            ("runtime/go.sum", RUNTIME_SUM),
            ("runtime/tools.go", RUNTIME_TOOLS),
        ],
    )?;
    if !entry.is_whole() {
        if let Some(why) = no_toolchain() {
            bail!("{why}");
        }
        let say = |s: &str| println!("kube: {s}");
        say(
            "building kubelet, kube-controller-manager, containerd and network plug-ins once; this takes a while",
        );
        entry.fill(&say, |into| {
            build(&KUBERNETES, &NODE_PROGRAMS, into)?;
            build(&RUNTIME, &RUNTIME_PROGRAMS, into)
        })?;
    }
    Ok(entry.dir())
}

/// Why nothing can be built here.
fn no_toolchain() -> Option<String> {
    let advice = "install Go 1.26 or newer from https://go.dev/dl/ (unpack to /usr/local, put /usr/local/go/bin into PATH), or set \
                  KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl";
    if !proc::exists("go") {
        return Some(format!(
            "there is no Go toolchain to build kube-apiserver with: {advice}"
        ));
    }
    let text = proc::sh(&["go", "env", "GOVERSION"]).unwrap_or_default();
    match go_version(&text) {
        Some(v) if v >= GO_MIN => None,
        _ => Some(format!("the Go toolchain is too old ({}): {advice}", text.trim())),
    }
}

/// `go1.26.8` → (1, 26).
fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix("go")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A Go module's files, by name.
type Module = [(&'static str, &'static str); 3];
const KUBERNETES: Module = [("go.mod", GO_MOD), ("go.sum", GO_SUM), ("tools.go", TOOLS)];
const RUNTIME: Module = [
    ("go.mod", RUNTIME_MOD),
    ("go.sum", RUNTIME_SUM),
    ("tools.go", RUNTIME_TOOLS),
];

fn build(module: &Module, programs: &[(&str, &str)], into: &Utf8Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    let dir = Utf8Path::from_path(place.path()).context("temporary directory")?;
    for (name, text) in module {
        fs_err::write(dir.join(name), text)?;
    }
    let version = pinned_version();
    let minor = version.split('.').nth(1).unwrap_or("0");
    let base = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {base}.gitVersion={version} -X {base}.gitMajor=1 -X {base}.gitMinor={minor} -X {base}.gitTreeState=clean"
    );
    for (name, package) in programs {
        let mut c = proc::command("go");
        c.current_dir(dir)
            .args(["build", "-trimpath", "-p=2", "-buildvcs=false", "-mod=readonly"])
            .args(["-ldflags", &flags, "-o", into.join(name).as_str(), package])
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "")
            .env("GOTOOLCHAIN", "auto");
        proc::run(&mut c).with_context(|| format!("building {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_and_its_parts_agree() {
        let v = pinned_version();
        let minor = v.strip_prefix("v1.").unwrap();
        let parts = GO_MOD
            .lines()
            .filter(|l| l.contains("=>"))
            .filter(|l| l.trim().ends_with(&format!(" v0.{minor}")))
            .count();
        assert!(parts > 25, "{parts} parts are at v0.{minor}");
        assert_eq!(parts, GO_MOD.lines().filter(|l| l.contains("=>")).count());
    }

    #[test]
    fn reads_what_go_prints() {
        assert_eq!(go_version("go1.26.8\n"), Some((1, 26)));
        assert_eq!(go_version("go1.19.8"), Some((1, 19)));
        assert_eq!(go_version("devel"), None);
    }
}
