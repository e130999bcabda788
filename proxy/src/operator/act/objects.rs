//! Writes to OSInstances, and to Nodes whose cordon of ours has lost its owner.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::api::{ANN_CORDONED_BY, LABEL_CONFIGURING, LABEL_SERIAL, LABEL_UPGRADING, OSInstance};
use crate::operator::decide::{InstanceWrite, Orphan};

use super::{Actor, Outcome, code};

impl Actor {
    /// One write to an OSInstance. False if it failed in a way that time may cure.
    pub(super) async fn instance(&self, write: InstanceWrite) -> bool {
        self.pace.wait().await;
        let api = self.instances();
        let (name, verb, result) = match write {
            InstanceWrite::Create(i) => (
                i.name_any(),
                "create osinstances",
                api.create(&PostParams::default(), &i).await,
            ),
            InstanceWrite::Update(i) => (
                i.name_any(),
                "update osinstances",
                api.replace(&i.name_any(), &PostParams::default(), &i).await,
            ),
            InstanceWrite::Delete(i) => return self.delete(&i).await,
        };
        match result {
            Ok(stored) => {
                self.view.put_instance(stored);
                true
            }
            Err(e) if code(&e) == 409 || code(&e) == 404 => {
                match api.get_opt(&name).await {
                    Ok(Some(live)) => self.view.put_instance(live),
                    Ok(None) => self.view.drop_instance(&name),
                    Err(_) => {}
                }
                true
            }
            Err(e) => {
                self.failed(verb, &e, &mut Outcome::default());
                false
            }
        }
    }

    pub(super) async fn delete(&self, instance: &OSInstance) -> bool {
        let (api, name) = (self.instances(), instance.name_any());
        if !instance.finalizers().is_empty() {
            let mut bare = OSInstance {
                status: None,
                ..instance.clone()
            };
            bare.metadata.finalizers = None;
            match api.replace(&name, &PostParams::default(), &bare).await {
                Ok(_) => {}
                Err(e) if matches!(code(&e), 404 | 409) => {}
                Err(e) => {
                    self.failed("update osinstances", &e, &mut Outcome::default());
                    return false;
                }
            }
        }
        let only = Preconditions {
            uid: instance.uid(),
            resource_version: None,
        };
        match api
            .delete(
                &name,
                &DeleteParams {
                    preconditions: Some(only),
                    ..DeleteParams::default()
                },
            )
            .await
        {
            Ok(_) => self.view.drop_instance(&name),
            Err(e) if code(&e) == 404 => self.view.drop_instance(&name),
            Err(e) if code(&e) == 409 => {}
            Err(e) => {
                self.failed("delete osinstances", &e, &mut Outcome::default());
                return false;
            }
        }
        true
    }

    pub(super) async fn orphan(&self, orphan: Orphan, out: &mut Outcome) {
        self.pace.wait().await;
        let patch = json!({
            "metadata": {
                "resourceVersion": orphan.resource_version,
                "annotations": {ANN_CORDONED_BY: null},
                "labels": {LABEL_UPGRADING: null, LABEL_CONFIGURING: null, LABEL_SERIAL: null},
            },
            "spec": {"unschedulable": null},
        });
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes
            .patch(&orphan.node, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(node) => {
                out.writes += 1;
                tracing::info!(node = %orphan.node, "a cordon of ours that nobody owned any more was removed");
                self.view.put_node(&node);
            }
            Err(e) => {
                self.failed("patch nodes", &e, out);
                if code(&e) == 409
                    && let Ok(node) = nodes.get(&orphan.node).await
                {
                    self.view.put_node(&node);
                }
            }
        }
    }
}
