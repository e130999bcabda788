//! How a node is drained and when it counts as good: the spec's words with every default filled in.

use super::{Notes, bounded, expected, one_of, select, span};
use crate::api::{NodePolicy, OnDrainTimeout, OsSpec};
use crate::operator::facts::Settings;

pub(super) fn policy(spec: &OsSpec, serial: bool, settings: &Settings, n: &mut Notes) -> NodePolicy {
    let d = NodePolicy::default();
    let drain = spec.drain.clone().unwrap_or_default();
    let health = spec.health.clone().unwrap_or_default();
    let ontimeout = match one_of(
        drain.ontimeout.as_deref(),
        "drain.ontimeout",
        &["abort", "delete", "reboot"],
        n,
    ) {
        "delete" => OnDrainTimeout::Delete,
        "reboot" => OnDrainTimeout::Reboot,
        _ => OnDrainTimeout::Abort,
    };
    let default_pods = if spec.evictpodforce {
        ["evict", "error"]
    } else {
        ["error", "evict"]
    };
    let unmanaged = one_of(
        drain.unmanagedpods.as_deref(),
        "drain.unmanagedpods",
        &default_pods,
        n,
    );
    let detach = one_of(
        drain.ondetachtimeout.as_deref(),
        "drain.ondetachtimeout",
        &["proceed", "abort"],
        n,
    );
    let unreachable = one_of(
        health.onapiunreachable.as_deref(),
        "health.onapiunreachable",
        &["keep", "rollback"],
        n,
    );
    if let Some(s) = &drain.podselector
        && let Err(p) = select::labels(s, "drain.podselector")
    {
        n.problems.push(p);
    }
    let readyseconds = bounded(
        health.readyseconds,
        "health.readyseconds",
        d.readyseconds,
        0,
        86_400,
        n,
    );
    let healthtimeoutseconds = span(
        health.timeout.as_deref(),
        "health.timeout",
        d.healthtimeoutseconds,
        n,
    );
    if healthtimeoutseconds < readyseconds {
        n.wrong(
            "health.timeout",
            format!("{healthtimeoutseconds} s is shorter than readyseconds, {readyseconds} s"),
        );
    }
    let least = 3 * (healthtimeoutseconds + settings.boot_margin_secs);
    let reboottimeoutseconds = span(
        spec.reboottimeout.as_deref(),
        "reboottimeout",
        d.reboottimeoutseconds.max(least),
        n,
    );
    if reboottimeoutseconds < least {
        n.wrong(
            "reboottimeout",
            format!("{reboottimeoutseconds} s does not hold three boots with their health timeouts; at least {least}s, or shorten health.timeout"),
        );
    }
    for (i, ds) in health.daemonsets.iter().flatten().enumerate() {
        if ds.split('/').count() != 2 || ds.split('/').any(str::is_empty) {
            n.wrong(format!("health.daemonsets[{i}]"), expected("namespace/name", ds));
        }
    }
    NodePolicy {
        draintimeoutseconds: span(
            drain.timeout.as_deref(),
            "drain.timeout",
            d.draintimeoutseconds,
            n,
        ),
        ontimeout,
        graceperiodseconds: bounded(
            drain.graceperiodseconds,
            "drain.graceperiodseconds",
            -1,
            -1,
            86_400,
            n,
        ),
        deleteemptydirdata: drain.deleteemptydirdata.unwrap_or(spec.evictpodforce),
        evictunmanagedpods: unmanaged == "evict",
        skipwaitfordeleteseconds: bounded(
            drain.skipwaitfordeleteseconds,
            "drain.skipwaitfordeleteseconds",
            0,
            0,
            86_400,
            n,
        ),
        podselector: drain.podselector,
        concurrency: bounded(drain.concurrency, "drain.concurrency", d.concurrency, 1, 1000, n),
        volumedetachtimeoutseconds: span(
            drain.volumedetachtimeout.as_deref(),
            "drain.volumedetachtimeout",
            d.volumedetachtimeoutseconds,
            n,
        ),
        proceedwithvolumes: detach == "proceed",
        reboottimeoutseconds,
        readyseconds,
        healthtimeoutseconds,
        daemonsets: health.daemonsets,
        annotationgates: health.annotationgates,
        rollbackonapiunreachable: unreachable == "rollback",
        serial,
    }
}
