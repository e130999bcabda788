//! The grammar of the command line.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};
use os_agent::settings::document::Part;
use os_proto::layout::Slot;
use os_proto::v1;

/// Updates the operating system of this node: fetches an image, writes it to the inactive slot, tries it, keeps it or
/// falls back.
#[derive(Debug, Parser)]
#[command(
    name = "os-agent",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 refused, 4 corrupt or not authentic, 5 temporary\n\n\
Examples:\n  \
os-agent status\n  \
os-agent stage --image https://images.example/2/update.img --sha256 9f86…  --version 2\n  \
os-agent activate --reboot\n  \
os-agent status --disk system.img --running A      (offline, without a daemon and without root)\n\n\
SIGINT, SIGTERM and SIGHUP (unless ignored, as by nohup) end a running stage: Cancelled, exit code 3; the same command takes\n\
it up again."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the command works.
#[derive(Debug, Clone, Args)]
pub(crate) struct Where {
    /// Work on this disk image or disk instead of the running node
    #[arg(long, global = true, value_name = "IMAGE", requires = "running")]
    pub(crate) disk: Option<Utf8PathBuf>,
    /// With --disk: the slot that counts as running and is left alone (a and b do as well)
    #[arg(long, global = true, value_name = "A|B", requires = "disk")]
    pub(crate) running: Option<Slot>,
    /// With --disk: the state directory [default: IMAGE.state]
    #[arg(long, global = true, value_name = "DIR", requires = "disk")]
    pub(crate) state: Option<Utf8PathBuf>,
    /// The agent's socket
    #[arg(long, global = true, value_name = "PATH", default_value = os_proto::SOCKET_PATH)]
    pub(crate) socket: Utf8PathBuf,
    /// Read this configuration after all others
    #[arg(long, global = true, value_name = "FILE", env = "OS_AGENT_CONFIG")]
    pub(crate) config: Option<Utf8PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent (started by os-agent.service)
    #[command(
        after_help = "Works on the running node only: --disk, --running and --state are refused.\n\nExamples:\n  \
os-agent serve\n  \
os-agent serve --config lab.toml --socket /tmp/os-agent.sock"
    )]
    Serve,
    /// Show the slots, what boots next, and what happened
    #[command(after_help = "Examples:\n  \
os-agent status\n  \
os-agent status --json\n  \
os-agent status --disk system.img --running A")]
    Status,
    /// Show the status again on every change
    #[command(after_help = "Examples:\n  \
os-agent watch\n  \
os-agent watch --json | jq -r .phase")]
    Watch,
    /// Fetch an image, write it to the inactive slot and read it back
    #[command(after_help = "Examples:\n  \
os-agent stage --image https://images.example/2/update.img --sha256 9f86d081…\n  \
os-agent stage --image ./update.img --sha256 $(sha256sum < update.img | cut -d' ' -f1) --version 2\n  \
os-agent stage --image slot:B                       (what slot B holds already)")]
    Stage(StageArgs),
    /// Arm the staged slot: the next boot tries it, up to three times
    #[command(after_help = "Examples:\n  \
os-agent activate --reboot\n  \
os-agent activate --digest 9f86d081… --deadline-secs 600 --reboot\n  \
os-agent activate --disk system.img --running A")]
    Activate(ActivateArgs),
    /// Make the running slot the default
    #[command(after_help = "Examples:\n  \
os-agent commit\n  \
os-agent commit --digest 9f86d081…\n  \
os-agent commit --disk system.img --running B       (slot B must read as recorded)")]
    Commit(CommitArgs),
    /// End a running trial, take an armed slot back, or go to the other slot
    #[command(after_help = "Examples:\n  \
os-agent rollback --reboot\n  \
os-agent rollback --disk system.img --running A")]
    Rollback(RollbackArgs),
    /// Stop a running stage, or take an armed slot back
    #[command(after_help = "Examples:\n  \
os-agent cancel\n  \
os-agent cancel --op-id job-1")]
    Cancel(CancelArgs),
    /// Allow a digest again that fell back
    #[command(after_help = "Examples:\n  \
os-agent forget 9f86d081…")]
    Forget {
        /// SHA-256 as `status` shows it
        digest: String,
    },
    /// Read a slot and compare it with its record
    #[command(after_help = "Examples:\n  \
