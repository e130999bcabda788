//! Answers as text for people and as JSON for programs. PURE.

use super::progress::{self, mib};
use os_agent::etc_layer::{Hidden, How};
use os_proto::v1;
use serde_json::{Value, json};
use std::fmt::Write;

/// A slot's letter; `-` = none.
pub(crate) fn slot(n: i32) -> &'static str {
    match v1::Slot::try_from(n) {
        Ok(v1::Slot::A) => "A",
        Ok(v1::Slot::B) => "B",
        _ => "-",
    }
}

fn slot_json(n: i32) -> Value {
    match slot(n) {
        "-" => Value::Null,
        s => json!(s),
    }
}

fn phase(n: i32) -> &'static str {
    match v1::Phase::try_from(n).unwrap_or(v1::Phase::Unspecified) {
        v1::Phase::Unspecified => "unknown",
        v1::Phase::Idle => "idle",
        v1::Phase::Staging => "staging",
        v1::Phase::Staged => "staged",
        v1::Phase::Armed => "armed",
        v1::Phase::Trial => "trial",
        v1::Phase::FellBack => "fell_back",
        v1::Phase::Foreign => "foreign",
        v1::Phase::NoSlots => "no_slots",
    }
}

fn slot_state(n: i32) -> &'static str {
    match v1::SlotState::try_from(n).unwrap_or(v1::SlotState::Unspecified) {
        v1::SlotState::Unspecified | v1::SlotState::Unknown => "unknown",
        v1::SlotState::Empty => "empty",
        v1::SlotState::Dirty => "dirty",
        v1::SlotState::Verified => "verified",
        v1::SlotState::Committed => "committed",
        v1::SlotState::Failed => "failed",
    }
}

fn cause(n: i32) -> Option<&'static str> {
    Some(match v1::Cause::try_from(n).unwrap_or(v1::Cause::Unspecified) {
        v1::Cause::Unspecified => return None,
        v1::Cause::Panic => "panic",
        v1::Cause::HealthFailed => "health_failed",
        v1::Cause::Deadline => "deadline",
        v1::Cause::NoReport => "no_report",
        v1::Cause::Interrupted => "interrupted",
        v1::Cause::RolledBack => "rolled_back",
        v1::Cause::NotStarted => "not_started",
    })
}

/// A name of the interface as words.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn when(unix: i64) -> String {
    jiff::Timestamp::from_second(unix).map_or_else(|_| unix.to_string(), |t| t.to_string())
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// `status` for people.
pub(crate) fn status(s: &v1::StatusReply) -> String {
    let mut t = String::new();
    let os = if s.os_version.is_empty() {
        "unknown system"
    } else {
        &s.os_version
    };
    let _ = writeln!(
        t,
        "{os}: slot {} runs, {}",
        slot(s.running),
        words(phase(s.phase))
    );
    for k in &s.slots {
        let mark = if k.running { '*' } else { ' ' };
        let version = if k.version.is_empty() { "-" } else { &k.version };
        let digest = k.payload_digests.first().unwrap_or(&k.image_sha256);
        let _ = writeln!(
            t,
            "{mark} {}  {:<10} version {version:<16} {} of {}  {}",
            slot(k.slot),
            slot_state(k.state),
            mib(k.image_size),
            mib(k.size),
            short(digest),
        );
    }
    if let Some(e) = &s.env {
        let _ = write!(t, "next boot: slot {}", slot(e.cur));
        if e.try_slot != 0 {
            let left = e.left.map_or_else(|| "?".to_owned(), |l| l.to_string());
            let _ = write!(t, ", trying slot {} ({left} tries left)", slot(e.try_slot));
        }
        let _ = writeln!(t);
    }
    if let Some(x) = &s.trial {
        let _ = writeln!(
            t,
            "trial: slot {}, {} tries left, {} of {} s left",
            slot(x.slot),
            x.tries_left,
            x.deadline_left_secs,
            x.deadline_secs
        );
    }
    if let Some(h) = &s.health {
        let word = if h.healthy { "healthy" } else { "not healthy yet" };
        let _ = writeln!(
            t,
            "health: {word}, boot-complete {}",
            if h.boot_complete { "reached" } else { "not reached" }
        );
        for k in h.hooks.iter().filter(|k| k.verdict != "good") {
            let _ = writeln!(t, "  hook {}: {} {}", k.name, k.verdict, k.output.trim());
        }
    }
    if let Some(p) = &s.progress {
        let _ = writeln!(
            t,
            "operation {}: {} {} of {}",
            p.op_id,
            p.step,
            mib(p.done_bytes),
            mib(p.total_bytes)
        );
        if p.written_bytes + p.saved_bytes > 0 {
            let _ = writeln!(
                t,
                "  written: {}; stood there already: {}",
                mib(p.written_bytes),
                mib(p.saved_bytes)
            );
        }
        if !p.waiting_for.is_empty() {
            let _ = writeln!(t, "  waiting: {}", p.waiting_for);
        }
    }
    if let Some(f) = &s.last_failure {
        let what = words(cause(f.cause).unwrap_or(&f.code));
        let _ = writeln!(t, "last failure: {} ({what}): {}", when(f.at_unix), f.message);
        if !f.last_sign_of_life.is_empty() {
            let _ = writeln!(t, "  last sign of life: {}", f.last_sign_of_life);
        }
        for line in &f.kernel_lines {
            let _ = writeln!(t, "  kernel: {line}");
        }
    }
    if let Some(o) = interrupted(s) {
        let of = if o.digest.is_empty() {
            String::new()
        } else {
            format!(" of {}", o.digest)
        };
        let _ = writeln!(
            t,
            "interrupted: {}{of}, begun {}, has no result (unless another os-agent works on it now); the same command takes it up again",
            o.kind,
            when(o.started_unix)
        );
    }
    for d in &s.failed_digests {
        let word = if d.denied { "denied" } else { "not denied" };
        let _ = writeln!(
            t,
            "failed: {} version {} ({}, {} times, {word})",
            d.digest,
            d.version,
            words(cause(d.cause).unwrap_or("?")),
            d.count
        );
    }
    for p in &s.pending_settings {
        let _ = writeln!(t, "written, not yet in effect: {p}");
    }
    if s.reboot_required {
        let _ = writeln!(t, "reboot required: {}", s.reboot_reason);
    }
    for p in &s.problems {
        let _ = writeln!(t, "problem: {}: {}", p.code, p.message);
    }
    t
}

