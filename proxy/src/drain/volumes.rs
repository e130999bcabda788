//! Volumes that must be detached before the node goes down (PURE).

use super::PodFact;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::collections::BTreeSet;

/// An attachment to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Name of the VolumeAttachment.
    pub name: String,
    /// Persistent volume.
    pub volume: String,
}

/// Attachments of `node` that stand.
pub fn attached_to(node: &str, all: &[VolumeAttachment]) -> Vec<Attached> {
    all.iter()
        .filter(|a| a.spec.node_name == node && a.status.as_ref().is_some_and(|s| s.attached))
        .map(|a| Attached {
            name: a.metadata.name.clone().unwrap_or_default(),
            volume: a.spec.source.persistent_volume_name.clone().unwrap_or_default(),
        })
        .collect()
}

/// Attachments that still have to go. Pods that stay (DaemonSets) keep theirs: which volume belongs to which claim is not
/// readable with the proxy's rights, so as many may stay as these pods have claims.
pub fn in_the_way(attached: Vec<Attached>, staying: &[PodFact]) -> Vec<Attached> {
    let kept: BTreeSet<_> = staying
        .iter()
        .flat_map(|p| p.claims.iter().map(move |c| (&p.namespace, c)))
        .collect();
    if attached.len() <= kept.len() {
        Vec::new()
    } else {
        attached
    }
}
