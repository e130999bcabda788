//! The command line: arguments in, one call, one answer out. Exit codes are those of `os_proto::codes`.

mod args;
mod configure;
mod crashtest;
mod doctor;
mod progress;
mod serve;
mod show;
mod steps;
mod target;

pub(crate) use args::Cli;
use args::{Command, StageArgs, Where};
use os_agent::error::{AgentError, Result};
use os_agent::node::OfflineDisk;
use os_agent::ports::Report;
use os_proto::codes::{Code, exit};
use os_proto::layout::Slot;
use os_proto::terminal::plain;
use os_proto::v1;
use progress::Progress;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use target::Target;

impl Where {
    fn offline(&self) -> Option<OfflineDisk> {
        Some(OfflineDisk {
            disk: self.disk.clone()?,
            running: self.running?,
            state: self.state.clone(),
        })
    }
}

/// Runs a command and says how it ended.
pub(crate) async fn run(cli: Cli, handle: tokio::runtime::Handle) -> ExitCode {
    let code = answer(cli, handle).await;
    // What was done is done; who asked has not got the answer.
    if LOST.load(Ordering::Relaxed) && code == ExitCode::SUCCESS {
        return ExitCode::from(exit::FAILED);
    }
    code
}

async fn answer(cli: Cli, handle: tokio::runtime::Handle) -> ExitCode {
    let json = cli.place.json;
    let result = match cli.command {
        Command::Serve => serve::run(cli.place, handle).await,
        Command::ApiProxy(a) => serve::api_proxy(&a.file).await,
        Command::Steps(a) => return steps::run(a, &cli.place, handle).await,
        // What they find is their answer, not an error beside it.
        Command::Crashtest(a) => match crashtest::run(&a, json).await {
            Ok(code) => return ExitCode::from(code),
            Err(e) => Err(e),
        },
        Command::Doctor(a) => match doctor::run(a, &cli.place, handle).await {
            Ok(code) => return ExitCode::from(code),
            Err(e) => Err(e),
        },
        other => command(other, &cli.place, handle).await,
    };
    match result {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(e) => {
            tell(&e);
            if json {
                out(&format!("{}\n", document(&e)));
            }
            ExitCode::from(e.code.exit_code())
        }
    }
}

/// A command line that is none: text as ever, and with --json the same document as every other error.
pub(crate) fn usage(e: &clap::Error, json: bool) -> ExitCode {
    let _ = e.print();
    if !e.use_stderr() {
        return ExitCode::from(exit::DONE);
    }
    if json {
        let text = e.render().to_string();
        let message = text.trim().trim_start_matches("error: ");
        out(&format!(
            "{}\n",
            document(&AgentError::new(Code::InvalidArgument, message))
        ));
    }
    ExitCode::from(exit::USAGE)
}

fn document(e: &AgentError) -> serde_json::Value {
    serde_json::json!({"code": e.code.as_str(), "class": e.class().as_str(), "message": e.message})
}

/// A part of the answer could not be written to standard output.
static LOST: AtomicBool = AtomicBool::new(false);

/// Tells on standard error why a command failed.
fn tell(e: &impl std::fmt::Display) {
    eprintln!("os-agent: {}", plain(&e.to_string()));
}

/// Prints to standard output; a reader that went away is no failure, a full disk is.
fn out(text: &str) {
    let mut o = std::io::stdout();
    match o.write_all(plain(text).as_bytes()).and_then(|()| o.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("os-agent: the answer could not be written to standard output: {e}");
            LOST.store(true, Ordering::Relaxed);
        }
        _ => {}
    }
}

fn print(json: bool, value: &serde_json::Value, text: &str) {
    if json {
        out(&format!(
            "{}\n",
            serde_json::to_string_pretty(value).unwrap_or_default()
        ));
    } else {
        out(text);
    }
}

