//! Leader election over one Lease. A candidate takes over when the Lease has not changed for its duration by the
//! candidate's own clock; `leaseTransitions` is the epoch. A leader that cannot renew in time stops before others start.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::LEASE_NAME;
use crate::clock;

/// How the Lease is used.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Who we are; unique per process.
    pub identity: String,
    /// How long a silent leader is believed.
    pub duration: Duration,
    /// How often the leader renews and others look.
    pub renew: Duration,
}

impl LeaseOptions {
    /// 15 s and 5 s.
    pub fn new(namespace: String, identity: String) -> LeaseOptions {
        LeaseOptions {
            namespace,
            identity,
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
        }
    }
}

/// Takes part in the election until dropped; `leader` holds the epoch while we lead.
pub(crate) async fn elect(client: Client, options: LeaseOptions, leader: watch::Sender<Option<i64>>) {
    let api: Api<Lease> = Api::namespaced(client, &options.namespace);
    let mut seen: Option<(String, Instant)> = None;
    let mut renewed = Instant::now();
    loop {
        let begun = Instant::now();
        match tokio::time::timeout(options.renew, round(&api, &options, &mut seen)).await {
            Ok(Ok(Some(epoch))) => {
                renewed = begun;
                leader.send_if_modified(|l| l.replace(epoch) != Some(epoch));
            }
            Ok(Ok(None)) => step_down(&leader),
            other => {
                if let Ok(Err(error)) = other {
                    tracing::warn!(%error, "cannot renew the Lease");
                }
                // Others believe us for `duration` after the renewal they saw; be done well before.
                if renewed.elapsed() + options.renew >= options.duration {
                    step_down(&leader);
                }
            }
        }
        tokio::time::sleep(options.renew).await;
    }
}

fn step_down(leader: &watch::Sender<Option<i64>>) {
    leader.send_if_modified(|l| l.take().is_some());
}

/// One look: the epoch if we lead afterwards.
async fn round(
    api: &Api<Lease>,
    o: &LeaseOptions,
    seen: &mut Option<(String, Instant)>,
) -> kube::Result<Option<i64>> {
    let Some(mut lease) = api.get_opt(LEASE_NAME).await? else {
        let mut fresh = Lease::default();
        fresh.metadata.name = Some(LEASE_NAME.into());
        fresh.spec = Some(spec(o, 1, None));
        return match api.create(&PostParams::default(), &fresh).await {
            Ok(_) => Ok(Some(1)),
            Err(kube::Error::Api(s)) if s.code == 409 => Ok(None),
            Err(e) => Err(e),
        };
    };
    let version = lease.resource_version().unwrap_or_default();
    let old = lease.spec.clone().unwrap_or_default();
    let holder = old.holder_identity.clone().unwrap_or_default();
    let ours = holder == o.identity;
    if seen.as_ref().is_none_or(|(v, _)| *v != version) {
        *seen = Some((version, Instant::now()));
    }
    let expired = seen.as_ref().is_some_and(|(_, at)| at.elapsed() >= o.duration);
    if !ours && !holder.is_empty() && !expired {
        return Ok(None);
    }
    let epoch = i64::from(old.lease_transitions.unwrap_or(0)) + i64::from(!ours);
    let acquired = if ours { old.acquire_time } else { None };
    lease.spec = Some(spec(o, epoch, acquired));
    lease.metadata.managed_fields = None;
    match api.replace(LEASE_NAME, &PostParams::default(), &lease).await {
        Ok(stored) => {
            *seen = Some((stored.resource_version().unwrap_or_default(), Instant::now()));
            Ok(Some(epoch))
        }
        Err(kube::Error::Api(s)) if s.code == 409 => Ok(None),
        Err(e) => Err(e),
    }
}

fn spec(o: &LeaseOptions, epoch: i64, acquired: Option<MicroTime>) -> LeaseSpec {
    let now = MicroTime(clock::now());
    LeaseSpec {
        holder_identity: Some(o.identity.clone()),
        lease_duration_seconds: i32::try_from(o.duration.as_secs().max(1)).ok(),
        lease_transitions: i32::try_from(epoch).ok(),
        acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

/// Gives the Lease up at an orderly end, so that the next one need not wait. Errors do not matter: it runs out.
pub(crate) async fn release(client: Client, options: &LeaseOptions) {
    let api: Api<Lease> = Api::namespaced(client, &options.namespace);
    let Ok(mut lease) = api.get(LEASE_NAME).await else {
        return;
    };
    if let Some(spec) = lease
        .spec
        .as_mut()
        .filter(|s| s.holder_identity.as_deref() == Some(&options.identity))
    {
        spec.holder_identity = Some(String::new());
        lease.metadata.managed_fields = None;
        let _ = api.replace(LEASE_NAME, &PostParams::default(), &lease).await;
    }
}
