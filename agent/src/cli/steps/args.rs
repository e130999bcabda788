//! The grammar of `os-agent steps`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 in sync, converged or reboot handed over; 1 a step failed; 2 usage; 3 refused (a run is going on); \
4 corrupt bundle; 5 temporary (waits for approval, a reboot was refused, API unreachable)\n\nExamples:\n  \
os-agent steps plan ./bundle\n  \
os-agent steps run ./bundle\n  \
os-agent steps run --check ./bundle        (in private namespaces; nothing stays)\n  \
os-agent steps status --json"
)]
pub(crate) struct StepsArgs {
    #[command(flatten)]
    pub(super) places: Places,
    #[command(subcommand)]
    pub(super) command: StepsCommand,
}

/// Where things are.
#[derive(Debug, Clone, Args)]
pub(super) struct Places {
    /// The runner's directory [default: /persist/os-agent/steps, else /var/lib/os-agent/steps]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) steps_dir: Option<Utf8PathBuf>,
    /// Put this directory before the paths that steps are given (/var/lib/bashible, /opt/deckhouse, …)
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) root: Option<Utf8PathBuf>,
    #[arg(long, global = true, hide = true)]
    pub(super) boot_id_file: Option<Utf8PathBuf>,
    #[arg(long, global = true, hide = true)]
    pub(super) systemctl: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum StepsCommand {
    /// Tick and serve (started by os-agent-steps.service)
    Serve,
    /// Apply a bundle once
    Run(RunArgs),
    /// Show which steps would run, and why
    Plan {
        /// Directory, archive, NodeGroupBundle JSON, http(s) URL or stored hash (12 digits or more) [default: the configured source]
        bundle: Option<String>,
    },
    /// Show state, outcome, what the node asks for
    Status,
    /// Answer a request of the node, for the content that it asked about
    Approve {
        /// What may happen
        what: Answer,
        /// Only if it asked about this content: its hash, or at least the first 12 digits
        content: Option<String>,
    },
    /// Render templates over a context into a bundle
    Render(RenderArgs),
    /// Say why the content of two bundles differs
    Explain {
        /// Directory, archive, NodeGroupBundle JSON or stored hash (12 digits or more)
        old: String,
        /// The same
        new: String,
        /// Also compare the contexts that they were rendered from
        #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
        contexts: Option<Vec<Utf8PathBuf>>,
    },
    /// Show the journal of a run, or what a step printed (with --json one document)
    Logs {
        /// Run [default: the last one]
        #[arg(long)]
        run: Option<String>,
        /// Step, or the beginning of the names of several
        step: Option<String>,
    },
    /// Flags of steps
    Flag {
        #[command(subcommand)]
        action: FlagAction,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Answer {
    /// The main steps of new content
    Update,
    /// A step that disrupts, or a reboot
    Disruption,
    /// The node's pods were moved away
    Drained,
}

#[derive(Debug, Subcommand)]
pub(super) enum FlagAction {
    /// List them
    List,
    /// Set one
    Set {
        /// Name
        name: String,
    },
    /// Unset one
    Unset {
        /// Name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct RenderArgs {
    /// Directory with NAME.sh.tpl and NAME.sh
    #[arg(required_unless_present_any = ["standard", "example"])]
    pub(super) templates: Option<Utf8PathBuf>,
    /// The standard bundle of this program instead of a directory
    #[arg(long, conflicts_with = "templates")]
    pub(super) standard: bool,
    /// Print a context with every key that the standard bundle reads
    #[arg(long, conflicts_with_all = ["templates", "context", "out", "lint", "keep"])]
    pub(super) example: bool,
    /// YAML or JSON, an object
    #[arg(long, value_name = "FILE")]
    pub(super) context: Option<Utf8PathBuf>,
    /// Where the bundle is made; must not exist
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<Utf8PathBuf>,
    /// Only check the templates: all faults at once, without a context
    #[arg(long)]
    pub(super) lint: bool,
    /// Take steps whose template fails from this bundle instead of giving up
    #[arg(long, value_name = "BUNDLE")]
    pub(super) keep: Option<Utf8PathBuf>,
    /// For which group of nodes
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(super) node_group: String,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Directory, archive, NodeGroupBundle JSON, http(s) URL or stored hash (12 digits or more) [default: the configured source]
    pub(super) bundle: Option<String>,
    /// Dry run: in private namespaces with every file system behind an overlay, or refused
    #[arg(long)]
    pub(super) check: bool,
    /// Run every step again, also those that were done; steps that may disrupt only where their content is new. Holds until
    /// such a run succeeds: after a failure the next run goes on with it
    #[arg(long)]
    pub(super) from_start: bool,
    /// Attempts per step, instead of each step's own number
    #[arg(long, value_name = "N")]
    pub(super) max_attempts: Option<u32>,
    /// SHA-256 of the archive at a URL
    #[arg(long, value_name = "HEX")]
    pub(super) sha256: Option<String>,
    /// Permit plain http
    #[arg(long)]
    pub(super) allow_http: bool,
    /// Approve the update
    #[arg(long)]
    pub(super) approve: bool,
    /// Approve disruptions
    #[arg(long)]
    pub(super) approve_disruption: bool,
    #[arg(long, hide = true)]
    pub(super) inside: bool,
}
