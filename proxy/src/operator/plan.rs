//! `os-operator plan -f os.yaml`: what would happen, without writing anything.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::api::{INSTANCE_NAMESPACE, OS, OSInstance};

use super::check::{Wish, check};
use super::decide::{InstanceWrite, decide, source_words};
use super::facts::{Fleet, NodeFacts, Settings};
use crate::crds;

/// Why a file cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No YAML at all.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// YAML of something else.
    #[error("expected one manifest of apiVersion {api}, kind OS; found {0}", api = crds::API_VERSION)]
    NotAnOs(String),
    /// A value of the wrong type.
    #[error("not an OS manifest: {0}")]
    Shape(String),
    /// The cluster did not answer.
    #[error("reading nodes, os and osinstances")]
    Kube(#[from] kube::Error),
}

/// A manifest as it stands in a file.
#[derive(Debug)]
pub struct Manifest {
    /// The object.
    pub os: OS,
    /// Fields that the definition does not have: kubectl refuses them, and an older one drops them silently.
    pub unknown: Vec<String>,
}

/// Reads a manifest.
///
/// # Errors
/// It is not one OS manifest.
pub fn parse(text: &str) -> Result<Manifest, Error> {
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(text).map_err(|e| Error::Yaml(e.to_string()))?;
    let mut documents: Vec<_> = documents.into_iter().filter(|d| !d.is_null()).collect();
    let one = match (documents.pop(), documents.len()) {
        (Some(d), 0) => d,
        (None, _) => return Err(Error::NotAnOs("an empty file".into())),
        (Some(_), n) => return Err(Error::NotAnOs(format!("{} documents", n + 1))),
    };
    let word = |key: &str| one.get(key).and_then(|v| v.as_str()).unwrap_or("none").to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if version != crds::API_VERSION || kind != "OS" {
        return Err(Error::NotAnOs(format!("apiVersion {version}, kind {kind}")));
    }
    let unknown = crds::unknown_fields(&one);
    // Read as YAML once more: its messages name line and column.
    let os = serde_saphyr::from_str(text).map_err(|e| Error::Shape(e.to_string()))?;
    Ok(Manifest { os, unknown })
}

/// The whole of `os-operator plan -f`: the text, and whether the manifest is valid. Without a client it looks at the manifest
/// alone.
///
/// # Errors
/// The text is no OS manifest, or the cluster does not answer.
pub async fn plan(
    client: Option<Client>,
    text: &str,
    settings: Settings,
    now: Timestamp,
) -> Result<(String, bool), Error> {
    let Manifest { os, unknown } = parse(text)?;
    let mut fleet = match client {
        Some(c) => read(c, settings, now).await?,
        None => Fleet {
            now,
            nodes: Default::default(),
            oses: Vec::new(),
            instances: Default::default(),
            fresh: true,
            trouble: None,
            settings,
        },
    };
    apply(&mut fleet, os.clone());
    let (mut said, valid) = describe(&fleet, &os);
    for field in &unknown {
        said.push_str(&format!(
            "  wrong: {field}: there is no such field (kubectl explain os.spec lists them)\n"
        ));
    }
    Ok((said, valid && unknown.is_empty()))
}

/// Reads the cluster; three lists, no write.
pub async fn read(client: Client, settings: Settings, now: Timestamp) -> kube::Result<Fleet> {
    let all = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&all).await?;
    let oses = Api::<OS>::all(client.clone()).list(&all).await?;
    let instances = Api::<OSInstance>::namespaced(client, INSTANCE_NAMESPACE)
        .list(&all)
        .await?;
    Ok(Fleet {
        now,
        nodes: nodes.iter().map(|n| (n.name_any(), NodeFacts::of(n))).collect(),
        oses: oses.items,
        instances: instances.items.into_iter().map(|i| (i.name_any(), i)).collect(),
        fresh: true,
        trouble: None,
        settings,
    })
}

/// Puts a manifest into the fleet as `kubectl apply` would.
pub fn apply(fleet: &mut Fleet, mut os: OS) {
    let namespace = os.namespace().unwrap_or_else(|| "default".into());
    os.metadata.namespace = Some(namespace.clone());
    let same = |o: &&mut OS| o.name_any() == os.name_any() && o.namespace().as_deref() == Some(&namespace);
    match fleet.oses.iter_mut().find(same) {
        Some(old) => {
            if old.spec != os.spec {
                old.metadata.generation = old.metadata.generation.map(|g| g + 1);
            }
            old.spec = os.spec;
            if let Some(annotations) = os.metadata.annotations {
                old.annotations_mut().extend(annotations);
            }
        }
        None => {
            os.metadata.uid = Some("planned".into());
            os.metadata.generation = Some(1);
            os.metadata.creation_timestamp = Some(crate::api::Time(fleet.now));
            fleet.oses.push(os);
        }
    }
}

