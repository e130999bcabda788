//! What the operator shows on its port: one series per OS object and phase, never one per node.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::http::{Answer, MetricsPage, Pages};

use super::decide::OsView;
use super::observe::View;

/// Standings that always have a series, so that a graph never has gaps.
const PHASES: [&str; 8] = [
    "UpToDate",
    "Waiting",
    "Staging",
    "Ready",
    "Updating",
    "Releasing",
    "Failed",
    "NoAgent",
];

struct State {
    views: Vec<(OsView, bool)>,
    leader: bool,
    decisions: u64,
}

/// The operator's pages.
pub(crate) struct OperatorPages {
    view: View,
    state: Mutex<State>,
}

impl OperatorPages {
    /// Nothing known yet.
    pub(crate) fn new(view: View) -> OperatorPages {
        OperatorPages {
            view,
            state: Mutex::new(State {
                views: Vec::new(),
                leader: false,
                decisions: 0,
            }),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// We lead, or not.
    pub(crate) fn set_leader(&self, leader: bool) {
        self.state().leader = leader;
    }

    /// After a decision: the views, each with whether it is halted.
    pub(crate) fn set_views(&self, views: Vec<(OsView, bool)>) {
        let mut state = self.state();
        state.views = views;
        state.decisions += 1;
    }
}

impl Pages for OperatorPages {
    fn metrics(&self) -> String {
        let state = self.state();
        let mut page = MetricsPage::default();
        let name = |v: &OsView| format!("{}/{}", v.os.namespace, v.os.name);
        page.family(
            "os_operator_nodes",
            "gauge",
            "Selected nodes by what they are doing.",
        );
        for (view, _) in &state.views {
            let mut counts: BTreeMap<&str, usize> = PHASES.iter().map(|p| (*p, 0)).collect();
            for node in &view.nodes {
                *counts.entry(node.standing.as_str()).or_default() += 1;
            }
            for (phase, n) in counts {
                page.sample(
                    "os_operator_nodes",
                    &[("os", &name(view)), ("phase", phase)],
                    n as f64,
                );
            }
        }
        page.family("os_operator_slots_in_use", "gauge", "Grants in force.");
        for (view, _) in &state.views {
            let n = view.nodes.iter().filter(|n| n.standing == "Updating").count();
            page.sample("os_operator_slots_in_use", &[("os", &name(view))], n as f64);
        }
        page.family(
            "os_operator_unavailable_nodes",
            "gauge",
            "Selected nodes that are unavailable for any reason, grant holders included.",
        );
        for (view, _) in &state.views {
            page.sample(
                "os_operator_unavailable_nodes",
                &[("os", &name(view))],
                view.unavailable as f64,
            );
        }
        page.family(
            "os_operator_rollout_halted",
            "gauge",
            "1 while the failure budget is used up.",
        );
        for (view, halted) in &state.views {
            page.sample(
                "os_operator_rollout_halted",
                &[("os", &name(view))],
                f64::from(u8::from(*halted)),
            );
        }
        page.family("os_operator_leader", "gauge", "1 on the operator that leads.");
        page.sample("os_operator_leader", &[], f64::from(u8::from(state.leader)));
        page.family(
            "os_operator_decisions_total",
            "counter",
            "Decisions made by this process.",
        );
        page.sample("os_operator_decisions_total", &[], state.decisions as f64);
        page.finish()
    }

    fn ready(&self) -> Answer {
        if let Some(t) = self.view.trouble() {
            return Answer::NotReady(format!("{}: {}\n", t.reason, t.message));
        }
        if !self.view.synced() {
            return Answer::NotReady(
                "the first lists of nodes, os and osinstances have not arrived yet\n".into(),
            );
        }
        Answer::Good("ok\n".into())
    }
}
