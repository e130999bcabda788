//! Interface messages ↔ the machine's types. PURE.

use crate::error::{AgentError, Result};
use crate::fetch::http;
use crate::fetch::oci::reference;
use crate::machine::{ActivateAsk, CancelAsk, CommitAsk, Proof, RollbackAsk};
use crate::ports::{Location, SourceRequest};
use crate::state::{Cause, Confirm, OnSilence, OpResult, Operation, Phase};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use os_proto::v1;

fn invalid(message: impl Into<String>) -> AgentError {
    AgentError::new(Code::InvalidArgument, message)
}

/// An operation id as given, or a fresh one.
///
/// # Errors
/// `InvalidArgument`.
pub fn op_id(given: &str) -> Result<String> {
    if given.is_empty() {
        return Ok(uuid::Uuid::new_v4().to_string());
    }
    let ok = given.len() <= 128
        && given
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
    if ok {
        Ok(given.to_owned())
    } else {
        Err(invalid(format!(
            "op_id {given:?}: expected 1 to 128 of letters, digits and . _ : -"
        )))
    }
}

/// A digest as given.
///
/// # Errors
/// `InvalidArgument`.
pub fn digest(given: &str) -> Result<Sha256Digest> {
    given.parse().map_err(|e| invalid(format!("{e}")))
}

/// A digest as given; empty = none.
///
/// # Errors
/// `InvalidArgument`.
pub fn maybe_digest(given: &str) -> Result<Option<Sha256Digest>> {
    if given.is_empty() {
        return Ok(None);
    }
    digest(given).map(Some)
}

/// The checksum that a Stage request names, itself or in its image reference.
///
/// # Errors
/// `InvalidArgument`.
pub fn asked_digest(r: &v1::StageRequest) -> Result<Option<Sha256Digest>> {
    match r.source.as_ref().and_then(|s| s.from.as_ref()) {
        Some(v1::source::From::Oci(text)) if r.checksum.is_empty() => {
            Ok(reference::parse(text).map_err(invalid)?.digest)
        }
        _ => maybe_digest(&r.checksum),
    }
}

/// A slot of the interface; unspecified = none.
pub fn slot(given: i32) -> Option<Slot> {
    match v1::Slot::try_from(given) {
        Ok(v1::Slot::A) => Some(Slot::A),
        Ok(v1::Slot::B) => Some(Slot::B),
        _ => None,
    }
}

/// A slot for the interface.
pub fn slot_out(slot: Option<Slot>) -> i32 {
    slot.map_or(v1::Slot::Unspecified, v1::Slot::from) as i32
}

/// What to stage, read from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageTask {
    /// Checksum of the payload.
    pub digest: Sha256Digest,
    /// Where from.
    pub request: SourceRequest,
    /// Wanted PRETTY_NAME or VERSION_ID.
    pub version: Option<String>,
}