/// The plan in words, and whether the spec is valid. PURE.
pub fn describe(fleet: &Fleet, os: &OS) -> (String, bool) {
    let mut text = String::new();
    let mut say = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let namespace = os.namespace().unwrap_or_else(|| "default".into());
    say(format!(
        "OS {namespace}/{}: {} to {:?}",
        os.name_any(),
        os.spec.opstype,
        os.spec.osversion
    ));
    match check(&os.spec, &fleet.settings) {
        Err(problems) => {
            for p in problems {
                say(format!("  wrong: {p}"));
            }
            (text, false)
        }
        Ok(wish) => {
            text.push_str(&valid(fleet, os, &wish, &namespace));
            (text, true)
        }
    }
}

fn valid(fleet: &Fleet, os: &OS, wish: &Wish, namespace: &str) -> String {
    let mut text = String::new();
    let mut say = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    for w in &wish.warnings {
        say(format!("  note: {w}"));
    }
    say(format!(
        "  target {} from {}",
        wish.key,
        source_words(wish.source.as_ref())
    ));
    // The finalizer comes first in the real course of things; the plan looks past it.
    let mut ahead = fleet.clone();
    ahead.settings.stage_burst = usize::MAX;
    for o in &mut ahead.oses {
        if o.metadata.deletion_timestamp.is_none()
            && !o.finalizers().iter().any(|f| f == crate::api::FINALIZER_OS)
        {
            o.finalizers_mut().push(crate::api::FINALIZER_OS.into());
        }
    }
    let decision = decide(&ahead);
    let Some(view) = decision
        .views
        .iter()
        .find(|v| v.os.name == os.name_any() && v.os.namespace == namespace)
    else {
        return text;
    };
    say(format!(
        "  {} nodes with an agent, at most {} unavailable, {} are now",
        view.total, view.limit, view.unavailable
    ));
    match &view.blocked {
        Some((reason, message)) => say(format!("  nothing is granted now: {reason}: {message}")),
        None => say("  grants are possible now".into()),
    }
    for s in decision.statuses.iter().filter(|s| s.os == view.os) {
        for node in &s.granted {
            say(format!("  would be taken down now: {node}"));
        }
    }
    for w in &decision.instances {
        let InstanceWrite::Update(i) = w else { continue };
        if i.spec.osuid.as_deref() == Some(view.os.uid.as_str())
            && i.spec.desired == crate::api::Desired::Stage
        {
            say(format!("  would be staged now: {}", i.name_any()));
        }
    }
    let width = view.nodes.iter().map(|n| n.node.len()).max().unwrap_or(4).max(4);
    say(format!("  {:width$}  {:22}  WHY", "NODE", "STANDING"));
    for n in &view.nodes {
        say(format!("  {:width$}  {:22}  {}", n.node, n.standing, n.why)
            .trim_end()
            .to_owned());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> String {
        let path = format!("{}/samples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    async fn offline(text: &str) -> Result<(String, bool), Error> {
        plan(None, text, Settings::default(), Timestamp::UNIX_EPOCH).await
    }

    #[tokio::test]
    async fn a_manifest_is_described_without_a_cluster() {
        let (text, valid) = offline(&sample("ten-keys")).await.unwrap();
        assert!(valid, "{text}");
        assert!(
            text.contains("OS default/os-sample: upgrade to \"KubeOS 7.3\"")
                && text.contains("reg.lab.example/os/blue:7.3"),
            "{text}"
        );
    }

    /// A typing error is no default that goes unnoticed.
    #[tokio::test]
    async fn fields_that_do_not_exist_are_wrong() {
        let text = format!(
            "{}\n  maxunavailble: 3\n  drain: {{timout: 5m}}\n  windows: [{{start: '10:00', end: '11:00', day: [Mon]}}]\n",
            sample("ten-keys").trim_end()
        );
        let (said, valid) = offline(&text).await.unwrap();
        assert!(!valid);
        for field in [
            "spec.maxunavailble:",
            "spec.drain.timout:",
            "spec.windows[0].day:",
        ] {
            assert!(said.contains(&format!("wrong: {field}")), "{field}: {said}");
        }
        // Every sample knows only fields that exist: what stands in values of settings is free.
        for entry in std::fs::read_dir(format!("{}/samples", env!("CARGO_MANIFEST_DIR"))).unwrap() {
            let path = entry.unwrap().path();
            let m = parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            assert!(m.unknown.is_empty(), "{}: {:?}", path.display(), m.unknown);
        }
    }

    #[tokio::test]
    async fn files_that_are_something_else_are_refused_by_name() {
        let two = format!("{}\n---\n{}", sample("ten-keys"), sample("rollback"));
        for (text, hint) in [
            ("", "an empty file"),
            ("a: [", "not YAML"),
            (
                "{apiVersion: apps/v1, kind: Deployment, spec: {}}",
                "apiVersion apps/v1, kind Deployment",
            ),
            ("just words", "apiVersion none, kind none"),
            (two.as_str(), "2 documents"),
            (
                "{apiVersion: upgrade.openeuler.org/v1alpha1, kind: OS, spec: {maxunavailable: [1]}}",
                "not an OS manifest",
            ),
        ] {
            let e = offline(text).await.unwrap_err().to_string();
            assert!(e.contains(hint), "{text:?}: {e}");
        }
    }
}
