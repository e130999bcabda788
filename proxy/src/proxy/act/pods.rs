//! Pods of DaemonSets on the own node, for the health gate.

use super::{Actor, Result, kube_error};
use crate::drain;
use crate::proxy::facts::Facts;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

impl Actor {
    /// Pods of the DaemonSets that count, on this node, which are not Ready.
    pub(super) async fn unready(&self, f: &Facts) -> Result<Vec<String>> {
        let policy = f
            .order
            .as_ref()
            .and_then(|o| o.policy.clone())
            .unwrap_or_default();
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={}", self.settings.node));
        let pods = api.list(&params).await.map_err(kube_error("listing our pods"))?;
        let facts: Vec<drain::PodFact> = pods.items.iter().map(drain::PodFact::from).collect();
        Ok(not_ready(&facts, policy.daemonsets.as_deref()))
    }
}

/// Pods of the listed DaemonSets (`namespace/name`; none listed = all of kube-system) that are not Ready, and listed
/// DaemonSets without a pod here.
pub fn not_ready(pods: &[drain::PodFact], wanted: Option<&[String]>) -> Vec<String> {
    let own = |p: &&drain::PodFact| -> bool {
        p.daemonset().is_some_and(|(ns, name)| match wanted {
            Some(list) => list.iter().any(|w| *w == format!("{ns}/{name}")),
            None => ns == "kube-system",
        })
    };
    let mut bad: Vec<String> = pods
        .iter()
        .filter(own)
        .filter(|p| !p.ready && p.deletion.is_none() && !p.finished)
        .map(drain::PodFact::id)
        .collect();
    for w in wanted.into_iter().flatten() {
        let there = pods.iter().any(|p| {
            p.daemonset()
                .is_some_and(|(ns, name)| *w == format!("{ns}/{name}"))
        });
        if !there {
            bad.push(format!("{w} (no pod here)"));
        }
    }
    bad
}
