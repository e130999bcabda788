//! `os-agent steps …`: works in this process, on the runner's own directories; the runner's lock keeps two runs apart.

mod args;
mod logs;
mod render;

pub(crate) use args::StepsArgs;
use args::{Answer, FlagAction, StepsCommand};
use os_agent::error::{AgentError, Result};
use os_agent::steps::metrics::{self, Meter};
use os_agent::steps::{self, Place, serve, show};
use os_agent::{node, notify, server};
use os_proto::codes::{Code, exit};
use os_steps::run::Options;
use os_steps::source::Source;
use os_steps::state::State;
use os_steps::sys::clock::Stop;
use os_steps::tick::{Service, verdict};
use std::process::ExitCode;

/// Runs a subcommand and says how it ended.
pub(super) async fn run(a: StepsArgs, place: &super::Where, handle: tokio::runtime::Handle) -> ExitCode {
    let json = place.json;
    match command(a, place, handle).await {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            super::tell(&e);
            if json {
                let doc = serde_json::json!({
                    "code": e.code.as_str(), "class": e.class().as_str(), "message": e.message});
                super::out(&format!("{doc}\n"));
            }
            ExitCode::from(e.code.exit_code())
        }
    }
}

fn where_(a: &args::Places) -> Place {
    let d = Place::default();
    Place {
        steps: a.steps_dir.clone().unwrap_or(d.steps),
        root: a.root.clone(),
        boot_id: a.boot_id_file.clone().unwrap_or(d.boot_id),
        systemctl: a.systemctl.clone().unwrap_or(d.systemctl),
    }
}

async fn command(a: StepsArgs, place: &super::Where, handle: tokio::runtime::Handle) -> Result<u8> {
    let at = where_(&a.places);
    let json = place.json;
    match a.command {
        StepsCommand::Serve => serve_unit(place, &at, handle).await.map(|()| exit::DONE),
        StepsCommand::Run(r) if r.check && !r.inside => check(&r, &a.places, place),
        StepsCommand::Run(r) => {
            super::serve::log();
            let stop = Stop::default();
            end_on_signal(stop.clone());
            let service = built(place, &at, &handle, r.sha256.clone(), r.allow_http, stop)?;
            blocking(move || once(&service, &r, json)).await
        }
        StepsCommand::Plan { bundle } => {
            let service = built(place, &at, &handle, None, false, Stop::default())?;
            blocking(move || {
                let source = Source::parse(bundle.as_deref().unwrap_or_default(), &service.runner.settings)?;
                let b = service.loader.load(&source)?.ok_or_else(|| {
                    AgentError::new(Code::NothingToDo, "no bundle was given, configured or applied")
                })?;
                let decision = service.runner.plan(&b, &Options::default())?;
                let reply = show::plan_reply(&b, &decision, os_steps::needs::of_machine(&b));
                super::print(json, &show::plan_json(&reply), &show::plan_text(&reply));
                Ok(exit::DONE)
            })
            .await
        }
        StepsCommand::Status => {
            let dirs = os_steps::dirs::Dirs::new(&at.steps, at.root.as_deref());
            let state = State::load(&dirs.steps)?;
            let reply = show::status_reply(&dirs, &state);
            super::print(
                json,
                &show::status_json(&reply, &state, show::cut(&dirs, &state).as_ref()),
                &show::status_text(&reply, &state),
            );
            Ok(exit::DONE)
        }
        StepsCommand::Approve { what, content } => {
            let dirs = os_steps::dirs::Dirs::new(&at.steps, at.root.as_deref());
            let name = match what {
                Answer::Update => "update",
                Answer::Disruption => "disruption",
                Answer::Drained => "drained",
            };
            let hash = steps::approve(&dirs, name, content.as_deref())?;
            super::print(
                json,
                &serde_json::json!({"approved": name, "content_hash": hash}),
                &format!(
                    "{name} is approved for content {}; the next look at the bundle goes on\n",
                    os_steps::plan::short(&hash)
                ),
            );
            Ok(exit::DONE)
        }
        StepsCommand::Render(r) => blocking(move || render::render(&r, json)).await,
        StepsCommand::Explain { old, new, contexts } => {
            let dirs = os_steps::dirs::Dirs::new(&at.steps, at.root.as_deref());
            blocking(move || render::explain(&dirs, &old, &new, contexts.as_deref(), json)).await
        }
        StepsCommand::Logs { run, step } => logs::logs(&at.steps, run.as_deref(), step.as_deref(), json),
        StepsCommand::Flag { action } => flag(&at, action, json),
    }
}

async fn blocking(f: impl FnOnce() -> Result<u8> + Send + 'static) -> Result<u8> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|e| AgentError::new(Code::Internal, format!("the command broke off: {e}")))?
}

fn built(
    place: &super::Where,
    at: &Place,
    handle: &tokio::runtime::Handle,
    sha256: Option<String>,
    allow_http: bool,
    stop: Stop,
) -> Result<Service> {
    let mut config = node::config(place.config.as_deref())?;
    if let Some(s) = sha256 {
        config.steps.sha256 = s;
    }
    config.steps.allow_http |= allow_http;
    let policy = node::policy(&config.fetch, node::CREDENTIALS.into());
    let (_, sink) = serve::events(Meter::default());
    Ok(steps::service(handle, &config, policy, at, sink, stop))
}

