//! The loop: wait for a change or for time, decide, act.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{condition_type, is_true};
use crate::{clock, http};

use super::act::Actor;
use super::decide::decide;
use super::facts::Settings;
use super::lease::{self, LeaseOptions};
use super::metrics::OperatorPages;
use super::observe::{View, watch as watch_cluster};

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of decisions.
    pub settings: Settings,
    /// The election.
    pub lease: LeaseOptions,
    /// Full look even without a change.
    pub resync: Duration,
    /// Changes are gathered for this long before a decision.
    pub settle: Duration,
    /// Least time between two status writes of one OS object.
    pub status_gap: Duration,
    /// Cap on requests.
    pub requests_per_second: u32,
    /// Trouble is looked into again after this time.
    pub probe: Duration,
}

impl Options {
    /// The defaults, for an operator of this name.
    pub fn new(lease: LeaseOptions) -> Options {
        Options {
            settings: Settings::default(),
            lease,
            resync: Duration::from_secs(60),
            settle: Duration::from_millis(200),
            status_gap: Duration::from_secs(1),
            requests_per_second: 50,
            probe: Duration::from_secs(60),
        }
    }
}

/// Runs until `stop` fires, then gives the Lease up. `client` must not retry by itself. `listener` serves the pages.
pub async fn run(
    client: Client,
    options: Options,
    listener: Option<tokio::net::TcpListener>,
    mut stop: watch::Receiver<bool>,
) {
    let view = View::new(options.settings.clone());
    let pages = Arc::new(OperatorPages::new(view.clone()));
    let (tell, leader) = watch::channel(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch_cluster(client.clone(), view.clone()));
    tasks.spawn(lease::elect(client.clone(), options.lease.clone(), tell));
    if let Some(listener) = listener {
        tasks.spawn(http::serve(listener, pages.clone()));
    }
    let work = lead(client.clone(), &options, view, pages, leader.clone());
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|s| *s) => {}
    }
    tasks.abort_all();
    if leader.borrow().is_some() {
        lease::release(client, &options.lease).await;
    }
}

async fn lead(
    client: Client,
    o: &Options,
    view: View,
    pages: Arc<OperatorPages>,
    mut leader: watch::Receiver<Option<i64>>,
) {
    let name = o.lease.identity.clone();
    let mut actor = Actor::new(client, view.clone(), o.status_gap, o.requests_per_second, name);
    loop {
        let Ok(epoch) = leader
            .wait_for(Option::is_some)
            .await
            .map(|e| e.unwrap_or_default())
        else {
            return;
        };
        tracing::info!(epoch, "leading");
        view.set_epoch(epoch);
        pages.set_leader(true);
        while !view.synced() {
            if tokio::time::timeout(Duration::from_millis(200), leader.wait_for(Option::is_none))
                .await
                .is_ok()
            {
                break;
            }
        }
        let mut probed = None;
        let mut failures = 0u32;
        while leader.borrow().is_some() {
            let trouble = view.trouble().is_some();
            let due = probed.is_none_or(|at: tokio::time::Instant| at.elapsed() >= o.probe);
            let has_os = view.with(clock::now(), |f| !f.oses.is_empty());
            if (probed.is_none() && has_os) || (trouble && due) {
                actor.probe().await;
                probed = Some(tokio::time::Instant::now());
            }
            let now = clock::now();
            let decision = view.with(now, decide);
            let halted = |uid: &str| {
                view.with(now, |f| {
                    let os = f.oses.iter().find(|os| os.metadata.uid.as_deref() == Some(uid));
                    os.and_then(|os| os.status.as_ref())
                        .is_some_and(|s| is_true(&s.conditions, condition_type::HALTED))
                })
            };
            pages.set_views(
                decision
                    .views
                    .iter()
                    .map(|v| (v.clone(), halted(&v.os.uid)))
                    .collect(),
            );
            let wake = decision.wake;
            let done = actor.act(decision, || leader.borrow().is_some()).await;
            let mut wait = o.resync;
            if let Some(at) = wake {
                let ms = (at.as_millisecond() - clock::now().as_millisecond()).max(0);
                wait = wait.min(Duration::from_millis(ms.unsigned_abs()));
            }
            if let Some(again) = done.again {
                wait = wait.min(again);
            }
            failures = if done.failed { (failures + 1).min(6) } else { 0 };
            if failures > 0 {
                // 1, 2, 4 … 32 s: changes meanwhile do not hurry a server that refuses.
                tokio::time::sleep(Duration::from_millis(500 << failures)).await;
                continue;
            }
            tokio::select! {
                () = view.changed() => {}
                () = tokio::time::sleep(wait.max(Duration::from_millis(20))) => {}
                _ = leader.wait_for(Option::is_none) => {}
            }
            // What changed on its own account (our writes included) is gathered into one decision.
            tokio::time::sleep(o.settle).await;
        }
        pages.set_leader(false);
        tracing::warn!("no longer leading");
    }
}
