//! What must always hold, read from the server's audit log: not from what the programs say of themselves.

use super::audit::{Audit, Call};
use anyhow::{Result, ensure};
use os_proxy::api::ANN_CORDONED_BY;
use serde_json::Value;
use std::collections::BTreeSet;

/// Who did what in the log.
#[derive(Debug, Clone, Copy)]
pub struct Players<'a> {
    /// User of the proxies.
    pub proxy: &'a str,
    /// User of the operators.
    pub operator: &'a str,
}

/// What was seen on the way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Different grants.
    pub grants: usize,
    /// Most nodes that were cordoned by us at once.
    pub most_down: usize,
    /// Writes of the ledger that held a grant.
    pub ledgers: usize,
}

/// The grants that a status write left in the ledger: node and attempt.
pub fn grants(call: &Call) -> BTreeSet<(String, u64)> {
    let list = call.response.pointer("/status/grants").and_then(Value::as_array);
    let text = |g: &Value, key: &str| g.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |g: &Value, key: &str| g.get(key).and_then(Value::as_u64).unwrap_or(0);
    list.into_iter()
        .flatten()
        .map(|g| (text(g, "node"), number(g, "attempt")))
        .collect()
}

/// I1 (never more than `limit` nodes granted or cordoned by us), I3 (only a marked cordon is lifted), and no eviction without a
/// cordon, over a log with one OS object.
///
/// # Errors
/// One of them was broken, with the request that shows it.
pub fn check(audit: &Audit, who: Players<'_>, limit: usize) -> Result<Seen> {
    let mut cordoned: BTreeSet<String> = BTreeSet::new();
    let mut seen = Seen::default();
    let mut all = BTreeSet::new();
    for c in audit.calls.iter().filter(|c| c.changed() || c.unsure()) {
        if c.resource == "nodes" && (c.user == who.proxy || c.user == who.operator) {
            let mark = c
                .request
                .pointer("/metadata/annotations")
                .and_then(|a| a.get(ANN_CORDONED_BY));
            match c.request.pointer("/spec/unschedulable") {
                Some(Value::Bool(true)) => {
                    ensure!(
                        mark.is_some_and(Value::is_string),
                        "a cordon without its mark: {c:?}"
                    );
                    if c.changed() {
                        cordoned.insert(c.name.clone());
                    }
                }
                Some(_) => {
                    ensure!(
                        mark.is_some_and(Value::is_null),
                        "I3: uncordon without taking our mark: {c:?}"
                    );
                    // Counted as down are only those that surely are: a cut connection hides whether this was stored.
                    cordoned.remove(&c.name);
                }
                None => {}
            }
            seen.most_down = seen.most_down.max(cordoned.len());
            ensure!(cordoned.len() <= limit, "I1: {cordoned:?} are down at {}", c.at);
        }
        if c.resource == "os/status" && c.user == who.operator && c.changed() {
            let now = grants(c);
            ensure!(now.len() <= limit, "I1: {} grants at {}", now.len(), c.at);
            seen.ledgers += usize::from(!now.is_empty());
            all.extend(now);
        }
        if c.resource == "pods/eviction" && c.user == who.proxy && c.changed() {
            ensure!(!cordoned.is_empty(), "an eviction without a cordon: {c:?}");
        }
    }
    seen.grants = all.len();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(user: &str, resource: &str, name: &str, request: Value, response: Value) -> Call {
        Call {
            verb: "patch".into(),
            resource: resource.into(),
            namespace: String::new(),
            name: name.into(),
            user: user.into(),
            agent: String::new(),
            code: 200,
            at: String::new(),
            uri: String::new(),
            request,
            response,
        }
    }

    const WHO: Players<'_> = Players {
        proxy: "p",
        operator: "o",
    };

    fn cordon(node: &str) -> Call {
        let body =
            json!({"metadata": {"annotations": {ANN_CORDONED_BY: "u/1"}}, "spec": {"unschedulable": true}});
        call("p", "nodes", node, body, Value::Null)
    }

    fn ledger(nodes: &[&str]) -> Call {
        let list: Vec<Value> = nodes.iter().map(|n| json!({"node": n, "attempt": 1})).collect();
        call(
            "o",
            "os/status",
            "x",
            Value::Null,
            json!({"status": {"grants": list}}),
        )
    }

    fn over(calls: Vec<Call>, limit: usize) -> Result<Seen> {
        check(&Audit { calls }, WHO, limit)
    }

    #[test]
    fn the_checker_can_fail() {
        let two = || vec![ledger(&["a", "b"]), cordon("a"), cordon("b")];
        let seen = over(two(), 2).unwrap();
        assert_eq!((seen.grants, seen.most_down, seen.ledgers), (2, 2, 1));
        assert!(over(two(), 1).unwrap_err().to_string().contains("I1"));
        assert!(over(vec![cordon("a"), cordon("b")], 1).is_err());
        let naked = json!({"spec": {"unschedulable": null}});
        let lifted = call("p", "nodes", "a", naked.clone(), Value::Null);
        assert!(
            over(vec![cordon("a"), lifted], 1)
                .unwrap_err()
                .to_string()
                .contains("I3")
        );
        let foreign = call("a human", "nodes", "a", naked, Value::Null);
        assert!(over(vec![cordon("a"), foreign], 1).is_ok());
        let eviction = call("p", "pods/eviction", "x", Value::Null, Value::Null);
        assert!(over(vec![eviction], 1).is_err());
    }

    #[test]
    fn an_uncordon_whose_answer_was_cut_off_may_have_happened_and_a_cordon_need_not() {
        let with = |code: u16, mut c: Call| {
            c.code = code;
            c
        };
        let body =
            json!({"metadata": {"annotations": {ANN_CORDONED_BY: null}}, "spec": {"unschedulable": null}});
        let lift = || call("p", "nodes", "a", body.clone(), Value::Null);
        assert!(over(vec![cordon("a"), with(504, lift()), cordon("b")], 1).is_ok());
        assert!(over(vec![cordon("a"), with(504, cordon("b"))], 1).is_ok());
        assert!(
            over(vec![cordon("a"), with(409, lift()), cordon("b")], 1).is_err(),
            "refused for sure"
        );
    }

    #[test]
    fn a_dry_run_of_the_ledger_is_no_grant() {
        let mut probe = ledger(&["a", "b"]);
        probe.uri = "/apis/x?dryRun=All".into();
        assert_eq!(over(vec![probe], 1).unwrap().grants, 0);
    }
}