async fn command(command: Command, place: &Where, handle: tokio::runtime::Handle) -> Result<()> {
    let json = place.json;
    let looks = matches!(
        command,
        Command::Status | Command::History { .. } | Command::VerifySlot { .. }
    ) || matches!(&command, Command::Stage(a) if a.dry_run)
        || matches!(&command, Command::Configure(a) if a.dry_run);
    // A file with a mistake needs no agent to be told so.
    let configs = match &command {
        Command::Configure(a) => configure::read(a)?,
        _ => Vec::new(),
    };
    match &command {
        Command::Report {
            what: Some(args::ReportPart::Etc),
        } => return report_etc(place).await,
        Command::Report { what: None } => return doctor::report(place, handle).await,
        Command::GrowPersist => return serve::grow_persist(place).await,
        _ => {}
    }
    let again = handle.clone();
    let mut target = Target::open(place, handle, looks).await?;
    let result = match command {
        Command::Status => target
            .status()
            .await
            .map(|s| print(json, &show::status_json(&s), &show::status(&s))),
        Command::Watch if place.offline().is_some() => Err(AgentError::new(
            Code::InvalidArgument,
            "watch follows an agent that runs; on a disk nothing goes on between two commands: use status",
        )),
        Command::Watch => watch(&mut target, json).await,
        Command::Stage(a) => stage(&mut target, a, json).await,
        Command::Activate(a) => {
            let request = v1::ActivateRequest {
                op_id: a.op_id,
                digest: a.digest,
                reboot: a.reboot,
                deadline_secs: a.deadline_secs,
                confirm: a.confirm as i32,
                on_silence: a.on_silence as i32,
                ..Default::default()
            };
            let progress = Progress::new(json);
            target.activate(request, &progress).await.map(|r| {
                let slot = show::slot(r.slot);
                let text = if r.reboot_requested {
                    format!("slot {slot} is armed; the node reboots\n")
                } else {
                    format!("slot {slot} is armed; the next boot tries it\n")
                };
                let doc = serde_json::json!({"op_id": r.op_id, "slot": slot, "reboot_requested": r.reboot_requested});
                print(json, &doc, &text);
            })
        }
        Command::Commit(a) => {
            let request = v1::CommitRequest {
                digest: a.digest,
                ..Default::default()
            };
            target.commit(request, a.force).await.map(|r| {
                let slot = show::slot(r.slot);
                let was = if r.already { " already" } else { "" };
                let forced = a.force && !r.already;
                let doc = serde_json::json!({
                    "committed": r.committed, "slot": slot, "already": r.already, "forced": forced});
                let how = if forced {
                    "; forced: nobody checked that it can boot"
                } else {
                    ""
                };
                print(json, &doc, &format!("slot {slot} is the default{was}{how}\n"));
            })
        }
        Command::Rollback(a) => {
            let request = v1::RollbackRequest {
                reboot: a.reboot,
                ..Default::default()
            };
            let progress = Progress::new(json);
            target.rollback(request, &progress).await.map(|r| {
                let slot = show::slot(r.slot);
                let how = if r.reboot_requested {
                    "; the node reboots"
                } else {
                    ""
                };
                let doc = serde_json::json!({"slot": slot, "reboot_requested": r.reboot_requested});
                print(json, &doc, &format!("slot {slot} boots next{how}\n"));
            })
        }
        Command::Cancel(a) => {
            let request = v1::CancelRequest {
                target_op_id: a.op_id,
                ..Default::default()
            };
            target
                .cancel(request)
                .await
                .map(|()| print(json, &serde_json::json!({"cancelled": true}), "cancelled\n"))
        }
        Command::Forget { digest } => target
            .forget(&digest)
            .await
            .map(|()| print(json, &serde_json::json!({"forgotten": true}), "forgotten\n")),
        Command::VerifySlot { slot } => verify(&mut target, slot, place, again).await,
        Command::Configure(a) => configure::run(&mut target, &a, configs, json).await,
        Command::History { limit } => target
            .history(limit)
            .await
            .map(|h| print(json, &show::history_json(&h), &show::history(&h))),
        _ => Ok(()),
    };
    target.close();
    result
}

/// `report etc`: files of the node that hide what the running image brings.
async fn report_etc(place: &Where) -> Result<()> {
    if place.disk.is_some() {
        return Err(AgentError::new(
            Code::InvalidArgument,
            "report etc looks at the running node: leave --disk out",
        ));
    }
    let look = || os_agent::sys::discover::online().and_then(|l| os_agent::etc_layer::running(&l));
    let found = tokio::task::spawn_blocking(look)
        .await
        .map_err(|e| AgentError::new(Code::Internal, format!("report: {e}")))??;
    let doc = serde_json::json!({ "hidden": found });
    print(place.json, &doc, &show::hidden(&found));
    Ok(())
}

/// One line per change: text for people, one JSON document per line for programs.
async fn watch(target: &mut Target, json: bool) -> Result<()> {
    let mut last = String::new();
    target
        .watch(|s| {
            let line = if json {
                show::status_json(&s).to_string()
            } else {
                show::line(&s)
            };
            if line != last {
                out(&format!("{line}\n"));
            }
            last = line;
        })
        .await
}

async fn stage(target: &mut Target, a: StageArgs, json: bool) -> Result<()> {
    let request = request(&a)?;
    let of = request.source.as_ref().and_then(|s| s.from.clone());
    let progress = Progress::new(json);
    let result = target.stage(request, a.no_wait, &progress).await;
    progress.end();
    match result? {
        target::Staged::Begun(op_id) => print(
            json,
            &serde_json::json!({"op_id": op_id, "begun": true}),
            &format!("staging has begun as operation {op_id}; see os-agent status\n"),
        ),
        target::Staged::Done(r) if a.dry_run => print(
            json,
            &serde_json::json!({"would_stage": true, "digest": r.digest}),
            match &of {
                Some(v1::source::From::File(_)) => {
                    "it would be accepted; kind and size of the file were looked at, its checksum and its content were not\n"
                }
                _ => {
                    "it would be accepted; nothing was fetched, so the address and what it holds were not looked at\n"
                }
            },
        ),
        target::Staged::Done(r) => print(json, &show::staged_json(&r), &show::staged(&r)),
    }
    Ok(())
}

