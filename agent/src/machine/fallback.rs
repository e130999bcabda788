//! Why a trial ended, and whether its digest is denied.

use super::{Node, SILENT_TRIES, ops};
use crate::evidence::{Evidence, Mark, Sign};
use crate::state::{Armed, Cause, FailedDigest, Failure, Try, Verdict};
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
    /// The kernel's last lines, after a panic.
    pub kernel_lines: Vec<String>,
}

/// Decides the cause from what is known at the boot after. What was decided counts first, then what was recorded (a
/// panic, the early timer), and only then what silence may mean.
pub(super) fn judge(armed: Option<&Armed>, left: Option<u8>, evidence: &Evidence) -> Ended {
    let used = u32::from(TRIES.saturating_sub(left.unwrap_or(0)));
    let tries = armed.map_or(&[][..], |a| a.tries.as_slice());
    let reached = u32::try_from(tries.len()).unwrap_or(u32::MAX).min(used);
    let silent = used - reached;
    let (last_sign, mark) = last_sign(tries, &evidence.signs);
    let ended = |cause, detail: String| Ended {
        cause,
        detail,
        tries: used,
        silent: if cause == Cause::NoReport { silent } else { 0 },
        last_sign: last_sign.clone(),
        kernel_lines: Vec::new(),
    };
    if let Some(Verdict { cause, detail }) = armed.and_then(|a| a.verdict.as_ref()) {
        return ended(*cause, detail.clone());
    }
    let armed_unix = armed.map_or(0, |a| a.armed_unix);
    let newest = evidence.panic.as_ref().filter(|p| p.may_follow(armed_unix));
    if let Some(p) = newest.or(armed.and_then(|a| a.panic.as_ref())) {
        let mut e = ended(Cause::Panic, p.reason.trim().to_owned());
        e.kernel_lines.clone_from(&p.lines);
        return e;
    }
    let seen = if last_sign.is_empty() { "none" } else { &last_sign };
    if mark == Some(Mark::Deadline) {
        let agent = if silent > 0 {
            "the agent never started in it"
        } else {
            "the agent gave no verdict"
        };
        return ended(
            Cause::Deadline,
            format!("the early timer ended the last of {used} tries, {agent}; last sign of life: {seen}"),
        );
    }
    if used > 0 && silent == 0 {
        return ended(
            Cause::Interrupted,
            format!(
                "all {used} tries reached the agent and ended without a verdict; last sign of life: {seen}"
            ),
        );
    }
    ended(
        Cause::NoReport,
        format!(
            "{silent} of {used} tries never reached the agent (a power cut looks the same); last sign of life: {seen}"
        ),
    )
}

/// The last thing that any try reported, and the mark that it is, where it is one: what the agent saw in the last boot,
/// unless a later boot, or something after the agent in the same one, left a mark.
fn last_sign(tries: &[Try], signs: &[Sign]) -> (String, Option<Mark>) {
    let agent = tries.last();
    let later = signs.last().filter(|s| match agent {
        Some(t) if t.boot_id == s.boot_id => s.mark != Mark::Initramfs,
        Some(_) => !tries.iter().any(|t| t.boot_id == s.boot_id),
        None => true,
    });
    match (later, agent) {
        (Some(s), _) => (
            format!("{} at {} s after boot", s.mark.as_str(), s.secs),
            Some(s.mark),
        ),
        (None, Some(t)) => (format!("{} at {} s after boot", t.last, t.last_secs), None),
        (None, None) => (String::new(), None),
    }
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
        kernel_lines: ended.kernel_lines.clone(),
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
