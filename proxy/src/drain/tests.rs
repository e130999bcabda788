#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::evict::{Answer, answer, body, path};
use super::filter::{DaemonSets, Verdict, verdict};
use super::plan::{Facts, Plan, Step, Tries, Try, Tuning, note, plan};
use super::*;
use serde_json::json;

fn t(secs: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + secs).unwrap()
}

fn policy() -> Policy {
    Policy::from(&NodePolicy::default())
}

fn forced() -> Policy {
    Policy {
        delete_empty_dir: true,
        evict_unmanaged: true,
        ..policy()
    }
}

fn pod(name: &str) -> PodFact {
    PodFact {
        namespace: "d".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        controller: Some(("ReplicaSet".into(), "rs".into())),
        ready: true,
        ..PodFact::default()
    }
}

fn of_daemonset(name: &str) -> PodFact {
    PodFact {
        controller: Some(("DaemonSet".into(), "ds".into())),
        ..pod(name)
    }
}

fn judge(p: &PodFact, policy: &Policy) -> String {
    let known = DaemonSets::from([
        (("d".into(), "ds".into()), true),
        (("d".into(), "gone".into()), false),
    ]);
    match verdict(p, policy, &known, t(0)) {
        Verdict::Evict => "evict".into(),
        Verdict::Skip(w) => format!("skip: {w}"),
        Verdict::Refuse(r, _) => format!("refuse: {r:?}"),
    }
}

#[test]
fn filters_in_order_and_the_first_no_wins() {
    let skip = Policy {
        skip_wait_secs: 10,
        ..forced()
    };
    let dying = |secs| PodFact {
        deletion: Some(t(secs)),
        ..pod("p")
    };
    // The end of grace may lie in the future (a restart during a drain: KubeOS panicked here).
    assert_eq!(judge(&dying(3600), &skip), "evict");
    assert_eq!(judge(&dying(-10), &skip), "evict");
    assert_eq!(judge(&dying(-11), &skip), "skip: terminating for long");
    assert_eq!(judge(&dying(-1000), &forced()), "evict", "0 = all are waited for");

    assert_eq!(judge(&of_daemonset("p"), &policy()), "skip: DaemonSet");
    let with_data = PodFact {
        empty_dir: true,
        ..of_daemonset("p")
    };
    assert_eq!(
        judge(&with_data, &policy()),
        "skip: DaemonSet",
        "before the emptyDir filter"
    );
    let orphan = PodFact {
        controller: Some(("DaemonSet".into(), "gone".into())),
        ..pod("p")
    };
    assert_eq!(judge(&orphan, &policy()), "refuse: Unmanaged");
    assert_eq!(judge(&orphan, &forced()), "evict");
    let finished = PodFact {
        finished: true,
        ..of_daemonset("p")
    };
    assert_eq!(judge(&finished, &policy()), "evict");

    let mirror = PodFact {
        mirror: true,
        controller: None,
        empty_dir: true,
        ..pod("p")
    };
    assert_eq!(judge(&mirror, &policy()), "skip: mirror pod");
    let local = PodFact {
        empty_dir: true,
        ..pod("p")
    };
    assert_eq!(judge(&local, &policy()), "refuse: LocalData");
    assert_eq!(judge(&local, &forced()), "evict");
    let bare = PodFact {
        controller: None,
        ..pod("p")
    };
    assert_eq!(judge(&bare, &policy()), "refuse: Unmanaged");
    assert_eq!(judge(&bare, &forced()), "evict");
    let done = PodFact {
        finished: true,
        controller: None,
        empty_dir: true,
        ..pod("p")
    };
    assert_eq!(judge(&done, &policy()), "evict");
}

#[test]
fn a_plain_owner_is_no_controller() {
    let p: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "y", "controller": false}]},
        "spec": {"containers": [], "volumes": [{"name": "e", "emptyDir": {}}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let f = PodFact::from(&p);
    assert_eq!(f.controller, None);
    assert!(f.empty_dir && !f.finished && !f.ready);
}

/// Report 26 (kairos 4884): an option never reaches the request.
#[test]
fn report_26_the_bytes_of_an_eviction() {
    let p = pod("p");
    assert_eq!(path(&p, false), "/api/v1/namespaces/d/pods/p/eviction");
    assert_eq!(path(&p, true), "/api/v1/namespaces/d/pods/p/eviction?dryRun=All");
    assert_eq!(
        body(&p, 7),
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "d"},
            "deleteOptions": {"preconditions": {"uid": "uid-p"}, "gracePeriodSeconds": 7}})
    );
    assert_eq!(
        body(&p, 0)["deleteOptions"]["gracePeriodSeconds"],
        0,
        "0 kills at once"
    );
    assert!(body(&p, -1)["deleteOptions"].get("gracePeriodSeconds").is_none());
}

