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
missing or wrong, 10 a program is missing, 130 and 143 interrupted, 203 another build writes to the same directory.

Examples:
  imgbuild check recipe.toml
  imgbuild build recipe.toml --out out/1.0 --base-url https://images.example/slipway/1.0
  imgbuild verify out/1.0";

const BUILD_HELP: &str = "\
Writes system.img (sparse), system.qcow2, update.img, SHA256SUMS, packages.txt, os.yaml and build.json.
They appear by rename when all of them are finished; a build that fails or is interrupted changes nothing.
While it runs, everything lies in a hidden directory beside DIR. A build from packages needs root; nothing that it
mounts is seen outside of it. Time stamps are SOURCE_DATE_EPOCH, or a fixed time: the same recipe gives the same bytes.

Examples:
  imgbuild build recipe.toml
  imgbuild build recipe.toml --out /srv/images/1.0 --json | jq -r .image_sha256";

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
        /// Where update.img will be served from, for os.yaml
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// Print build.json when done
        #[arg(long)]
        json: bool,
        /// Print warnings and errors only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show partitions, sizes, packages and files without touching anything
    #[command(
        after_help = "Example:\n  imgbuild plan recipe.toml --json | jq '.partitions[] | .name, .size'"
    )]
    Plan {
        /// The recipe, a TOML file
        recipe: Utf8PathBuf,
        /// Print the plan as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a recipe and the files that it names
    #[command(after_help = "Prints every error with its line and column; exit code 3 if there is one.")]
    Check {
        /// The recipe, a TOML file
        recipe: Utf8PathBuf,
    },
    /// Compare built images with their SHA256SUMS
    #[command(after_help = "Exit code 8 if a file is missing or differs.")]
    Verify {
        /// Directory with the results of a build
        dir: Utf8PathBuf,
    },
}