/// Reads a Stage request. `max_bytes` is left at 0 for the engine.
///
/// # Errors
/// `InvalidArgument`, `HttpNotAllowed`; `Unimplemented` for what is not built yet.
pub fn stage(r: &v1::StageRequest, known: impl Fn(Slot) -> Option<Sha256Digest>) -> Result<StageTask> {
    let source = r.source.clone().unwrap_or_default();
    let certs = source.certificates.clone().unwrap_or_default();
    let location = match source.from {
        Some(v1::source::From::Url(u)) if u.starts_with("https://") || u.starts_with("http://") => {
            if u.starts_with("http://") && !source.allow_http {
                return Err(AgentError::new(
                    Code::HttpNotAllowed,
                    "plain http is not permitted: use https, or allow it (--allow-http, flagSafe)",
                ));
            }
            http::well_formed(&u)?;
            Location::Url(u)
        }
        Some(v1::source::From::Url(u)) => {
            let scheme = u.split(':').next().unwrap_or_default().to_owned();
            return Err(invalid(format!(
                "source: expected an http or https URL, found scheme {scheme:?}"
            )));
        }
        Some(v1::source::From::File(f)) if f.starts_with('/') => Location::File(f.into()),
        Some(v1::source::From::File(f)) => {
            return Err(invalid(format!("source: expected an absolute path, found {f:?}")));
        }
        Some(v1::source::From::Slot(s)) => {
            Location::Slot(slot(s).ok_or_else(|| invalid("source: expected slot A or B"))?)
        }
        Some(v1::source::From::Oci(reference)) => {
            let pin = reference::parse(&reference).map_err(invalid)?.digest;
            let given = maybe_digest(&r.checksum)?;
            let pin = match (pin, given) {
                (Some(a), Some(b)) if a != b => {
                    return Err(invalid(format!(
                        "checksum: {b}, but the image reference names {a}"
                    )));
                }
                (a, b) => b.or(a).ok_or_else(|| {
                    invalid("checksum: expected the SHA-256 of the image's manifest, or a reference with @sha256:…")
                })?,
            };
            Location::Oci { reference, pin }
        }
        None => {
            return Err(invalid(
                "source: expected a URL, a file, an image or a slot, found none",
            ));
        }
    };
    let digest = match (&location, r.checksum.is_empty()) {
        (Location::Slot(s), true) => known(*s).ok_or_else(|| {
            AgentError::new(
                Code::NotStaged,
                format!("slot {s} has no record of a whole image: stage from a URL or a file"),
            )
        })?,
        (Location::Oci { pin, .. }, _) => *pin,
        (_, true) => return Err(invalid("checksum: expected a SHA-256, found none")),
        _ => digest(&r.checksum)?,
    };
    let path = |name: &str| (!name.is_empty()).then(|| cert_path(name));
    let client = if source.mtls {
        match (path(&certs.clientcert), path(&certs.clientkey)) {
            (Some(c), Some(k)) => Some((c?, k?)),
            _ => return Err(invalid("certificates: mtls needs clientcert and clientkey")),
        }
    } else {
        None
    };
    Ok(StageTask {
        digest,
        request: SourceRequest {
            location,
            allow_http: source.allow_http,
            cacert: path(&certs.cacert).transpose()?,
            client,
            rate_bytes_per_sec: (r.rate_bytes_per_sec != 0).then_some(r.rate_bytes_per_sec),
            max_bytes: 0,
            known: None,
        },
        version: (!r.os_image.is_empty()).then(|| r.os_image.clone()),
    })
}

/// Certificates: plain names lie below /etc/KubeOS/certs, anything else must be an absolute path without `..`.
fn cert_path(name: &str) -> Result<camino::Utf8PathBuf> {
    if name.split('/').any(|p| p == "..") {
        return Err(invalid(format!(
            "certificates: {name:?} leads out of its directory"
        )));
    }
    if name.starts_with('/') {
        return Ok(name.into());
    }
    if name.contains('/') {
        return Err(invalid(format!(
            "certificates: expected a file name below /etc/KubeOS/certs or an absolute path, found {name:?}"
        )));
    }
    Ok(camino::Utf8Path::new("/etc/KubeOS/certs").join(name))
}

/// Reads an Activate request.
///
/// # Errors
/// `InvalidArgument`.
pub fn activate(r: &v1::ActivateRequest, asked_by: &str) -> Result<ActivateAsk> {
    Ok(ActivateAsk {
        op_id: op_id(&r.op_id)?,
        asked_by: asked_by.to_owned(),
        digest: maybe_digest(&r.digest)?,
        expect_boot_id: r.expect_boot_id.clone(),
        valid_until_unix: r.valid_until_unix,
        reboot: r.reboot,
        confirm: match v1::Confirm::try_from(r.confirm) {
            Ok(v1::Confirm::Cluster) => Confirm::Cluster,
            Ok(_) => Confirm::Local,
            Err(_) => return Err(invalid(format!("confirm: {} is not known", r.confirm))),
        },
        deadline_secs: deadline(r.deadline_secs)?,
        on_silence: match v1::OnSilence::try_from(r.on_silence) {
            Ok(v1::OnSilence::Keep) => OnSilence::Keep,
            Ok(_) => OnSilence::Reboot,
            Err(_) => return Err(invalid(format!("on_silence: {} is not known", r.on_silence))),
        },
    })
}

/// Shortest and longest span of a trial boot that can be asked for, in seconds; as in a recipe.
pub const DEADLINE_SECS: std::ops::RangeInclusive<u64> = 60..=86_400;

