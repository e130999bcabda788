//! The imgbuild program: reads the command line, runs a command, turns errors into text and an exit code.

mod cli;
mod commands;
mod ui;

use clap::Parser;
use cli::{Cli, Command};
use commands::Errors;
use imgbuild::error::{self, BuildError, Kind};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Also for a command line that clap refuses: a program that asked for JSON gets JSON.
    let json = std::env::args_os()
        .skip(1)
        .take_while(|a| a != "--")
        .any(|a| a == "--json");
    let code = std::panic::catch_unwind(|| run(json)).unwrap_or_else(|_| {
        let m = "imgbuild stopped because of a bug; please report the lines above";
        fail(&vec![BuildError::new(Kind::Bug, "BUG000", m)], json)
    });
    ExitCode::from(code)
}

fn run(json: bool) -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let printed = ui::printed(e.print());
            if !e.use_stderr() {
                return printed.map_or_else(|e| fail(&vec![e], false), |()| 0);
            }
            let text = e.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            let usage = vec![BuildError::new(Kind::Input, "USE001", text)];
            return answer(&usage, json);
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
        Command::Check { recipe, json } => commands::check(&recipe, json),
        Command::Verify { dir, json } => commands::verify(&dir, json),
    };
    match result {
        Ok(()) => 0,
        Err(errors) => fail(&errors, json),
    }
}

/// Prints errors for people, and with `--json` for programs; the first decides the exit code.
fn fail(errors: &Errors, json: bool) -> u8 {
    for e in errors {
        match e.kind {
            Kind::Said(_) => {}
            Kind::Signal(_) => ui::say(&e.message),
            _ => ui::say(&e.to_string()),
        }
    }
    answer(errors, json)
}

/// The program's part of [`fail`].
fn answer(errors: &Errors, json: bool) -> u8 {
    if json && let Some(doc) = error::document(errors) {
        // The command failed already, and its exit code says more.
        if let Err(e) = ui::print(&format!("{doc}\n")) {
            ui::say(&e.to_string());
        }
    }
    errors
        .first()
        .map_or(Kind::Bug.exit_code(), |e| e.kind.exit_code())
}
