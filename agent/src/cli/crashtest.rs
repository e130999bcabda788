//! `crashtest`: the proof on a recorded disk in memory.

use super::{out, print};
use clap::Args;
use os_agent::crashtest::{self, Plan, Sabotage};
use os_agent::error::{AgentError, Result};
use os_proto::codes::{Code, exit};
use std::io::IsTerminal;

#[derive(Debug, Args)]
pub(crate) struct CrashtestArgs {
    /// Of the torn writes, run only some to the end of the update; done in under a minute
    #[arg(long)]
    pub(crate) quick: bool,
    /// Build a mistake into the recording, which the proof must find: no-flush, arm-before-verify, arm-env2-only,
    /// skip-readback. Never touches a device
    #[arg(long, value_name = "MISTAKE", conflicts_with_all = ["disk", "running"])]
    pub(crate) sabotage: Option<Sabotage>,
}

/// Runs it; gives the exit code: 1 when a power cut breaks a rule.
pub(crate) async fn run(args: &CrashtestArgs, json: bool) -> Result<u8> {
    let plan = Plan {
        quick: args.quick,
        sabotage: args.sabotage,
    };
    let terminal = !json && std::io::stderr().is_terminal();
    let report = tokio::task::spawn_blocking(move || {
        let report = crashtest::run(plan, |what| {
            if terminal {
                eprint!("\r\x1b[K{what}");
            }
        });
        if terminal {
            eprint!("\r\x1b[K");
        }
        report
    })
    .await
    .map_err(|e| AgentError::new(Code::Internal, format!("crashtest: {e}")))??;
    if json {
        print(true, &report.json(), "");
    } else {
        out(&report.text());
    }
    Ok(match report.total().bad {
        0 => exit::DONE,
        _ => exit::FAILED,
    })
}
