//! The agent on the unix socket: calls, and its messages as facts.

use super::facts::{AgentFact, Fail};
use crate::api::{AgentReport, Configs, Source as OrderSource};
use hyper_util::rt::TokioIo;
use os_proto::codes::{Class, Code};
use os_proto::v1::{self, agent_client::AgentClient, source::From as FromSource, stage_event};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_types::StatusExt;

/// A call that is not a stream must be answered within this time.
const CALL: Duration = Duration::from_secs(60);
/// Commit, Activate and Rollback may read a whole slot back first.
const LONG_CALL: Duration = Duration::from_secs(900);

/// The way to the agent. Every call connects anew: a restarted agent is found at once.
#[derive(Debug, Clone)]
pub struct Agent {
    path: PathBuf,
}

fn passing(reason: &str, message: impl Into<String>) -> Fail {
    Fail {
        reason: reason.into(),
        message: message.into(),
        passing: true,
    }
}

/// What an error of the agent means for the roll-out.
pub fn fail_of(s: &tonic::Status) -> Fail {
    let code = s
        .get_details_error_info()
        .and_then(|i| i.reason.parse::<Code>().ok())
        .unwrap_or(match s.code() {
            tonic::Code::Unimplemented => Code::Unimplemented,
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Unknown => {
                Code::AgentUnavailable
            }
            _ => Code::Internal,
        });
    let reason = match (code, code.class()) {
        (Code::ChecksumMismatch, _) => "DigestMismatch",
        (Code::SignatureMissing | Code::KeyUnknown, _) => "SignatureInvalid",
        (_, Class::Corrupt | Class::Internal) => "AgentError",
        (c, _) => c.as_str(),
    };
    Fail {
        reason: reason.to_owned(),
        message: s.message().to_owned(),
        passing: code.class() == Class::Retry
            || matches!(
                code,
                Code::Busy | Code::Cancelled | Code::BootIdChanged | Code::OrderExpired
            ),
    }
}

impl Agent {
    /// The agent behind this socket.
    pub fn new(path: &Path) -> Agent {
        Agent {
            path: path.to_owned(),
        }
    }

