//! Whether the server takes what we write, asked without changing anything, and what is said when it does not.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::PostParams;

use crate::api::{Desired, Grant, INSTANCE_NAMESPACE, OS, OSInstance};
use crate::clock;
use crate::operator::decide::{EventNote, OsRef};
use crate::operator::facts::Trouble;

use super::{Actor, Outcome, code};

impl Actor {
    pub(super) async fn pruned(&mut self, namespace: &str, os: &OS) {
        let trouble = Trouble {
            reason: "CRDPruned".into(),
            message: "the cluster has other definitions of OS and OSInstance (KubeOS's own?) and drops our fields; nothing is granted. Apply proxy/deploy/crds.yaml".into(),
        };
        tracing::error!("{}", trouble.message);
        let note = EventNote {
            os: OsRef {
                namespace: namespace.to_owned(),
                name: os.name_any(),
                uid: os.uid().unwrap_or_default(),
            },
            warning: true,
            reason: trouble.reason.clone(),
            message: trouble.message.clone(),
            cause: "pruned".into(),
        };
        self.view.set_trouble(Some(trouble));
        self.event(&note).await;
    }

    /// Whether the server takes our writes and keeps our fields, asked without changing anything. Sets or clears trouble.
    pub(crate) async fn probe(&mut self) {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let os = self.view.with(clock::now(), |f| f.oses.first().cloned());
        if let Some(mut os) = os {
            let namespace = os.namespace().unwrap_or_default();
            let mut status = os.status.clone().unwrap_or_default();
            let now = Time(clock::now());
            status.grants.push(Grant {
                node: "probe".into(),
                node_uid: "probe".into(),
                kind: Default::default(),
                attempt: 0,
                granted_at: now.clone(),
                not_after: now,
                epoch: 0,
            });
            let wanted = status.grants.len();
            os.status = Some(status);
            match self
                .os(&namespace)
                .replace_status(&os.name_any(), &dry, &os)
                .await
            {
                Ok(answer) if answer.status.as_ref().is_some_and(|s| s.grants.len() == wanted) => {}
                Ok(_) => return self.pruned(&namespace, &os).await,
                Err(e) if code(&e) == 403 => {
                    return self.failed("update os/status", &e, &mut Outcome::default());
                }
                Err(error) => tracing::debug!(%error, "probe"),
            }
        }
        let any = self
            .view
            .with(clock::now(), |f| f.instances.values().next().cloned());
        let mut trial = OSInstance::new("slipway-probe", Default::default());
        trial.spec.desired = Desired::Stage;
        trial.metadata.namespace = Some(INSTANCE_NAMESPACE.into());
        match self.instances().create(&dry, &trial).await {
            Ok(answer) if answer.spec.desired == trial.spec.desired => {}
            Ok(_) => {
                let os = self
                    .view
                    .with(clock::now(), |f| f.oses.first().cloned())
                    .unwrap_or_default();
                return self
                    .pruned(&os.namespace().unwrap_or_else(|| "default".into()), &os)
                    .await;
            }
            Err(e) if code(&e) == 403 => {
                return self.failed("create osinstances", &e, &mut Outcome::default());
            }
            Err(error) => tracing::debug!(%error, "probe"),
        }
        if let Some(instance) = any {
            match self
                .instances()
                .replace(&instance.name_any(), &dry, &instance)
                .await
            {
                Err(e) if code(&e) == 403 => {
                    return self.failed("update osinstances", &e, &mut Outcome::default());
                }
                _ => {}
            }
        }
        if self.view.set_trouble(None) {
            tracing::info!("the server takes our writes again");
        }
    }
}
