//! The imgbuild program: reads the command line, runs a command, turns errors into text and an exit code.

mod cli;
mod commands;
mod ui;

use clap::Parser;
use cli::{Cli, Command};
use commands::Errors;
use imgbuild::error::Kind;
use std::process::ExitCode;

/// Exit code for a wrong command line: bad input.
const USAGE: u8 = Kind::Input.exit_code();
/// Exit code for a panic: a bug of ours.
const BUG: u8 = Kind::Bug.exit_code();

fn main() -> ExitCode {
    let code = std::panic::catch_unwind(run).unwrap_or_else(|_| {
        ui::say("error[BUG000] imgbuild stopped because of a bug; please report the lines above");
        BUG
    });
    ExitCode::from(code)
}

fn run() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { USAGE } else { 0 };
        }
    };
    let result = match cli.command {
        Command::Build {
            recipe,
            out,
            base_url,
            json,
            quiet,
        } => commands::build(&commands::Build {
            recipe,
            out,
            base_url,
            json,
            quiet,
        }),
        Command::Plan { recipe, json } => commands::plan(&recipe, json),
        Command::Check { recipe } => commands::check(&recipe),
        Command::Verify { dir } => commands::verify(&dir),
    };
    match result {
        Ok(()) => 0,
        Err(errors) => fail(&errors),
    }
}

/// Prints errors; the first decides the exit code.
fn fail(errors: &Errors) -> u8 {
    for e in errors {
        match e.kind {
            Kind::Said(_) => {}
            Kind::Signal(_) => ui::say(&e.message),
            _ => ui::say(&e.to_string()),
        }
    }
    errors.first().map_or(BUG, |e| e.kind.exit_code())
}