    async fn client(&self) -> Result<AgentClient<Channel>, Fail> {
        let down = |e: &dyn std::fmt::Display| {
            passing(
                "AgentUnavailable",
                format!("{}: {e}: is os-agent.service running?", self.path.display()),
            )
        };
        let path = self.path.clone();
        let endpoint = Endpoint::try_from("http://os-agent.invalid").map_err(|e| down(&e))?;
        let channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            }))
            .await
            .map_err(|e| down(&e))?;
        Ok(AgentClient::new(channel))
    }

    async fn call<T, F>(&self, limit: Duration, f: impl FnOnce(AgentClient<Channel>) -> F) -> Result<T, Fail>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let client = self.client().await?;
        match tokio::time::timeout(limit, f(client)).await {
            Err(_) => Err(passing(
                "AgentUnavailable",
                format!("os-agent did not answer within {} s", limit.as_secs()),
            )),
            Ok(r) => r.map(tonic::Response::into_inner).map_err(|s| fail_of(&s)),
        }
    }

    /// What the agent says now.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn status(&self) -> Result<AgentFact, Fail> {
        let reply = self
            .call(CALL, |mut c| async move { c.status(v1::StatusRequest {}).await })
            .await?;
        Ok(AgentFact::from(&reply))
    }

    /// The agent's own stream of what it says: at once, then on change.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn watch(&self) -> Result<tonic::Streaming<v1::StatusReply>, Fail> {
        self.call(CALL, |mut c| async move { c.watch(v1::WatchRequest {}).await })
            .await
    }

    /// Stages and waits for the end. The agent goes on when we go away; the same id joins.
    ///
    /// # Errors
    /// The agent's, or a stream that broke.
    pub async fn stage(&self, request: v1::StageRequest) -> Result<v1::StageResult, Fail> {
        let mut stream = self
            .call(CALL, |mut c| async move { c.stage(request).await })
            .await?;
        loop {
            match stream.message().await {
                Err(s) => return Err(fail_of(&s)),
                Ok(None) => {
                    return Err(passing(
                        "AgentUnavailable",
                        "the stream of Stage ended without a result",
                    ));
                }
                Ok(Some(m)) => {
                    if let Some(stage_event::Event::Result(r)) = m.event {
                        return Ok(r);
                    }
                }
            }
        }
    }

    /// Applies settings, or only asks whether they would be accepted.
    ///
    /// # Errors
    /// `ConfigRejected` when an entry is rejected; the agent's own.
    pub async fn configure(&self, op_id: &str, configs: &Configs, dry_run: bool) -> Result<(), Fail> {
        let request = v1::ConfigureRequest {
            op_id: op_id.to_owned(),
            dry_run,
            configs: wire_configs(configs),
        };
        let reply = self
            .call(LONG_CALL, |mut c| async move { c.configure(request).await })
            .await
            .map_err(|f| match f.reason.as_str() {
                // A model that the agent does not know, or cannot apply here, will not become better by waiting.
                "InvalidArgument" | "Unimplemented" | "UnsupportedFormat" => Fail {
                    reason: "ConfigRejected".into(),
                    ..f
                },
                _ => f,
            })?;
        let bad: Vec<String> = reply
            .results
            .iter()
            .filter(|r| r.outcome == "rejected")
            .map(|r| format!("{} {}: {}", r.model, r.key, r.message))
            .collect();
        if bad.is_empty() {
            return Ok(());
        }
        Err(Fail {
            reason: "ConfigRejected".into(),
            message: format!(
                "{} of {} entries: {}",
                bad.len(),
                reply.results.len(),
                bad.join("; ")
            ),
            passing: false,
        })
    }

    /// Arms the staged slot and reboots.
    ///
    /// # Errors
    /// The agent's refusals.
    pub async fn activate(&self, request: v1::ActivateRequest) -> Result<(), Fail> {
        self.call(LONG_CALL, |mut c| async move { c.activate(request).await })
            .await
            .map(drop)
    }

    /// Makes the running slot the default.
    ///
    /// # Errors
    /// The agent's refusals.
    pub async fn commit(&self, op_id: &str, digest: &str, boot_id: &str) -> Result<(), Fail> {
        let request = v1::CommitRequest {
            op_id: op_id.into(),
            digest: digest.into(),
            boot_id: boot_id.into(),
        };
        self.call(LONG_CALL, |mut c| async move { c.commit(request).await })
            .await
            .map(drop)
    }

    /// Ends the trial: the previous slot boots at once.
    ///
    /// # Errors
    /// The agent's refusals.
    pub async fn rollback(&self, op_id: &str, boot_id: &str) -> Result<(), Fail> {
        let request = v1::RollbackRequest {
            op_id: op_id.into(),
            expect_boot_id: boot_id.into(),
            reboot: true,
        };
        self.call(LONG_CALL, |mut c| async move { c.rollback(request).await })
            .await
            .map(drop)
    }

    /// Disarms.
    ///
    /// # Errors
    /// The agent's refusals.
    pub async fn cancel(&self, op_id: &str, boot_id: &str) -> Result<(), Fail> {
        let request = v1::CancelRequest {
            op_id: op_id.into(),
            expect_boot_id: boot_id.into(),
            target_op_id: String::new(),
        };
        self.call(CALL, |mut c| async move { c.cancel(request).await })
            .await
            .map(drop)
    }

    /// Lifts the denial of a digest; one that is not denied is no error.
    ///
    /// # Errors
    /// The agent's.
    pub async fn forget(&self, digest: &str) -> Result<(), Fail> {
        let request = v1::ForgetRequest {
            digest: digest.into(),
        };
        match self
            .call(CALL, |mut c| async move { c.forget(request).await })
            .await
        {
            Err(f) if f.reason != "NothingToDo" => Err(f),
            _ => Ok(()),
        }
    }
}