fn status(code: u16, message: &str, cause: Option<(&str, &str)>) -> serde_json::Value {
    let causes: Vec<_> = cause
        .iter()
        .map(|(reason, message)| json!({"reason": reason, "message": message}))
        .collect();
    json!({"kind": "Status", "code": code, "message": message, "details": {"causes": causes}})
}

#[test]
fn answers_mean_what_the_server_means() {
    let limit = "The disruption budget web needs 2 healthy pods and has 2 currently";
    let full = answer(
        429,
        None,
        &status(
            429,
            "Cannot evict pod as it would violate the pod's disruption budget.",
            Some(("DisruptionBudget", limit)),
        ),
    );
    let (reason, pdb, text) = full.blocks(&pod("p")).unwrap();
    assert_eq!(
        (reason, pdb.as_deref(), text.as_str()),
        (Reason::PDBAtLimit, Some("d/web"), limit)
    );
    let fresh = "The disruption budget web is still being processed by the server.";
    let early = answer(
        429,
        Some(10),
        &status(429, "Cannot evict", Some(("DisruptionBudget", fresh))),
    );
    assert_eq!(early.blocks(&pod("p")).unwrap().0, Reason::PDBNotObserved);

    // Report 7 (bottlerocket-update-operator 483): overload says nothing about the pod.
    let busy = answer(429, Some(1), &status(429, "Too many requests", None));
    assert_eq!(busy, Answer::Overload { retry_after: Some(1) });
    assert_eq!(busy.blocks(&pod("p")), None);

    let two =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(
        answer(500, None, &status(500, two, None))
            .blocks(&pod("p"))
            .unwrap()
            .0,
        Reason::MultiplePDBs
    );
    assert!(matches!(
        answer(500, None, &status(500, "etcdserver: timeout", None)),
        Answer::Transient(_)
    ));
    assert!(matches!(answer(504, None, &json!(null)), Answer::Transient(_)));
    assert_eq!(answer(201, None, &json!(null)), Answer::Accepted);
    assert_eq!(answer(404, None, &json!(null)), Answer::Gone);
    assert_eq!(answer(409, None, &json!(null)), Answer::Conflict);
    let ending = status(
        403,
        "forbidden",
        Some(("NamespaceTerminating", "namespace d is being terminated")),
    );
    assert_eq!(answer(403, None, &ending), Answer::Terminating);
    assert_eq!(
        answer(403, None, &status(403, "negative allowance", None))
            .blocks(&pod("p"))
            .unwrap()
            .0,
        Reason::Forbidden
    );
    assert!(matches!(
        answer(400, None, &status(400, "name mismatch", None)),
        Answer::Malformed(_)
    ));
    // KubeVirt answers 429 from a webhook: the machine is being moved, then the pod goes.
    for code in [429, 403, 400] {
        let m = "admission webhook \"virt-launcher-eviction-interceptor.kubevirt.io\" denied the request: Eviction triggered evacuation of VMI";
        let a = answer(code, None, &status(code, m, None));
        assert_eq!(a.blocks(&pod("p")).unwrap().0, Reason::WebhookDenied, "{code}");
    }
}

struct Case {
    pods: Vec<PodFact>,
    tries: Tries,
    policy: Policy,
}

impl Case {
    fn new(pods: &[PodFact]) -> Case {
        Case {
            pods: pods.to_vec(),
            tries: Tries::new(),
            policy: policy(),
        }
    }

    fn plan(&self, now: i64) -> Plan {
        plan(&Facts {
            pods: &self.pods,
            daemonsets: &DaemonSets::new(),
            tries: &self.tries,
            policy: &self.policy,
            started: t(0),
            now: t(now),
            tuning: &Tuning::default(),
        })
    }