fn deadline(secs: u64) -> Result<u64> {
    if secs == 0 || DEADLINE_SECS.contains(&secs) {
        return Ok(secs);
    }
    Err(invalid(format!(
        "deadline_secs: expected {} to {} seconds (0 = the node's), found {secs}",
        DEADLINE_SECS.start(),
        DEADLINE_SECS.end()
    )))
}

/// Reads a Commit request.
///
/// # Errors
/// `InvalidArgument`.
pub fn commit(r: &v1::CommitRequest, asked_by: &str) -> Result<CommitAsk> {
    Ok(CommitAsk {
        proof: Proof::Runs,
        op_id: op_id(&r.op_id)?,
        asked_by: asked_by.to_owned(),
        digest: maybe_digest(&r.digest)?,
        boot_id: r.boot_id.clone(),
    })
}

/// Reads a Rollback request.
///
/// # Errors
/// `InvalidArgument`.
pub fn rollback(r: &v1::RollbackRequest, asked_by: &str) -> Result<RollbackAsk> {
    Ok(RollbackAsk {
        op_id: op_id(&r.op_id)?,
        asked_by: asked_by.to_owned(),
        expect_boot_id: r.expect_boot_id.clone(),
        reboot: r.reboot,
    })
}

/// Reads a Cancel request.
///
/// # Errors
/// `InvalidArgument`.
pub fn cancel(r: &v1::CancelRequest, asked_by: &str) -> Result<CancelAsk> {
    Ok(CancelAsk {
        op_id: op_id(&r.op_id)?,
        asked_by: asked_by.to_owned(),
        expect_boot_id: r.expect_boot_id.clone(),
        target_op_id: r.target_op_id.clone(),
    })
}

/// An operation for the interface.
pub fn operation(o: &Operation) -> v1::Operation {
    v1::Operation {
        op_id: o.op_id.clone(),
        kind: o.kind.as_str().to_owned(),
        digest: o.digest.clone(),
        version: o.version.clone(),
        asked_by: o.asked_by.clone(),
        started_unix: o.started_unix,
        finished_unix: o.finished_unix,
        code: o.code.clone(),
        message: o.message.clone(),
        boot_id: o.boot_id.clone(),
        reboot_requested: o.reboot_requested,
    }
}

/// The result of a finished operation.
///
/// # Errors
/// The stored error.
pub fn stored(o: &Operation) -> Result<OpResult> {
    if o.code.is_empty() {
        Ok(o.result.clone())
    } else {
        Err(AgentError::new(
            o.code.parse().unwrap_or(Code::Internal),
            o.message.clone(),
        ))
    }
}

/// The last message of a Stage.
pub fn stage_result(op_id: String, digest: &str, r: &OpResult, version: String) -> v1::StageResult {
    v1::StageResult {
        op_id,
        digest: digest.to_owned(),
        image_sha256: r.image_sha256.map(|d| d.to_string()).unwrap_or_default(),
        version,
        slot: slot_out(r.slot),
        image_size: r.image_size,
        fetched_bytes: r.fetched,
        written_bytes: r.written,
        already_staged: r.already,
    }
}

/// A phase for the interface.
pub const fn phase(p: Phase) -> v1::Phase {
    match p {
        Phase::Idle => v1::Phase::Idle,
        Phase::Staging => v1::Phase::Staging,
        Phase::Staged => v1::Phase::Staged,
        Phase::Armed => v1::Phase::Armed,
        Phase::Trial => v1::Phase::Trial,
        Phase::FellBack => v1::Phase::FellBack,
        Phase::Foreign => v1::Phase::Foreign,
        Phase::NoSlots => v1::Phase::NoSlots,
    }
}

/// A cause for the interface.
pub const fn cause(c: Cause) -> v1::Cause {
    match c {
        Cause::Panic => v1::Cause::Panic,
        Cause::HealthFailed => v1::Cause::HealthFailed,
        Cause::Deadline => v1::Cause::Deadline,
        Cause::NoReport => v1::Cause::NoReport,
        Cause::Interrupted => v1::Cause::Interrupted,
        Cause::RolledBack => v1::Cause::RolledBack,
        Cause::NotStarted => v1::Cause::NotStarted,
    }
}
