//! The own Node: cordon, mark and labels, always on the version that was decided on.

use super::{Actor, Error, Result, kube_error, refuse};
use crate::api::{ANN_CORDONED_BY, LABEL_CONFIGURING, LABEL_SERIAL, LABEL_UPGRADING, OS, OsInstanceSpec};
use crate::proxy::facts::{Facts, NodeFact, Step};
use crate::proxy::metrics;
use crate::proxy::run::Memory;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

impl Actor {
    /// A live read of the ledger: does it hold this node's grant?
    pub(super) async fn granted(&self, f: &Facts, order: &OsInstanceSpec) -> Result<bool> {
        let (Some(owner), Some(node)) = (&order.namespacedname, &f.node) else {
            return Ok(false);
        };
        let api: Api<OS> = Api::namespaced(self.client.clone(), &owner.namespace);
        let os = api
            .get_opt(&owner.name)
            .await
            .map_err(kube_error("reading the OS object that grants"))?;
        let now = self.now();
        Ok(os.is_some_and(|os| {
            os.metadata.uid == order.osuid
                && os.status.iter().flat_map(|s| &s.grants).any(|g| {
                    g.node == node.name
                        && g.node_uid == node.uid
                        && g.attempt == order.attempt
                        && now < g.not_after.0
                })
        }))
    }

    pub(super) async fn cordon(&self, f: &Facts, owner: Option<&str>, mem: &mut Memory) -> Result<()> {
        let Some(order) = &f.order else { return Ok(()) };
        if !self.granted(f, order).await? {
            let why = refuse(
                "GrantGone",
                "the ledger does not hold this node's grant (any more)",
            );
            mem.done.insert(Step::Cordon, Err(why));
            return Err(Error::Stale("no grant"));
        }
        let serial = order.policy.as_ref().is_some_and(|p| p.serial);
        let mut body = json!({"metadata": {"labels": {LABEL_UPGRADING: ""}}});
        if serial {
            body["metadata"]["labels"][LABEL_SERIAL] = json!("");
        }
        if let Some(o) = owner {
            body["metadata"]["annotations"] = json!({ANN_CORDONED_BY: o});
            body["spec"] = json!({"unschedulable": true});
        }
        self.patch_node(f, body, mem).await
    }

    /// The mark, the cordon and the labels go in one patch. Without our mark the cordon stays.
    pub(super) async fn release(&self, f: &Facts, uncordon: bool, mem: &mut Memory) -> Result<()> {
        let mut body = json!({"metadata": {
            "annotations": {ANN_CORDONED_BY: null},
            "labels": {LABEL_UPGRADING: null, LABEL_SERIAL: null, LABEL_CONFIGURING: null},
        }});
        if uncordon {
            body["spec"] = json!({"unschedulable": null});
        }
        self.patch_node(f, body, mem).await?;
        if let Some(t) = mem
            .report
            .phase_since
            .as_ref()
            .filter(|_| mem.report.phase.past_boot())
        {
            metrics::downtime(u64::try_from(self.now().as_second() - t.0.as_second()).unwrap_or(0));
        }
        Ok(())
    }

    /// A merge patch with the version that was decided on. When only kubelet wrote in between, it is repeated on the new
    /// version; when the cordon or the mark changed, the decision is made anew.
    pub(super) async fn patch_node(&self, f: &Facts, mut body: Value, mem: &mut Memory) -> Result<()> {
        let Some(mut node) = f.node.clone() else {
            return Err(Error::Stale("the Node is not known"));
        };
        let api: Api<Node> = Api::all(self.client.clone());
        for _ in 0..4 {
            body["metadata"]["resourceVersion"] = json!(node.resource_version);
            match api
                .patch(&node.name, &PatchParams::default(), &Patch::Merge(&body))
                .await
            {
                Ok(n) => {
                    mem.node_written(NodeFact::from(&n));
                    return Ok(());
                }
                Err(kube::Error::Api(s)) if s.code == 409 => {}
                Err(e) => return Err(kube_error("patching our Node")(e)),
            }
            let fresh = api
                .get(&node.name)
                .await
                .map_err(kube_error("reading our Node"))?;
            let fresh = NodeFact::from(&fresh);
            let same = |n: &NodeFact| (n.uid.clone(), n.unschedulable, n.cordoned_by.clone());
            if same(&fresh) != same(&node) {
                mem.node_written(fresh);
                return Err(Error::Stale("the Node's cordon changed"));
            }
            node = fresh;
        }
        Err(Error::Stale("the Node changes all the time"))
    }
}
