//! A real kube-apiserver and etcd on loopback, a proxy in front that can fail on purpose, and the players that a cluster
//! without controllers lacks: kubelets, the budget controller, the garbage collector.
//!
//! Nothing here imitates the API server. What is measured is read from its audit log.

pub mod assets;
pub mod audit;
pub mod cases;
mod certs;
pub mod fleet;
pub mod front;
pub mod invariants;
pub mod operator;
pub mod players;
pub mod rules;
pub mod server;
pub mod sim;

pub use assets::{Assets, Found};
pub use audit::{Audit, Call};
pub use cases::{Cases, Dice};
pub use front::Front;
pub use rules::{Action, Rule};
pub use server::{Cluster, Options};

use anyhow::{Context, Result};

/// A manifest as it is shipped, from `proxy/deploy`.
///
/// # Errors
/// There is none of this name.
pub fn deployed(name: &str) -> Result<String> {
    let path = format!("{}/../proxy/deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

impl Cluster {
    /// Applies the shipped kinds and roles, and waits until the kinds are served.
    ///
    /// # Errors
    /// kubectl's.
    pub async fn install(&self) -> Result<()> {
        self.apply(&deployed("crds.yaml")?).await?;
        self.apply(&deployed("rbac.yaml")?).await?;
        for crd in ["os.upgrade.openeuler.org", "osinstances.upgrade.openeuler.org"] {
            self.kubectl(&[
                "wait",
                "--for=condition=Established",
                "--timeout=120s",
                "crd",
                crd,
            ])
            .await?;
        }
        Ok(())
    }
}
