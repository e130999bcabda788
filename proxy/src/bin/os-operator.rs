//! os-operator: see `os-operator --help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use jiff::tz::TimeZone;
use kube::Client;
use os_proxy::operator::{LeaseOptions, Options, Settings, plan, run};
use os_proxy::{clock, crds, window};

const HELP: &str = "\
Environment: in a pod the service account is used, elsewhere KUBECONFIG or ~/.kube/config; RUST_LOG says how much is logged \
(default info); TZ is the zone of timewindow where --timewindow-zone is not given.

Exit codes: 0 stopped by SIGTERM or SIGINT, or a plan of a valid manifest; 1 could not begin (no cluster, address in use, file \
not readable or no OS manifest), said on standard error; 2 wrong arguments; 3 plan: the manifest is not valid.

Pages: /metrics, /healthz, /readyz (503 with the reason while a right is missing or the definitions are not ours).
See docs/rollout.md.";

/// Decides which nodes may be taken down for an update of their system, and when to stop.
#[derive(Parser)]
#[command(version, about, after_help = HELP)]
struct Args {
    /// Print the CustomResourceDefinitions as YAML and exit.
    #[arg(long)]
    print_crds: bool,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "0.0.0.0:8080", env = "HTTP_ADDRESS")]
    http: String,
    /// Namespace of the Lease.
    #[arg(long, default_value = os_proxy::api::SYSTEM_NAMESPACE, env = "POD_NAMESPACE")]
    namespace: String,
    /// Unique name of this process. Default: host name and process id.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Node on which this operator runs; it is updated last.
    #[arg(long, env = "NODE_NAME")]
    node: Option<String>,
    /// Time zone of KubeOS's `timewindow`. Default: TZ, then /etc/localtime.
    #[arg(long)]
    timewindow_zone: Option<String>,
    /// More than this share of workers not Ready without our doing stops everything.
    #[arg(long, default_value_t = 20)]
    breaker_percent: u32,
    /// Cap on requests per second.
    #[arg(long, default_value_t = 50)]
    requests_per_second: u32,
    /// Seconds that a boot takes beyond the health timeout; reboottimeout must hold three of both.
    #[arg(long, default_value_t = 300, hide = true)]
    boot_margin: i64,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Says what an OS manifest would do, node by node. Writes nothing. Exit code 3 if the manifest is not valid.
    Plan {
        /// The manifest.
        #[arg(short, long)]
        file: PathBuf,
        /// Check the manifest only; needs no cluster.
        #[arg(long)]
        offline: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match start(args).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("os-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(args: Args) -> anyhow::Result<ExitCode> {
    if args.print_crds {
        print!("{}", crds::yaml().context("writing the definitions as YAML")?);
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(&args)?;
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a TLS provider is installed already");
    }
    match &args.command {
        Some(Command::Plan { file, offline }) => show_plan(file, *offline, settings).await,
        None => serve(args, settings).await,
    }
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let (zone, name) = match &args.timewindow_zone {
        Some(name) => {
            let zone = window::zone(name).with_context(|| {
                format!("--timewindow-zone: expected a name of the IANA time-zone database such as Europe/Berlin, found {name:?}")
            })?;
            (zone, name.clone())
        }
        None => {
            let zone = TimeZone::try_system().unwrap_or(TimeZone::UTC);
            let name = zone.iana_name().unwrap_or("of /etc/localtime").to_owned();
            (zone, name)
        }
    };
    Ok(Settings {
        timewindow_zone: zone,
        timewindow_zone_name: name,
        own_node: args.node.clone(),
        breaker_percent: args.breaker_percent,
        boot_margin_secs: args.boot_margin,
        ..Settings::default()
    })
}

async fn client() -> anyhow::Result<Client> {
    let mut config = kube::Config::infer()
        .await
        .context("finding the cluster (in-cluster account, or KUBECONFIG)")?;
    // Writes carry preconditions; a retry behind our back would hide why one failed.
    config.default_retry = false;
    Client::try_from(config).context("making a client")
}

async fn show_plan(file: &PathBuf, offline: bool, settings: Settings) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let client = if offline { None } else { Some(client().await?) };
    let (text, valid) = plan::plan(client, &text, settings, clock::now())
        .await
        .with_context(|| file.display().to_string())?;
    print!("{text}");
    Ok(if valid {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

async fn serve(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .init();
    let client = client().await?;
    let listener = tokio::net::TcpListener::bind(&args.http)
        .await
        .with_context(|| format!("listening on {}", args.http))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let identity = format!("{}_{}", args.identity.unwrap_or(host), std::process::id());
    let mut options = Options::new(LeaseOptions::new(args.namespace, identity));
    options.settings = settings;
    options.requests_per_second = args.requests_per_second;
    let (tell, stop) = tokio::sync::watch::channel(false);
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        let _ = tell.send(true);
    });
    run(client, options, Some(listener), stop).await;
    Ok(ExitCode::SUCCESS)
}