os-agent verify-slot\n  \
os-agent verify-slot A --json\n  \
os-agent verify-slot B --disk system.img --running A")]
    VerifySlot {
        /// Which [default: the inactive one]
        slot: Option<Slot>,
    },
    /// List past operations, newest first
    #[command(after_help = "Examples:\n  \
os-agent history\n  \
os-agent history --limit 0 --json")]
    History {
        /// At most so many; 0 = all
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Grow PERSIST to the end of the disk (started by its own unit)
    #[command(after_help = "Examples:\n  \
os-agent grow-persist\n  \
os-agent grow-persist --disk system.img --running A   (the partition; its file system grows at boot)")]
    GrowPersist,
    /// Apply settings: KubeOS's `configs` array or an OS resource, YAML or JSON
    #[command(after_help = "Examples:\n  \
os-agent configure configs.yaml --dry-run\n  \
os-agent configure os.yaml --part sysconfigs\n  \
os-agent configure args.yaml --disk system.img --running A   (kernel arguments only)\n\n\
All entries are applied or none. Files keep their comments and their order.")]
    Configure(ConfigureArgs),
    /// Check disk, environment, boot counter, state, clock, watchdog and network: would an update work here?
    #[command(
        after_help = "Exit code 1 when something is bad. Looks by itself, as root, also when the agent does not answer.\n\nExamples:\n  \
os-agent doctor\n  \
os-agent doctor --url https://images.example/2/update.img\n  \
os-agent doctor --repair-state       (when both environment copies are lost)"
    )]
    Doctor(super::doctor::DoctorArgs),
    /// Print everything that a bug report needs as one JSON document
    #[command(after_help = "Examples:\n  \
os-agent report > report.json\n  \
os-agent report etc\n  \
os-agent report --disk system.img --running A")]
    Report {
        /// Only this part: etc = files of the node that hide what the running image brings to /etc
        what: Option<ReportPart>,
    },
    /// Prove that no power cut during an update leaves a node that does not boot; touches nothing
    #[command(
        after_help = "It records one update's writes and flushes on a disk in memory, with the program's real code, and gives every disk \
that a power cut can leave behind to the model of grub.cfg. Needs no privileges.\n\nExamples:\n  \
os-agent crashtest --quick\n  \
os-agent crashtest --quick --sabotage no-flush     (must find violations and exit with 1)"
    )]
    Crashtest(super::crashtest::CrashtestArgs),
    /// Relay the kubelet's connections to the API servers (started by os-agent-api-proxy.service)
    #[command(
        after_help = "The file: upstreams = [\"10.0.0.1:6443\", …] and ca_file = \"…\" are needed; listen [127.0.0.1:6445], \
health [127.0.0.1:6480], server_name, probe_secs [5] and timeout_ms [2000] may be given. It is read again while the proxy \
runs.\n\nExamples:\n  \
os-agent api-proxy\n  \
os-agent api-proxy --file ./api-proxy.toml"
    )]
    ApiProxy(ApiProxyArgs),
    /// Run, plan and watch step bundles
    Steps(super::steps::StepsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigureArgs {
    /// The file; - = standard input
    pub(crate) file: Utf8PathBuf,
    /// Say what would change and what would be rejected; change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Of an OS resource only this part [default: both, upgradeconfigs first; with opstype config only sysconfigs]
    #[arg(long, value_name = "sysconfigs|upgradeconfigs")]
    pub(crate) part: Option<Part>,
    /// Operation id; the same one joins or returns the stored result
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) op_id: String,
}

/// A part of the report with an answer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReportPart {
    /// Files below /etc that hide the image's.
    Etc,
}

