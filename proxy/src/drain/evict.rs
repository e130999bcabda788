//! The eviction request and what its answers mean (PURE).
//!
//! Format: policy/v1 `Eviction` (Kubernetes 1.22 and later). `deleteOptions` is spelled in camel case: other spellings are
//! ignored by the server without a word, grace period and UID with them.

use super::{PodFact, Reason};
use serde_json::{Value, json};

/// Path of the request.
pub fn path(pod: &PodFact, dry_run: bool) -> String {
    let query = if dry_run { "?dryRun=All" } else { "" };
    format!(
        "/api/v1/namespaces/{}/pods/{}/eviction{query}",
        pod.namespace, pod.name
    )
}

/// Body of the request. A grace period of 0 kills at once; below 0 the pod's own holds.
pub fn body(pod: &PodFact, grace_secs: i64) -> Value {
    let mut options = json!({"preconditions": {"uid": pod.uid}});
    if grace_secs >= 0 {
        options["gracePeriodSeconds"] = json!(grace_secs);
    }
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    })
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Accepted: the pod will go.
    Accepted,
    /// There is no such pod.
    Gone,
    /// There is one of this name with another uid, or it changed: look again.
    Conflict,
    /// A budget does not allow it now.
    Budget {
        /// Name of the budget, where the server says it.
        pdb: Option<String>,
        /// Not looked at by its controller yet.
        not_observed: bool,
        /// Seconds the server asks to wait.
        retry_after: Option<u32>,
        /// What the server says.
        message: String,
    },
    /// The server has no room for requests (priority and fairness); says nothing about the pod.
    Overload {
        /// Seconds the server asks to wait.
        retry_after: Option<u32>,
    },
    /// The namespace is being deleted, so the pod will be too.
    Terminating,
    /// Several budgets match.
    MultipleBudgets(String),
    /// Not allowed.
    Forbidden(String),
    /// An admission webhook says no.
    Webhook(String),
    /// Malformed: a fault of ours.
    Malformed(String),
    /// Everything that may go well next time: 500 without several budgets, 503, 504, broken connections.
    Transient(String),
}

/// Reads an answer: HTTP status, `Retry-After` in seconds, body (a `Status` object or nothing).
pub fn answer(code: u16, retry_after: Option<u32>, body: &Value) -> Answer {
    let message = body["message"].as_str().unwrap_or_default().to_owned();
    let causes = || body["details"]["causes"].as_array().into_iter().flatten();
    let cause = |reason: &str| causes().find(|c| c["reason"] == reason);
    let retry_after = retry_after.or_else(|| {
        body["details"]["retryAfterSeconds"]
            .as_u64()
            .and_then(|s| u32::try_from(s).ok())
            .filter(|s| *s > 0)
    });
    match code {
        200..300 => Answer::Accepted,
        404 => Answer::Gone,
        409 => Answer::Conflict,
        // A webhook may use any status, 429 too (virtual machines are moved away, then the pod goes).
        400..500 if message.starts_with("admission webhook ") => Answer::Webhook(message),
        429 => match cause("DisruptionBudget") {
            Some(c) => {
                let why = c["message"].as_str().unwrap_or_default();
                Answer::Budget {
                    pdb: budget_name(why),
                    not_observed: why.contains("still being processed"),
                    retry_after,
                    message: if why.is_empty() { message } else { why.to_owned() },
                }
            }
            None => Answer::Overload { retry_after },
        },
        500 if message.contains("more than one PodDisruptionBudget") => Answer::MultipleBudgets(message),
        403 if cause("NamespaceTerminating").is_some() => Answer::Terminating,
        403 | 401 => Answer::Forbidden(message),
        400 | 422 => Answer::Malformed(message),
        _ => Answer::Transient(format!("HTTP {code}: {message}")),
    }
}

/// `The disruption budget NAME needs 2 healthy pods and has 2 currently`.
fn budget_name(cause: &str) -> Option<String> {
    let mut words = cause.strip_prefix("The disruption budget ")?.split_whitespace();
    words.next().map(str::to_owned)
}

impl Answer {
    /// Why the pod is in the way, if the answer says so, with the budget and a sentence.
    pub fn blocks(&self, pod: &PodFact) -> Option<(Reason, Option<String>, String)> {
        match self {
            Answer::Budget {
                pdb,
                not_observed,
                message,
                ..
            } => {
                let pdb = pdb.as_ref().map(|p| format!("{}/{p}", pod.namespace));
                Some(if *not_observed {
                    (Reason::PDBNotObserved, pdb, message.clone())
                } else if !pod.ready {
                    let hint = "the pod is not ready, yet its budget protects it; unhealthyPodEvictionPolicy: AlwaysAllow would let it go";
                    (Reason::UnreadyProtected, pdb, format!("{message}; {hint}"))
                } else {
                    (Reason::PDBAtLimit, pdb, message.clone())
                })
            }
            Answer::MultipleBudgets(m) => Some((
                Reason::MultiplePDBs,
                None,
                format!("{m} Leave one budget for this pod."),
            )),
            Answer::Forbidden(m) => Some((Reason::Forbidden, None, m.clone())),
            Answer::Webhook(m) => Some((Reason::WebhookDenied, None, m.clone())),
            _ => None,
        }
    }
}