fn request(a: &StageArgs) -> Result<v1::StageRequest> {
    let usage = |m: String| AgentError::new(Code::InvalidArgument, m);
    if a.image.is_empty() {
        return Err(usage(
            "--image: expected a URL, a file, oci:REFERENCE or slot:A|B, found nothing".to_owned(),
        ));
    }
    let from = if let Some(s) = a.image.strip_prefix("slot:") {
        let slot: Slot = s.parse().map_err(usage)?;
        v1::source::From::Slot(v1::Slot::from(slot) as i32)
    } else if a.image.starts_with("oci:") || a.image.starts_with("docker://") {
        v1::source::From::Oci(a.image.clone())
    } else if let Some(path) = a.image.strip_prefix("file://") {
        v1::source::From::File(path.to_owned())
    } else if a.image.contains("://") {
        v1::source::From::Url(a.image.clone())
    } else {
        let path = std::path::absolute(&a.image).map_err(|e| usage(format!("{}: {e}", a.image)))?;
        v1::source::From::File(path.to_string_lossy().into_owned())
    };
    if a.limit_rate.is_some() && matches!(from, v1::source::From::File(_) | v1::source::From::Slot(_)) {
        return Err(usage(
            "--limit-rate is for downloads: files and slots of this machine are read as fast as they come"
                .to_owned(),
        ));
    }
    if a.sha256.is_empty() && !matches!(from, v1::source::From::Slot(_) | v1::source::From::Oci(_)) {
        return Err(usage(
            "--sha256 HEX is needed: the SHA-256 of the file".to_owned(),
        ));
    }
    Ok(v1::StageRequest {
        op_id: a.op_id.clone(),
        source: Some(v1::Source {
            from: Some(from),
            certificates: Some(v1::Certificates {
                cacert: certificate(a.ca.as_deref())?,
                clientcert: certificate(a.cert.as_deref())?,
                clientkey: certificate(a.key.as_deref())?,
            }),
            mtls: a.cert.is_some(),
            allow_http: a.allow_http,
        }),
        checksum: a.sha256.clone(),
        os_image: a.version.clone().unwrap_or_default(),
        allow_older: a.allow_older,
        full_fallback: false,
        force: a.force,
        dry_run: a.dry_run,
        rate_bytes_per_sec: a.limit_rate.unwrap_or(0),
    })
}

/// A certificate file as the interface wants it: an absolute path; empty = none.
fn certificate(path: Option<&camino::Utf8Path>) -> Result<String> {
    let Some(p) = path else {
        return Ok(String::new());
    };
    std::path::absolute(p)
        .map(|p| p.to_string_lossy().into_owned())
        .map_err(|e| AgentError::new(Code::InvalidArgument, format!("{p}: {e}")))
}

async fn verify(
    target: &mut Target,
    slot: Option<Slot>,
    place: &Where,
    handle: tokio::runtime::Handle,
) -> Result<()> {
    let json = place.json;
    let progress = Arc::new(Progress::new(json));
    let report: Arc<dyn Report> = progress.clone();
    let r = target.verify_slot(slot, report).await;
    progress.end();
    let r = r?;
    let name = show::slot(r.slot);
    let doc = serde_json::json!({"slot": name, "ok": r.ok, "image_sha256": r.image_sha256, "wanted_sha256": r.wanted_sha256});
    if r.ok {
        print(
            json,
            &doc,
            &format!("slot {name} is {}, as recorded\n", r.image_sha256),
        );
        return Ok(());
    }
    if place.disk.is_some() {
        // So far it only looked. Whoever can write the state makes sure that this slot is not tried.
        target.close();
        match Target::open(place, handle, false).await {
            Ok(mut writer) => {
                let noted = writer.verify_slot(slot, Arc::new(Progress::new(true))).await;
                writer.close();
                if let Err(e) = noted {
                    eprintln!("os-agent: this could not be noted in the state: {e}");
                }
            }
            Err(e) => eprintln!("os-agent: this could not be noted in the state: {e}"),
        }
    }
    if json {
        print(json, &doc, "");
    }
    Err(AgentError::new(
        Code::MediumCorrupt,
        format!(
            "slot {name} is {}, recorded is {}",
            r.image_sha256, r.wanted_sha256
        ),
    ))
}