/// The last operation, where it has no result and nobody works on it.
fn interrupted(s: &v1::StatusReply) -> Option<&v1::Operation> {
    s.operation
        .as_ref()
        .filter(|o| o.finished_unix == 0 && s.progress.is_none())
}

/// `watch` for people: what moves, in one line.
pub(crate) fn line(s: &v1::StatusReply) -> String {
    let mut t = format!("slot {} runs, {}", slot(s.running), words(phase(s.phase)));
    if let Some(p) = s.progress.as_ref().filter(|p| !p.step.is_empty()) {
        let percent = (p.done_bytes * 100).checked_div(p.total_bytes);
        let _ = write!(t, "; {}", progress::describe(p, percent));
        if p.attempt > 1 {
            let _ = write!(t, ", attempt {}", p.attempt);
        }
    }
    if let Some(x) = &s.trial {
        let _ = write!(
            t,
            "; trial of slot {}, {} tries left, deadline in {} s",
            slot(x.slot),
            x.tries_left,
            x.deadline_left_secs
        );
    }
    if let Some(h) = &s.health {
        let _ = write!(t, "; {}", if h.healthy { "healthy" } else { "not healthy yet" });
    }
    if s.reboot_required {
        let _ = write!(t, "; reboot required");
    }
    for p in &s.problems {
        let _ = write!(t, "; {}", p.code);
    }
    t
}

/// `report etc` for people.
pub(crate) fn hidden(list: &[Hidden]) -> String {
    if list.is_empty() {
        return "nothing below /etc hides a file of the running image\n".to_owned();
    }
    let mut t = String::new();
    for h in list {
        let how = match h.how {
            How::Replaced => "replaced",
            How::Removed => "removed",
            How::Opaque => "whole directory",
        };
        let age = if h.image_newer {
            "the image's is newer"
        } else {
            "the node's is newer"
        };
        let _ = writeln!(
            t,
            "{:<15} {}  ({age}: {} / {})",
            how,
            h.path,
            when(h.node_mtime),
            when(h.image_mtime)
        );
    }
    t
}

