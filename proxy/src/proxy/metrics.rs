//! What `/metrics` says about this proxy. Without a node label: the scraper adds one.

use crate::api::Phase;
use crate::drain::evict::Answer;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// One process, one set of numbers.
#[derive(Debug, Default)]
struct Numbers {
    rounds: AtomicU64,
    phase: AtomicU64,
    agent_up: AtomicU64,
    stage_bytes: AtomicU64,
    drain_ms: AtomicU64,
    blocked: AtomicU64,
    downtime_secs: AtomicU64,
    evictions: [AtomicU64; CODES.len()],
}

const CODES: [&str; 8] = [
    "accepted",
    "gone",
    "conflict",
    "budget",
    "overload",
    "forbidden",
    "webhook",
    "error",
];
const PHASES: [Phase; 14] = [
    Phase::Idle,
    Phase::Staging,
    Phase::Staged,
    Phase::Granted,
    Phase::Draining,
    Phase::Drained,
    Phase::Rebooting,
    Phase::Verifying,
    Phase::Committing,
    Phase::RollingBack,
    Phase::Uncordoning,
    Phase::Aborting,
    Phase::Failed,
    Phase::Configuring,
];

static NUMBERS: std::sync::LazyLock<Numbers> = std::sync::LazyLock::new(Numbers::default);

/// Counts an answer to an eviction.
pub(crate) fn eviction(answer: &Answer) {
    let i = match answer {
        Answer::Accepted | Answer::Terminating => 0,
        Answer::Gone => 1,
        Answer::Conflict => 2,
        Answer::Budget { .. } | Answer::MultipleBudgets(_) => 3,
        Answer::Overload { .. } => 4,
        Answer::Forbidden(_) => 5,
        Answer::Webhook(_) => 6,
        Answer::Malformed(_) | Answer::Transient(_) => 7,
    };
    NUMBERS.evictions[i].fetch_add(1, Ordering::Relaxed);
}

/// The phase, whether the agent answers, and how many pods are in the way.
pub(crate) fn state(phase: Phase, agent_up: bool, blocked: usize) {
    let n = &*NUMBERS;
    let i = PHASES.iter().position(|p| *p == phase).unwrap_or(0);
    n.rounds.fetch_add(1, Ordering::Relaxed);
    n.phase.store(i as u64, Ordering::Relaxed);
    n.agent_up.store(u64::from(agent_up), Ordering::Relaxed);
    n.blocked.store(blocked as u64, Ordering::Relaxed);
}

/// Bytes written by a Stage.
pub(crate) fn staged(bytes: u64) {
    NUMBERS.stage_bytes.fetch_add(bytes, Ordering::Relaxed);
}

/// How long the last drain took, in milliseconds.
pub(crate) fn drained(ms: u64) {
    NUMBERS.drain_ms.store(ms, Ordering::Relaxed);
}

/// Seconds from Boot until the node was schedulable again.
pub(crate) fn downtime(secs: u64) {
    NUMBERS.downtime_secs.store(secs, Ordering::Relaxed);
}

/// The pages of os-proxy.
#[derive(Debug, Clone, Copy)]
pub struct ProxyPages;

impl crate::http::Pages for ProxyPages {
    fn metrics(&self) -> String {
        render()
    }

    /// Ready once the loop has turned. A node without an agent is no reason to hold up the DaemonSet's own update.
    fn ready(&self) -> crate::http::Answer {
        if NUMBERS.rounds.load(Ordering::Relaxed) > 0 {
            crate::http::Answer::Good("ok\n".into())
        } else {
            crate::http::Answer::NotReady("starting\n".into())
        }
    }
}

/// Prometheus text format.
pub fn render() -> String {
    let n = &*NUMBERS;
    let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
    let mut s = String::new();
    let mut gauge = |name: &str, help: &str, kind: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = writeln!(s, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    gauge(
        "os_proxy_agent_up",
        "The agent on this node answers.",
        "gauge",
        get(&n.agent_up) as f64,
    );
    gauge(
        "os_proxy_stage_bytes_total",
        "Bytes written into the inactive slot.",
        "counter",
        get(&n.stage_bytes) as f64,
    );
    gauge(
        "os_proxy_drain_duration_seconds",
        "How long the last drain took.",
        "gauge",
        get(&n.drain_ms) as f64 / 1000.0,
    );
    gauge(
        "os_proxy_drain_blocked_pods",
        "Pods in the way of the drain.",
        "gauge",
        get(&n.blocked) as f64,
    );
    gauge(
        "os_proxy_node_downtime_seconds",
        "From the order to boot until the node was schedulable again, last time.",
        "gauge",
        get(&n.downtime_secs) as f64,
    );
    let _ = writeln!(
        s,
        "# HELP os_proxy_evictions_total Answers to evictions.\n# TYPE os_proxy_evictions_total counter"
    );
    for (code, v) in CODES.iter().zip(&n.evictions) {
        let _ = writeln!(s, "os_proxy_evictions_total{{code=\"{code}\"}} {}", get(v));
    }
    let _ = writeln!(
        s,
        "# HELP os_proxy_phase 1 for the phase this node is in.\n# TYPE os_proxy_phase gauge"
    );
    for (i, p) in PHASES.iter().enumerate() {
        let _ = writeln!(
            s,
            "os_proxy_phase{{phase=\"{p:?}\"}} {}",
            u8::from(get(&n.phase) == i as u64)
        );
    }
    s
}
