//! `fixture`: builds or finds the fixture distribution.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use os_e2e::fixture::{self, Fixture};

/// The RPM distribution that the tests install from.
#[derive(Parser)]
#[command(name = "fixture")]
struct Cli {
    /// Print one JSON object instead of the directory.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the fixture's directory; build it first if need be (as root).
    Ensure,
    /// Print the fixture's directory; fail if it is not built.
    Path,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fixture: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let found = match cli.command {
        Command::Ensure => fixture::ensure()?,
        Command::Path => match fixture::cached()? {
            Some(found) => found,
            None => bail!("the fixture is not built, or damaged: run `fixture ensure` as root"),
        },
    };
    if cli.json {
        println!("{}", as_json(&found)?);
    } else {
        println!("{}", found.dir);
    }
    Ok(())
}

fn as_json(found: &Fixture) -> Result<serde_json::Value> {
    let mut bad = serde_json::Map::new();
    for case in fixture::bad_cases() {
        bad.insert(case.to_owned(), found.bad(case)?.into_string().into());
    }
    Ok(serde_json::json!({
        "dir": found.dir,
        "repo": found.repo(),
        "key": found.key_file(),
        "other_key": found.other_key_file(),
        "bad": bad,
        "list": found.demo_list(),
    }))
}