/// `status` for programs.
pub(crate) fn status_json(s: &v1::StatusReply) -> Value {
    json!({
        "agent_version": s.agent_version, "boot_id": s.boot_id, "machine_id": s.machine_id,
        "os_version": s.os_version, "version_id": s.version_id,
        "phase": phase(s.phase), "running": slot_json(s.running),
        "slots": s.slots.iter().map(|k| json!({
            "slot": slot(k.slot), "version": k.version, "image_sha256": k.image_sha256, "image_size": k.image_size,
            "payload_digests": k.payload_digests, "state": slot_state(k.state), "part_uuid": k.part_uuid,
            "size": k.size, "running": k.running, "committed": k.committed,
        })).collect::<Vec<_>>(),
        "env": s.env.as_ref().map(|e| json!({
            "cur": slot_json(e.cur), "try_slot": slot_json(e.try_slot), "left": e.left, "gen": e.r#gen,
            "env1_valid": e.env1_valid, "env2_valid": e.env2_valid, "copies_equal": e.copies_equal,
        })),
        "operation": s.operation.as_ref().map(operation_json),
        "progress": s.progress.as_ref().map(|p| json!({
            "op_id": p.op_id, "step": p.step, "done_bytes": p.done_bytes, "total_bytes": p.total_bytes,
            "fetched_bytes": p.fetched_bytes, "written_bytes": p.written_bytes, "saved_bytes": p.saved_bytes,
            "rate_bytes_per_sec": p.rate_bytes_per_sec, "eta_secs": p.eta_secs, "attempt": p.attempt,
            "waiting_for": p.waiting_for,
        })),
        "interrupted": interrupted(s).is_some(),
        "last_failure": s.last_failure.as_ref().map(|f| json!({
            "code": f.code, "class": f.class, "message": f.message, "at_unix": f.at_unix, "digest": f.digest,
            "cause": cause(f.cause), "last_sign_of_life": f.last_sign_of_life, "tries": f.tries, "slot": slot_json(f.slot),
            "kernel_lines": f.kernel_lines,
        })),
        "failed_digests": s.failed_digests.iter().map(|d| json!({
            "digest": d.digest, "version": d.version, "cause": cause(d.cause), "detail": d.detail, "count": d.count,
            "at_unix": d.at_unix, "denied": d.denied,
        })).collect::<Vec<_>>(),
        "health": s.health.as_ref().map(|h| json!({
            "boot_complete": h.boot_complete, "kubelet_probed": h.kubelet_probed, "kubelet_ok": h.kubelet_ok,
            "good_since_unix": h.good_since_unix, "healthy": h.healthy,
            "hooks": h.hooks.iter().map(|k| json!({
                "name": k.name, "exit_code": k.exit_code, "verdict": k.verdict, "output": k.output,
            })).collect::<Vec<_>>(),
        })),
        "trial": s.trial.as_ref().map(|x| json!({
            "slot": slot(x.slot), "tries_left": x.tries_left,
            "confirm": if x.confirm == v1::Confirm::Cluster as i32 { "cluster" } else { "local" },
            "on_silence": if x.on_silence == v1::OnSilence::Keep as i32 { "keep" } else { "reboot" },
            "deadline_secs": x.deadline_secs, "deadline_left_secs": x.deadline_left_secs, "op_id": x.op_id, "digest": x.digest,
        })),
        "problems": s.problems.iter().map(|p| json!({"code": p.code, "message": p.message})).collect::<Vec<_>>(),
        "reboot_required": s.reboot_required, "reboot_reason": s.reboot_reason,
        "persist_available": s.persist_available, "read_only_state": s.read_only_state,
        "pending_settings": s.pending_settings,
    })
}

fn operation_json(o: &v1::Operation) -> Value {
    json!({
        "op_id": o.op_id, "kind": o.kind, "digest": o.digest, "version": o.version, "asked_by": o.asked_by,
        "started_unix": o.started_unix, "finished_unix": o.finished_unix, "code": o.code, "message": o.message,
        "boot_id": o.boot_id, "reboot_requested": o.reboot_requested,
        "result": result(o), "duration_secs": duration(o),
    })
}

/// How an operation ended, in a word.
fn result(o: &v1::Operation) -> &str {
    match (o.finished_unix, o.code.as_str()) {
        (0, _) => "not finished",
        (_, "") => "done",
        (_, code) => code,
    }
}

/// Seconds from start to end.
fn duration(o: &v1::Operation) -> Option<i64> {
    (o.finished_unix != 0).then(|| (o.finished_unix - o.started_unix).max(0))
}

/// `history` for people.
pub(crate) fn history(h: &v1::HistoryReply) -> String {
    let mut t = String::new();
    for o in &h.operations {
        let version = if o.version.is_empty() {
            String::new()
        } else {
            format!("version {} ", o.version)
        };
        let line = format!(
            "{}  {:<9} {:<20} {:>6}  by {:<12} {:<12} {version}{}",
            when(o.started_unix),
            o.kind,
            result(o),
            duration(o).map_or_else(|| "-".to_owned(), |s| format!("{s} s")),
            o.asked_by,
            short(&o.digest),
            o.message
        );
        let _ = writeln!(t, "{}", line.trim_end());
    }
    t
}

/// `history` for programs.
pub(crate) fn history_json(h: &v1::HistoryReply) -> Value {
    json!({"operations": h.operations.iter().map(operation_json).collect::<Vec<_>>()})
}

/// The result of `stage` for people.
pub(crate) fn staged(r: &v1::StageResult) -> String {
    let how = if r.already_staged {
        "was there already and reads back right".to_owned()
    } else {
        format!(
            "{} fetched, {} written, read back",
            mib(r.fetched_bytes),
            mib(r.written_bytes)
        )
    };
    format!(
        "slot {} holds version {} ({}): {how}\n",
        slot(r.slot),
        r.version,
        short(&r.image_sha256)
    )
}

/// The result of `stage` for programs.
pub(crate) fn staged_json(r: &v1::StageResult) -> Value {
    json!({
        "op_id": r.op_id, "digest": r.digest, "image_sha256": r.image_sha256, "version": r.version, "slot": slot_json(r.slot),
        "image_size": r.image_size, "fetched_bytes": r.fetched_bytes, "written_bytes": r.written_bytes,
        "already_staged": r.already_staged,
    })
}