/// The source of an order as the agent takes it. `other` is the slot that does not run.
pub fn wire_source(s: &OrderSource, other: v1::Slot) -> v1::Source {
    let from = match (&s.url, &s.image, &s.slot) {
        (Some(u), _, _) => Some(FromSource::Url(u.clone())),
        (_, Some(i), _) => Some(FromSource::Oci(i.clone())),
        (_, _, Some(_)) => Some(FromSource::Slot(other as i32)),
        _ => None,
    };
    v1::Source {
        from,
        certificates: Some(v1::Certificates {
            cacert: s.cacert.clone(),
            clientcert: s.clientcert.clone(),
            clientkey: s.clientkey.clone(),
        }),
        mtls: s.mtls,
        allow_http: s.allowhttp,
    }
}

/// KubeOS's settings as the agent takes them: order kept, values as JSON.
pub fn wire_configs(configs: &Configs) -> Vec<v1::Config> {
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    configs
        .configs
        .iter()
        .map(|c| v1::Config {
            model: text(&c.model),
            configpath: text(&c.configpath),
            contents: c
                .contents
                .iter()
                .map(|e| v1::ConfigContent {
                    key: text(&e.key),
                    value_json: match &e.value {
                        serde_json::Value::Null => String::new(),
                        v => v.to_string(),
                    },
                    operation: text(&e.operation),
                })
                .collect(),
        })
        .collect()
}

impl From<&v1::StatusReply> for AgentFact {
    fn from(s: &v1::StatusReply) -> AgentFact {
        let known = |slot: &v1::SlotStatus| -> Vec<String> {
            let mut all = slot.payload_digests.clone();
            if !slot.image_sha256.is_empty() && !all.contains(&slot.image_sha256) {
                all.push(slot.image_sha256.clone());
            }
            all
        };
        let running = s.slots.iter().find(|x| x.running);
        let whole = |x: &&v1::SlotStatus| {
            !x.running && matches!(x.state(), v1::SlotState::Verified | v1::SlotState::Committed)
        };
        let other = s.slots.iter().find(whole);
        let first = |x: Option<&v1::SlotStatus>| x.map(known).unwrap_or_default();
        let (runs, previous) = (first(running), first(other));
        // The previous system is whole as well, but the agent boots only what was staged since: going back to it is staged
        // like any other image (the agent reads it back).
        let is_staged = matches!(s.phase(), v1::Phase::Staged | v1::Phase::Armed);
        let staged = if is_staged { previous.clone() } else { Vec::new() };
        let trial = s.phase() == v1::Phase::Trial;
        let healthy = match &s.health {
            Some(h) => h.healthy,
            None => !trial,
        };
        let failure = s.last_failure.as_ref();
        AgentFact {
            report: AgentReport {
                boot_id: s.boot_id.clone(),
                machine_id: s.machine_id.clone(),
                slot: match s.running() {
                    v1::Slot::A => "A".into(),
                    v1::Slot::B => "B".into(),
                    v1::Slot::Unspecified => String::new(),
                },
                os_version: s.os_version.clone(),
                version_id: s.version_id.clone(),
                digest: runs.first().cloned().unwrap_or_default(),
                digests: runs,
                staged_digest: staged.first().cloned().unwrap_or_default(),
                previous_digest: previous.first().cloned().unwrap_or_default(),
                previous_version: other.map(|x| x.version.clone()).unwrap_or_default(),
                staged_digests: staged,
                tries_left: s.trial.as_ref().map(|t| t.tries_left),
                healthy,
            },
            trial,
            armed: s.phase() == v1::Phase::Armed,
            boot_op: s.trial.as_ref().map(|t| t.op_id.clone()).unwrap_or_default(),
            last_op: s.operation.as_ref().map(|o| o.op_id.clone()).unwrap_or_default(),
            denied: s
                .failed_digests
                .iter()
                .filter(|f| f.denied)
                .map(|f| f.digest.clone())
                .collect(),
            fell_back_from: failure.map(|f| f.digest.clone()).unwrap_or_default(),
            // Begins with the slot and the cause.
            fall_back_cause: failure.map(|f| f.message.clone()).unwrap_or_default(),
            // An armed slot wants a reboot too; that is our own doing.
            reboot_required: (s.reboot_required && s.phase() == v1::Phase::Idle)
                .then(|| s.reboot_reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