    fn answer(&mut self, name: &str, a: Answer, now: i64) {
        let p = self.pods.iter().find(|p| p.name == name).unwrap();
        let n = note(self.tries.get(&p.uid), p, a, t(now), &Tuning::default());
        self.tries.insert(p.uid.clone(), n);
    }

    fn names(&self, p: &Plan) -> Vec<String> {
        p.evict.iter().map(|i| self.pods[*i].name.clone()).collect()
    }
}

fn at_limit() -> Answer {
    Answer::Budget {
        pdb: Some("web".into()),
        not_observed: false,
        retry_after: None,
        message: "full".into(),
    }
}

#[test]
fn one_refusal_and_nothing_is_evicted() {
    let bare = PodFact {
        controller: None,
        ..pod("bare")
    };
    let p = Case::new(&[pod("a"), bare, pod("b")]).plan(0);
    assert_eq!((p.step, p.evict.len()), (Step::Refused, 0));
    assert_eq!(p.blocked.len(), 1);
    assert_eq!(p.blocked[0].reason, Reason::Unmanaged);
}

#[test]
fn ordinary_pods_go_first_then_critical_ones_then_the_operator() {
    let critical = PodFact {
        critical: true,
        ..pod("critical")
    };
    let operator = PodFact {
        namespace: "upgrade-system".into(),
        ..pod("operator")
    };
    let mut c = Case::new(&[operator.clone(), critical.clone(), pod("a")]);
    assert_eq!(c.names(&c.plan(0)), ["a"]);
    c.pods = vec![operator.clone(), critical];
    assert_eq!(c.names(&c.plan(0)), ["critical"]);
    c.pods = vec![operator];
    assert_eq!(c.names(&c.plan(0)), ["operator"]);
    c.pods.clear();
    assert_eq!(c.plan(0).step, Step::Empty);
}

#[test]
fn no_more_than_so_many_at_once_and_stuck_pods_do_not_count() {
    let pods: Vec<_> = (0..10).map(|i| pod(&format!("p{i}"))).collect();
    let mut c = Case::new(&pods);
    c.policy.concurrency = 3;
    assert_eq!(c.plan(0).evict.len(), 3);
    for p in ["p0", "p1"] {
        c.answer(p, Answer::Accepted, 0);
    }
    assert_eq!(c.names(&c.plan(1)), ["p2"]);
    for p in &mut c.pods[..3] {
        p.deletion = Some(t(0));
    }
    c.answer("p2", Answer::Accepted, 0);
    assert_eq!(c.plan(10).evict.len(), 0);
    let late = c.plan(40);
    assert_eq!(late.evict.len(), 3, "three hang: the others go all the same");
    assert_eq!(
        late.blocked
            .iter()
            .filter(|b| b.reason == Reason::StuckTerminating)
            .count(),
        3
    );
}

/// Report 3 (bottlerocket-update-operator 650): the budget allows 0; the report names pod and budget.
#[test]
fn report_3_blocked_by_names_pod_and_budget_and_time_ends_it() {
    let mut c = Case::new(&[pod("a")]);
    c.answer("a", at_limit(), 0);
    let p = c.plan(1);
    assert_eq!((p.step, p.evict.len()), (Step::Go, 0));
    let b = &p.blocked[0];
    assert_eq!(
        (b.pod.as_str(), b.pdb.as_deref(), b.reason),
        ("d/a", Some("d/web"), Reason::PDBAtLimit)
    );
    assert_eq!(b.since, t(0));
    // 5 s, then longer, with jitter, never beyond 30 s (+20 %).
    assert!(p.wake >= t(3) && p.wake <= t(7), "{}", p.wake);
    for n in 1..8 {
        c.answer("a", at_limit(), n * 40);
    }
    let next = c.tries["uid-a"].next;
    assert!(next >= t(7 * 40 + 23) && next <= t(7 * 40 + 37), "{next}");
    assert_eq!(c.plan(300).blocked[0].since, t(0), "since the first refusal");
    let over = c.plan(1800);
    assert_eq!(
        (over.step, over.blocked.len(), over.evict.len()),
        (Step::TimedOut, 1, 0)
    );
}