/// SIGINT, SIGTERM and SIGHUP (unless ignored) end the steps that run, in order, and then the run.
fn end_on_signal(stop: Stop) {
    let mut signals = super::target::Stop::caught();
    tokio::spawn(async move {
        signals.asked().await;
        stop.stop();
    });
}

fn once(service: &Service, r: &args::RunArgs, json: bool) -> Result<u8> {
    let source = Source::parse(r.bundle.as_deref().unwrap_or_default(), &service.runner.settings)?;
    let options = Options {
        tick: false,
        from_start: r.from_start || r.inside,
        max_attempts: if r.inside { Some(1) } else { r.max_attempts },
        check: r.inside,
        approve: r.approve,
        approve_disruption: r.approve_disruption,
    };
    let ended = if r.inside {
        // Loaded before the real system disappears behind the overlays.
        let bundle = service.loader.load(&source)?.ok_or_else(|| {
            AgentError::new(Code::NothingToDo, "no bundle was given, configured or applied")
        })?;
        os_steps::dry::enter()?;
        service.runner.run(&bundle, &options)?
    } else {
        service.look(&source, &options)?
    };
    let mut text = String::new();
    for n in &ended.notes {
        text += n;
        text.push('\n');
    }
    text += &show::line(&ended.outcome);
    text.push('\n');
    super::print(json, &show::ended_json(&ended), &text);
    Ok(verdict(&ended.outcome).map_or(exit::DONE, |e| e.code.exit_code()))
}

/// Starts this program again inside namespaces of its own.
fn check(r: &args::RunArgs, places: &args::Places, place: &super::Where) -> Result<u8> {
    let exe =
        std::env::current_exe().map_err(|e| AgentError::new(Code::Internal, format!("own program: {e}")))?;
    let mut args: Vec<String> = Vec::new();
    if place.json {
        args.push("--json".into());
    }
    if let Some(c) = &place.config {
        args.extend(["--config".into(), c.to_string()]);
    }
    args.push("steps".into());
    for (name, value) in [("--steps-dir", &places.steps_dir), ("--root", &places.root)] {
        if let Some(v) = value {
            args.extend([name.to_owned(), v.to_string()]);
        }
    }
    args.extend(["run".into(), "--check".into(), "--inside".into()]);
    if let Some(s) = &r.sha256 {
        args.extend(["--sha256".into(), s.clone()]);
    }
    args.extend(r.bundle.clone());
    let argv = os_steps::dry::command(&exe.to_string_lossy(), &args)?;
    // Only returns when it could not be done.
    Err(os_steps::sys::child::replace(&argv).into())
}

async fn serve_unit(place: &super::Where, at: &Place, handle: tokio::runtime::Handle) -> Result<()> {
    super::serve::log();
    let config = node::config(place.config.as_deref())?;
    let policy = node::policy(&config.fetch, node::CREDENTIALS.into());
    let access = server::Access::group(os_proto::SOCKET_GROUP);
    let socket = server::Socket::bind(&place.socket.with_file_name(steps::SOCKET), access)?;
    let meter = Meter::default();
    let (events, sink) = serve::events(meter.clone());
    let stop = Stop::default();
    let service = steps::service(&handle, &config, policy, at, sink, stop.clone());
    if !config.metrics_textfile.as_str().is_empty() {
        let path = config.metrics_textfile.with_file_name(metrics::FILE);
        tokio::spawn(metrics::keep(meter, service.runner.dirs.clone(), path));
    }
    end_on_signal(stop.clone());
    let end = async move {
        while !stop.stopped() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        notify::stopping();
    };
    notify::ready();
    serve::serve(service, events, socket, access, end).await
}

fn flag(at: &Place, action: FlagAction, json: bool) -> Result<u8> {
    let dirs = os_steps::dirs::Dirs::new(&at.steps, at.root.as_deref());
    let path = |name: &str| -> Result<camino::Utf8PathBuf> {
        os_proto::bundle::check_name(name).map_err(|e| AgentError::new(Code::InvalidArgument, e.0))?;
        Ok(dirs.flags().join(name))
    };
    match action {
        FlagAction::List => {
            let mut names: Vec<String> = dirs
                .flags()
                .read_dir_utf8()
                .into_iter()
                .flatten()
                .flatten()
                .map(|e| e.file_name().to_owned())
                .collect();
            names.sort();
            let text: String = names.iter().map(|n| format!("{n}\n")).collect();
            super::print(json, &serde_json::json!({"flags": names}), &text);
        }
        FlagAction::Set { name } => {
            let p = path(&name)?;
            os_steps::sys::atomic::private_dir(&dirs.flags())?;
            drop(os_steps::sys::atomic::append(&p)?);
        }
        FlagAction::Unset { name } => os_steps::sys::atomic::remove(&path(&name)?)?,
    }
    Ok(exit::DONE)
}
