//! The command line.

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};

/// Builds immutable A/B operating-system images.
#[derive(Debug, Parser)]
#[command(name = "imgbuild", version, about, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 a bug of ours, 3 bad input, 6 not enough space, 7 the build failed, 8 a signature or checksum is
missing or wrong, 10 a program is missing, 129, 130 and 143 interrupted (SIGHUP: the terminal was closed, SIGINT: Ctrl-C,
SIGTERM), 203 another build writes to the same directory.

With --json a command that fails prints an object on standard output: code, class (bug, input, space, build, trust, tools,
locked, interrupted), exit_code, message, and errors, a list of all of them. The text goes to standard error as always.

Examples:
  imgbuild check recipe.toml
  imgbuild build recipe.toml --out out/1.0 --base-url https://images.example/slipway/1.0
  imgbuild verify out/1.0";

const BUILD_HELP: &str = "\
Writes system.img (sparse), system.qcow2, update.img, SHA256SUMS, packages.txt, os.yaml and build.json.
They appear by rename when all of them are finished; a build that fails or is interrupted changes nothing.
While it runs, everything lies in a hidden directory beside DIR, PARENT/.NAME.imgbuild. Only SIGKILL or a crash of the
machine leaves it there; the next build into DIR empties and removes it, and without a build it may be deleted by hand.
DIR must not lie in the tree that the image is made of. A build from packages needs root; nothing that it mounts is seen
outside of it. Time stamps are SOURCE_DATE_EPOCH (1 to 2147483647), or a fixed time: the same recipe gives the same bytes.

Examples:
  imgbuild build recipe.toml
  imgbuild build recipe.toml --out /srv/images/1.0 --json | jq -r .image_sha256";

const CHECK_HELP: &str = "\
Prints every error with its line and column; exit code 3 if there is one. Named files must be there, and the agent must be
one that can work in the image.

Examples:
  imgbuild check recipe.toml
  imgbuild check recipe.toml --json | jq -r '.errors[]?.message'";

const VERIFY_HELP: &str = "\
Exit code 8 if a file is missing or differs, 3 if there is no SHA256SUMS.

Examples:
  imgbuild verify out/1.0
  imgbuild verify out/1.0 --json | jq -r '.verified[]?'";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build all images of a recipe
    #[command(after_help = BUILD_HELP)]
    Build {
        /// The recipe, a TOML file
        recipe: Utf8PathBuf,
        /// Directory for the results [default: out/VERSION]
        #[arg(long, short, value_name = "DIR")]
        out: Option<Utf8PathBuf>,
        /// Where update.img will be served from, for os.yaml: http://… or https://…
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// Print build.json when done, errors as JSON
        #[arg(long)]
        json: bool,
        /// Print warnings and errors only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show partitions, sizes, packages and files without touching anything
    #[command(
        after_help = "Examples:\n  imgbuild plan recipe.toml\n  imgbuild plan recipe.toml --json | jq '.partitions[] | .name, .size'"
    )]
    Plan {
        /// The recipe, a TOML file
        recipe: Utf8PathBuf,
        /// Print the plan, or errors, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a recipe and the files that it names
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The recipe, a TOML file
        recipe: Utf8PathBuf,
        /// Print the result, or errors, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare built images with their SHA256SUMS
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// Directory with the results of a build
        dir: Utf8PathBuf,
        /// Print the result, or errors, as JSON
        #[arg(long)]
        json: bool,
    },
}