#[test]
fn the_servers_wish_to_wait_is_honoured() {
    let mut c = Case::new(&[pod("a"), pod("b")]);
    c.answer(
        "a",
        Answer::Overload {
            retry_after: Some(17),
        },
        0,
    );
    assert_eq!(c.tries["uid-a"].next, t(17));
    assert_eq!(c.plan(1).blocked, []);
    c.answer(
        "b",
        Answer::Budget {
            pdb: None,
            not_observed: true,
            retry_after: Some(10),
            message: String::new(),
        },
        0,
    );
    assert!(c.tries["uid-b"].next >= t(10));
    assert_eq!(c.plan(17).evict.len(), 2);
}

#[test]
fn a_malformed_request_is_our_fault_and_ends_it() {
    let mut c = Case::new(&[pod("a")]);
    c.answer("a", Answer::Malformed("name mismatch".into()), 0);
    assert_eq!(c.plan(1).step, Step::Fault);
}

#[test]
fn a_finalizer_is_named() {
    let held = PodFact {
        deletion: Some(t(0)),
        finalizers: vec!["x/y".into()],
        ..pod("a")
    };
    let c = Case::new(&[held]);
    assert_eq!(c.plan(5).blocked, []);
    let p = c.plan(31);
    assert_eq!(p.blocked[0].reason, Reason::Finalizer);
    assert!(p.blocked[0].message.contains("x/y"));
    assert_eq!(p.step, Step::Go);
}

#[test]
fn on_timeout_delete_deletes_once_and_has_an_end() {
    let mut c = Case::new(&[pod("a")]);
    c.policy.on_timeout = OnDrainTimeout::Delete;
    c.answer("a", at_limit(), 1790);
    let p = c.plan(1800);
    assert_eq!((p.step, p.delete.len(), p.evict.len()), (Step::Go, 1, 0));
    c.pods[0].deletion = Some(t(1801));
    assert_eq!(c.plan(1802).delete.len(), 0);
    assert_eq!(c.plan(3600).step, Step::TimedOut);
}

#[test]
fn a_pod_that_dies_already_is_asked_for_once() {
    let dying = PodFact {
        deletion: Some(t(30)),
        ..pod("a")
    };
    let mut c = Case::new(&[dying]);
    assert_eq!(c.names(&c.plan(0)), ["a"]);
    c.answer("a", Answer::Accepted, 0);
    assert_eq!(c.plan(1).evict.len(), 0);
    assert_eq!(c.plan(1).step, Step::Go, "waited for");
}

#[test]
fn errors_that_say_nothing_are_repeated_soon_and_not_reported() {
    let mut c = Case::new(&[pod("a")]);
    c.answer("a", Answer::Transient("HTTP 500".into()), 0);
    let p = c.plan(1);
    assert_eq!((p.blocked.len(), p.step), (0, Step::Go));
    assert_eq!(c.plan(7).evict.len(), 1);
    assert!(matches!(
        &c.tries["uid-a"],
        Try {
            accepted: false,
            refusals: 0,
            ..
        }
    ));
}

#[test]
fn jitter_spreads_and_repeats() {
    let all: Vec<f64> = (0..100).map(|i| jitter("node", i)).collect();
    assert!(all.iter().all(|j| (0.8..=1.2).contains(j)));
    assert!(all.iter().any(|j| *j < 0.85) && all.iter().any(|j| *j > 1.15));
    assert_eq!(jitter("node", 3), jitter("node", 3));
}

#[test]
fn volumes_of_pods_that_stay_may_stay() {
    use super::volumes::{Attached, attached_to, in_the_way};
    use k8s_openapi::api::storage::v1::VolumeAttachment;
    let va = |name: &str, node: &str, attached: bool| -> VolumeAttachment {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"attacher": "a", "nodeName": node,
            "source": {"persistentVolumeName": format!("pv-{name}")}}, "status": {"attached": attached}}),
        )
        .unwrap()
    };
    let all = [va("1", "n", true), va("2", "n", false), va("3", "other", true)];
    let mine = attached_to("n", &all);
    assert_eq!(
        mine,
        [Attached {
            name: "1".into(),
            volume: "pv-1".into()
        }]
    );
    assert_eq!(in_the_way(mine.clone(), &[]).len(), 1);
    let staying = PodFact {
        claims: vec!["c".into()],
        ..of_daemonset("p")
    };
    assert_eq!(in_the_way(mine, &[staying]), []);
}

