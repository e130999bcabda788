//! What `Status` says, put together from the node, its slots and the running operation.

use super::{Engine, Inner};
use crate::gates::Verdict;
use crate::state::{Confirm, OnSilence, Phase};
use crate::wire;
use os_proto::codes::Code;
use os_proto::layout::Slot;
use os_proto::record::Content;
use os_proto::v1;

/// A requested reboot that did not happen after this many seconds is a problem.
const STUCK_SECS: u64 = 300;

impl Engine {
    /// The whole status.
    pub fn status(&self) -> v1::StatusReply {
        let copies = self.ports.boot.read();
        let inner = self.lock();
        let node = &inner.node;
        let os = self.ports.host.os_release();
        let state = &node.state;
        let persist_missing = self.ports.store.missing();
        let (reboot_required, reboot_reason) = reboot_reason(&inner, || self.ports.host.steps_want_reboot());
        v1::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: node.boot.boot_id.clone(),
            machine_id: self.ports.host.machine_id(),
            phase: wire::phase(node.phase) as i32,
            running: wire::slot_out(node.boot.running.as_ref().ok().copied()),
            slots: self.slots(&inner),
            env: copies.as_ref().ok().map(|c| {
                let e = c.effective();
                v1::BootEnv {
                    cur: wire::slot_out(e.map(|e| e.cur)),
                    try_slot: wire::slot_out(e.and_then(|e| e.try_slot)),
                    left: e.and_then(|e| e.left).map(u32::from),
                    r#gen: e.map_or(0, |e| e.gen_),
                    env1_valid: c.env1.is_ok(),
                    env2_valid: c.env2.is_ok(),
                    copies_equal: match (&c.env1, &c.env2) {
                        (Ok(a), Ok(b)) => (a.cur, a.try_slot, a.gen_) == (b.cur, b.try_slot, b.gen_),
                        _ => false,
                    },
                }
            }),
            operation: state.operations.last().map(wire::operation),
            progress: inner.current.as_ref().map(|h| h.progress()),
            last_failure: state.last_failure.as_ref().map(|f| v1::Failure {
                code: f.code.clone(),
                class: f
                    .code
                    .parse::<Code>()
                    .map(|c| c.class().as_str().to_owned())
                    .unwrap_or_default(),
                message: f.message.clone(),
                at_unix: f.at_unix,
                digest: f.digest.clone(),
                cause: f.cause.map_or(v1::Cause::Unspecified, wire::cause) as i32,
                last_sign_of_life: f.last_sign_of_life.clone(),
                tries: f.tries,
                slot: wire::slot_out(f.slot),
                kernel_lines: f.kernel_lines.clone(),
            }),
            failed_digests: state
                .failed_digests
                .iter()
                .map(|f| v1::FailedDigest {
                    digest: f.digest.to_string(),
                    version: f.version.clone(),
                    cause: wire::cause(f.cause) as i32,
                    detail: f.detail.clone(),
                    count: f.count,
                    at_unix: f.at_unix,
                    denied: f.denied,
                })
                .collect(),
            health: inner.health.as_ref().map(|h| v1::Health {
                boot_complete: h.seen.boot_complete,
                hooks: h
                    .seen
                    .hooks
                    .iter()
                    .map(|k| v1::HookResult {
                        name: k.name.clone(),
                        exit_code: k.exit.unwrap_or(-1),
                        verdict: Verdict::of(k.exit).as_str().to_owned(),
                        output: k.output.clone(),
                    })
                    .collect(),
                kubelet_probed: h.seen.kubelet.is_some(),
                kubelet_ok: h.seen.kubelet == Some(true),
                good_since_unix: h.good_since_unix,
                healthy: h.healthy,
            }),
            trial: self.trial(&inner),
            problems: self.problems(&inner, copies.as_ref().err(), persist_missing.as_deref()),
            os_version: os.pretty_name,
            version_id: os.version_id,
            reboot_required,
            reboot_reason,
            persist_available: persist_missing.is_none(),
            read_only_state: node.read_only,
            pending_settings: self
                .pending_settings(&state.settings, node.boot.running.as_ref().ok().copied()),
        }
    }

    fn slots(&self, inner: &Inner) -> Vec<v1::SlotStatus> {
        let Ok(layout) = &self.layout else {
            return Vec::new();
        };
        let node = &inner.node;
        Slot::ALL
            .into_iter()
            .map(|slot| {
                let part = layout.part(slot.role());
                let record = node.record(slot);
                let committed = node.env.is_some_and(|e| e.cur == slot);
                let failed =
                    record.is_some_and(|r| node.state.failed_digests.iter().any(|f| r.is(&f.digest)));
                let state = match record.map(|r| r.content) {
                    Some(Content::Dirty) => v1::SlotState::Dirty,
                    _ if committed => v1::SlotState::Committed,
                    Some(_) if failed => v1::SlotState::Failed,
                    Some(Content::Verified | Content::Factory) => v1::SlotState::Verified,
                    None => v1::SlotState::Unknown,
                };
                let whole = record.filter(|r| r.content != Content::Dirty);
                v1::SlotStatus {
                    slot: wire::slot_out(Some(slot)),
                    version: whole.map(|r| r.version.clone()).unwrap_or_default(),
                    image_sha256: whole.map(|r| r.image_sha256.to_string()).unwrap_or_default(),
                    image_size: whole.map_or(0, |r| r.image_size),
                    payload_digests: whole
                        .map(|r| r.payload_digests.iter().map(ToString::to_string).collect())
                        .unwrap_or_default(),
                    state: state as i32,
                    part_uuid: part.map(|p| p.part_uuid.to_string()).unwrap_or_default(),
                    size: part.map_or(0, |p| p.size),
                    running: layout.running() == slot,
                    committed,
                }
            })
            .collect()
    }

    fn trial(&self, inner: &Inner) -> Option<v1::Trial> {
        let node = &inner.node;
        let armed = node.state.armed.as_ref().filter(|_| node.phase == Phase::Trial)?;
        let secs = match armed.deadline_secs {
            0 => self.options.config.trial.deadline_secs,
            s => s,
        };
        let left = node.env.and_then(|e| e.left).unwrap_or(0);
        Some(v1::Trial {
            slot: wire::slot_out(Some(armed.slot)),
            tries_left: u32::from(left),
            confirm: match armed.confirm {
                Confirm::Local => v1::Confirm::Local,
                Confirm::Cluster => v1::Confirm::Cluster,
            } as i32,
            on_silence: match armed.on_silence {
                OnSilence::Reboot => v1::OnSilence::Reboot,
                OnSilence::Keep => v1::OnSilence::Keep,
            } as i32,
            deadline_secs: secs,
            deadline_left_secs: secs.saturating_sub(self.ports.clock.monotonic().as_secs()),
            op_id: armed.op_id.clone(),
            digest: armed.digest.map(|d| d.to_string()).unwrap_or_default(),
        })
    }

    fn problems(
        &self,
        inner: &Inner,
        env: Option<&crate::error::AgentError>,
        persist: Option<&str>,
    ) -> Vec<v1::Problem> {
        let mut list: Vec<(Code, String)> = inner.node.problems.clone();
        if let Some(why) = persist {
            list.push((Code::StateWriteFailed, format!("no place for the state: {why}")));
        } else if let Some(e) = &inner.store_error {
            list.push((Code::StateWriteFailed, e.clone()));
        }
        if let Some(e) = env.filter(|e| self.layout.is_ok() && !list.iter().any(|(c, _)| *c == e.code)) {
            list.push((e.code, e.message.clone()));
        }
        for why in self.ports.host.persist_problems() {
            list.push((Code::StateWriteFailed, why));
        }
        if let Some(e) = &inner.reboot_error {
            list.push((Code::RebootStuck, e.clone()));
        }
        if let Some(at) = inner.reboot_asked {
            let ago = self.ports.clock.monotonic().saturating_sub(at).as_secs();
            if ago >= STUCK_SECS {
                list.push((
                    Code::RebootStuck,
                    format!("reboot requested {ago} s ago, boot id unchanged"),
                ));
            }
        }
        if inner.node.phase == Phase::Foreign {
            let cur = inner.node.env.map_or("?", |e| e.cur.letter());
            list.push((
                Code::UncommittedBoot,
                format!("this slot was chosen at the console; slot {cur} is the committed one: commit to keep this one, or reboot"),
            ));
        }
        list.into_iter()
            .map(|(code, message)| v1::Problem {
                code: code.as_str().to_owned(),
                message,
            })
            .collect()
    }
}

fn reboot_reason(inner: &Inner, steps: impl FnOnce() -> Option<String>) -> (bool, String) {
    let node = &inner.node;
    if node.leaving {
        return (
            true,
            "the trial was ended; the committed slot boots next".to_owned(),
        );
    }
    match (node.phase, &node.state.armed) {
        (Phase::Armed, Some(a)) => (true, format!("slot {} is armed; the next boot tries it", a.slot)),
        (Phase::Armed, None) => (true, "a slot is armed; the next boot tries it".to_owned()),
        _ => steps().map_or((false, String::new()), |why| (true, format!("steps: {why}"))),
    }
}
