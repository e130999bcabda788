//! Why a trial ended, and whether its digest is denied.

use super::{Node, SILENT_TRIES, ops};
use crate::state::{Armed, Cause, FailedDigest, Failure, Verdict};
use os_proto::digest::Sha256Digest;
use os_proto::env_block::TRIES;

/// A trial that ended without a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// Why.
    pub cause: Cause,
    /// For people.
    pub detail: String,
    /// Tries used up.
    pub tries: u32,
    /// Tries that never reached the agent.
    pub silent: u32,
    /// The last thing that any try reported.
    pub last_sign: String,
}

/// Decides the cause from what is known at the boot after.
pub(super) fn judge(armed: Option<&Armed>, left: Option<u8>, panic: Option<&str>) -> Ended {
    let used = u32::from(TRIES.saturating_sub(left.unwrap_or(0)));
    let tries = armed.map_or(&[][..], |a| a.tries.as_slice());
    let reached = u32::try_from(tries.len()).unwrap_or(u32::MAX).min(used);
    let silent = used - reached;
    let last_sign = tries
        .last()
        .map(|t| format!("{} at {} s after boot", t.last, t.last_secs))
        .unwrap_or_default();
    let ended = |cause, detail: String| Ended {
        cause,
        detail,
        tries: used,
        silent: if cause == Cause::NoReport { silent } else { 0 },
        last_sign: last_sign.clone(),
    };
    if let Some(Verdict { cause, detail }) = armed.and_then(|a| a.verdict.as_ref()) {
        return ended(*cause, detail.clone());
    }
    if let Some(record) = panic {
        return ended(Cause::Panic, format!("kernel panic: {}", record.trim()));
    }
    if used > 0 && silent == 0 {
        return ended(
            Cause::Interrupted,
            format!(
                "all {used} tries reached the agent and ended without a verdict; last sign of life: {last_sign}"
            ),
        );
    }
    let seen = if last_sign.is_empty() {
        "none".to_owned()
    } else {
        last_sign.clone()
    };
    ended(
        Cause::NoReport,
        format!(
            "{silent} of {used} tries never reached the agent (a power cut looks the same); last sign of life: {seen}"
        ),
    )
}

/// Records the end of a trial: failure, failed digest with its denial, and the operation's outcome. Leaves `armed` alone.
pub(super) fn record(node: &mut Node, now: i64, armed: Option<&Armed>, ended: &Ended) {
    let slot = armed.map(|a| a.slot).or_else(|| node.env.and_then(|e| e.trial()));
    let digest = armed
        .and_then(|a| a.digest)
        .or_else(|| slot.and_then(|s| node.record(s)).map(|r| r.shown()));
    let version = armed
        .map(|a| a.version.clone())
        .filter(|v| !v.is_empty())
        .or_else(|| slot.and_then(|s| node.record(s)).map(|r| r.version.clone()))
        .unwrap_or_default();
    if let Some(d) = digest {
        deny(node, now, d, &version, ended);
    }
    node.state.last_failure = Some(Failure {
        code: String::new(),
        message: format!(
            "slot {} fell back: {}: {}",
            slot.map_or("?", |s| s.letter()),
            ended.cause.as_str(),
            ended.detail
        ),
        at_unix: now,
        digest: digest.map(|d| d.to_string()).unwrap_or_default(),
        cause: Some(ended.cause),
        last_sign_of_life: ended.last_sign.clone(),
        tries: ended.tries,
        slot,
        unknown: Default::default(),
    });
    if let Some(a) = armed {
        ops::remark(
            node,
            &a.op_id,
            format!("fell back: {}: {}", ended.cause.as_str(), ended.detail),
        );
    }
    node.state.staged = None;
}

fn deny(node: &mut Node, now: i64, digest: Sha256Digest, version: &str, ended: &Ended) {
    let list = &mut node.state.failed_digests;
    let mut entry = match list.iter().position(|f| f.digest == digest) {
        Some(i) => list.remove(i),
        None => FailedDigest {
            digest,
            version: String::new(),
            cause: ended.cause,
            detail: String::new(),
            count: 0,
            silent_tries: 0,
            at_unix: 0,
            denied: false,
            unknown: Default::default(),
        },
    };
    entry.version = version.to_owned();
    entry.cause = ended.cause;
    entry.detail.clone_from(&ended.detail);
    entry.count = entry.count.saturating_add(1);
    entry.silent_tries = entry.silent_tries.saturating_add(ended.silent);
    entry.at_unix = now;
    entry.denied |= match ended.cause {
        Cause::Panic | Cause::HealthFailed | Cause::Deadline | Cause::RolledBack => true,
        Cause::NoReport => entry.silent_tries >= SILENT_TRIES,
        Cause::Interrupted | Cause::NotStarted => false,
    };
    list.push(entry);
    while list.len() > crate::state::MAX_FAILED {
        list.remove(0);
    }
}