/// Report 27 (kubernetes 80389): a pod that is not ready waits behind its budget for ever; told as such, with what cures it.
#[test]
fn report_27_an_unready_pod_behind_its_budget_is_named_with_the_cure() {
    let unready = PodFact {
        ready: false,
        ..pod("p")
    };
    let full = answer(
        429,
        None,
        &status(
            429,
            "Cannot evict pod",
            Some((
                "DisruptionBudget",
                "The disruption budget web needs 2 healthy pods and has 1 currently",
            )),
        ),
    );
    let (reason, pdb, text) = full.blocks(&unready).unwrap();
    assert_eq!(
        (reason, pdb.as_deref()),
        (Reason::UnreadyProtected, Some("d/web"))
    );
    assert!(text.contains("AlwaysAllow"), "{text}");
    assert_eq!(
        full.blocks(&pod("p")).unwrap().0,
        Reason::PDBAtLimit,
        "a ready one waits for its turn"
    );
    // Reported while it lasts, and ended by the time limit.
    let mut c = Case::new(&[unready]);
    c.answer("p", full, 0);
    assert_eq!(c.plan(1).blocked[0].reason, Reason::UnreadyProtected);
    assert_eq!(c.plan(1800).step, Step::TimedOut);
}

/// KF-R1: `evictpodforce: false` works: pods of DaemonSets, the proxy's own among them, stay and stop nothing.
#[test]
fn kf_r1_without_force_daemonset_pods_stay_and_the_others_go() {
    let plain = Policy::from(&NodePolicy::default());
    assert!(!plain.delete_empty_dir && !plain.evict_unmanaged);
    let own = PodFact {
        empty_dir: true,
        ..of_daemonset("upgrade-proxy-x")
    };
    let pods = [own, pod("app")];
    let known = DaemonSets::from([(("d".into(), "ds".into()), true)]);
    let at = |pods: &[PodFact], tries: &Tries| {
        plan(&Facts {
            pods,
            daemonsets: &known,
            tries,
            policy: &plain,
            started: t(0),
            now: t(0),
            tuning: &Tuning::default(),
        })
    };
    let first = at(&pods, &Tries::new());
    assert_eq!((first.step, first.evict), (Step::Go, vec![1]));
    assert_eq!(
        at(&pods[..1], &Tries::new()).step,
        Step::Empty,
        "what stays is nothing left to do"
    );
}

/// KF-R4: a pod that is terminating already, with a finalizer and an end of grace in the future (a restart in the middle of a
/// drain) or long ago: waited for, within the time limit; no arithmetic fails.
#[test]
fn kf_r4_terminating_pods_are_waited_for_and_no_longer_than_the_limit() {
    for end in [-100_000, -1, 0, 1, 3600, i64::from(u32::MAX)] {
        let dying = PodFact {
            deletion: Some(t(end)),
            ..pod("p")
        };
        for wait in [0, 10, 86_400] {
            let p = Policy {
                skip_wait_secs: wait,
                ..forced()
            };
            let _ = judge(&dying, &p);
        }
        let c = Case::new(&[dying]);
        assert_ne!(c.plan(0).step, Step::Fault);
        assert_eq!(c.plan(1800).step, Step::TimedOut, "{end}");
    }
}

/// Volumes that the attach controller deals with, and claims of a pod: by these the drain knows whether it has to wait for
/// volumes at all.
#[test]
fn volumes_that_may_be_attached() {
    let fact = |volume: serde_json::Value| {
        let p: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"containers": [],
            "volumes": [volume]}}))
        .unwrap();
        PodFact::from(&p)
    };
    for local in [
        json!({"name": "v", "emptyDir": {}}),
        json!({"name": "v", "configMap": {"name": "c"}}),
        json!({"name": "v", "secret": {"secretName": "s"}}),
        json!({"name": "v", "projected": {"sources": []}}),
        json!({"name": "v", "downwardAPI": {}}),
        json!({"name": "v", "hostPath": {"path": "/x"}}),
    ] {
        let f = fact(local.clone());
        assert!(!f.attachable && f.claims.is_empty(), "{local}");
    }
    let claim = fact(json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}));
    assert!(claim.attachable && claim.claims == ["data"]);
    // Kubernetes names the claim of a generic ephemeral volume so.
    let own = fact(json!({"name": "v", "ephemeral": {}}));
    assert!(own.attachable && own.claims == ["web-v"]);
    let inline = fact(json!({"name": "v", "awsElasticBlockStore": {"volumeID": "x"}}));
    assert!(inline.attachable && inline.claims.is_empty());
}