#[derive(Debug, Args)]
pub(crate) struct ApiProxyArgs {
    /// The proxy's settings
    #[arg(long, value_name = "FILE", default_value = os_agent::apiproxy::FILE)]
    pub(crate) file: Utf8PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StageArgs {
    /// http(s) URL, file, oci:REFERENCE (a container image), or slot:A / slot:B
    #[arg(long, value_name = "URL|FILE|oci:REF")]
    pub(crate) image: String,
    /// SHA-256 of that file, or of the image's manifest (not needed with slot: or with a reference that has a digest)
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub(crate) sha256: String,
    /// Refuse unless the image's PRETTY_NAME or VERSION_ID is this
    #[arg(long, value_name = "V")]
    pub(crate) version: Option<String>,
    /// Permit plain http
    #[arg(long)]
    pub(crate) allow_http: bool,
    /// Trust only the authorities in this PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<Utf8PathBuf>,
    /// Show this client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<Utf8PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<Utf8PathBuf>,
    /// For signed update files, which this version does not read yet: of those, permit one with an older version than the
    /// running one. Raw images, packed ones, tars and container images have no order of versions: nothing is compared, they may
    /// always be older, with or without this
    #[arg(long)]
    pub(crate) allow_older: bool,
    /// Return as soon as the agent has begun
    #[arg(long, conflicts_with = "disk")]
    pub(crate) no_wait: bool,
    /// Also when this digest fell back or failed too often before
    #[arg(long)]
    pub(crate) force: bool,
    /// Check whether it would be accepted, of a file here also kind and size; fetch and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Of a download at most so many bytes per second (suffixes K, M, G)
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) limit_rate: Option<u64>,
    /// Operation id; the same one joins or returns the stored result
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) op_id: String,
}

#[derive(Debug, Args)]
pub(crate) struct ActivateArgs {
    /// Reboot afterwards
    #[arg(long, conflicts_with = "disk")]
    pub(crate) reboot: bool,
    /// The slot must hold this
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub(crate) digest: String,
    /// Span of a trial boot in seconds, 60 to 86400 [default: the node's]
    #[arg(long, value_name = "SECS", default_value_t = 0, hide_default_value = true)]
    pub(crate) deadline_secs: u64,
    /// Who gives the final word on the trial: the gates on the node, or also a call of commit
    #[arg(long, value_name = "local|cluster", default_value = "local", value_parser = confirm)]
    pub(crate) confirm: v1::Confirm,
    /// With --confirm cluster: what happens when the node is healthy and nobody commits in time
    #[arg(long, value_name = "reboot|keep", default_value = "reboot", value_parser = on_silence)]
    pub(crate) on_silence: v1::OnSilence,
    /// Operation id
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) op_id: String,
}

#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// The running slot must hold this
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub(crate) digest: String,
    /// With --disk: also a slot that has no record or does not read as recorded
    #[arg(long, requires = "disk")]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Reboot afterwards (the end of a running trial always does)
    #[arg(long, conflicts_with = "disk")]
    pub(crate) reboot: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Only this operation [default: whatever runs]
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) op_id: String,
}

fn confirm(text: &str) -> std::result::Result<v1::Confirm, String> {
    match text {
        "local" => Ok(v1::Confirm::Local),
        "cluster" => Ok(v1::Confirm::Cluster),
        _ => Err(format!("{text:?}: expected local or cluster")),
    }
}

fn on_silence(text: &str) -> std::result::Result<v1::OnSilence, String> {
    match text {
        "reboot" => Ok(v1::OnSilence::Reboot),
        "keep" => Ok(v1::OnSilence::Keep),
        _ => Err(format!("{text:?}: expected reboot or keep")),
    }
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    let (number, factor) = match text.chars().last() {
        Some('K' | 'k') => (text.get(..text.len() - 1), 1 << 10),
        Some('M' | 'm') => (text.get(..text.len() - 1), 1 << 20),
        Some('G' | 'g') => (text.get(..text.len() - 1), 1 << 30),
        _ => (Some(text), 1),
    };
    number
        .and_then(|n| n.parse::<u64>().ok())
        .and_then(|n| n.checked_mul(factor))
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("{text:?}: expected a number of bytes per second such as 500K or 20M"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_how_it_is_used() {
        for c in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = c.get_after_help().map(ToString::to_string).unwrap_or_default();
            let line = format!("os-agent {}", c.get_name());
            assert!(
                help.contains("Examples:") && help.contains(&line),
                "{}: {help}",
                c.get_name()
            );
        }
    }

    #[test]
    fn rates_have_suffixes() {
        assert_eq!(rate("500K"), Ok(512_000));
        assert_eq!(rate("7"), Ok(7));
        assert!(rate("M").is_err() && rate("0").is_err() && rate("1T").is_err() && rate("é").is_err());
    }
}
