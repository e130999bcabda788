//! `os-operator plan -f os.yaml`: what would happen, without writing anything.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::api::{INSTANCE_NAMESPACE, OS, OSInstance};

use super::check::{Wish, check};
use super::decide::{InstanceWrite, decide, source_words};
use super::facts::{Fleet, NodeFacts, Settings};

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
