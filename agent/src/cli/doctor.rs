//! `doctor`: looks at the node or the disk itself, not through the agent; `report`: everything for a bug report.

use super::{Where, out, print, show, target::Target};
use clap::Args;
use os_agent::doctor::{self, Check, Sight, Verdict};
use os_agent::error::{AgentError, Result};
use os_agent::node;
use os_agent::ports::StateStore;
use os_agent::store::DirStore;
use os_agent::sys::discover;
use os_proto::codes::{Code, exit};
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also try to open an image at this address, without reading it
    #[arg(long, value_name = "URL", conflicts_with = "disk")]
    pub(crate) url: Option<String>,
    /// Permit plain http for it
    #[arg(long, requires = "url")]
    pub(crate) allow_http: bool,
    /// Write os-state anew for the slot that runs, where no copy of the environment can be read
    #[arg(long, conflicts_with = "url")]
    pub(crate) repair_state: bool,
    /// With --repair-state and --disk: also for a slot that holds no system
    #[arg(long, requires_all = ["repair_state", "disk"])]
    pub(crate) force: bool,
}

/// Prints the checks and gives the exit code: 1 when one is bad.
pub(crate) async fn run(args: DoctorArgs, place: &Where, handle: tokio::runtime::Handle) -> Result<u8> {
    if args.repair_state {
        let disk = place.offline();
        let env = blocking(move || {
            let Some(d) = &disk else {
                return doctor::repair(&discover::online()?, None);
            };
            let records = DirStore::look(&d.state_dir());
            let records = (!args.force).then_some(&records as &dyn StateStore);
            doctor::repair(&discover::offline(&d.disk, d.running)?, records)
        })
        .await?;
        print(
            place.json,
            &json!({"repaired": true, "cur": env.cur.letter()}),
            &format!(
                "os-state was written anew: slot {} is the default, nothing is on trial\n",
                env.cur
            ),
        );
        return Ok(exit::DONE);
    }
    let checks = checks(args, place, handle).await?;
    print(place.json, &document(&checks), &text(&checks));
    Ok(if doctor::sound(&checks) {
        exit::DONE
    } else {
        exit::FAILED
    })
}

async fn checks(args: DoctorArgs, place: &Where, handle: tokio::runtime::Handle) -> Result<Vec<Check>> {
    let agent = match place.offline() {
        Some(_) => Ok(String::new()),
        None => answer(place, handle.clone()).await,
    };
    let (disk, extra) = (place.offline(), place.config.clone());
    blocking(move || {
        let (ports, options, state_dir) = match &disk {
            Some(d) => {
                let config = node::offline_config(d, extra.as_deref())?;
                let (ports, options) = node::offline(handle, config, d, true)?;
                (ports, options, d.state_dir())
            }
            None => {
                let config = node::config(extra.as_deref()).unwrap_or_default();
                node::observing(handle, config)
            }
        };
        let facts = doctor::look(&Sight {
            ports: &ports,
            options: &options,
            root: "/".into(),
            state_dir,
            url: args.url,
            allow_http: args.allow_http,
            agent,
        });
        Ok(doctor::checks(&facts))
    })
    .await
}

/// What the agent says when it is asked.
async fn answer(place: &Where, handle: tokio::runtime::Handle) -> std::result::Result<String, String> {
    let mut target = Target::open(place, handle, true)
        .await
        .map_err(|e| e.to_string())?;
    let s = target.status().await.map_err(|e| e.to_string())?;
    Ok(format!(
        "os-agent {} answers on {}; {} problems",
        s.agent_version,
        place.socket,
        s.problems.len()
    ))
}

fn document(checks: &[Check]) -> Value {
    json!({
        "sound": doctor::sound(checks),
        "checks": checks.iter().map(|c| json!({
            "name": c.name, "verdict": c.verdict.as_str(), "found": c.found, "advice": c.advice,
        })).collect::<Vec<_>>(),
    })
}

fn text(checks: &[Check]) -> String {
    let mut t = String::new();
    for c in checks {
        t.push_str(&format!("{:<8} {:<14} {}\n", c.verdict.as_str(), c.name, c.found));
        if c.verdict != Verdict::Good && !c.advice.is_empty() {
            t.push_str(&format!("{:<23} {}\n", "", c.advice));
        }
    }
    t.push_str(if doctor::sound(checks) {
        "an update can be tried on this node\n"
    } else {
        "an update would not be safe on this node: see what is bad\n"
    });
    t
}

/// `report`: one document with everything that a bug report needs. It holds no credentials: nothing that the agent stores does.
pub(crate) async fn report(place: &Where, handle: tokio::runtime::Handle) -> Result<()> {
    let args = DoctorArgs {
        url: None,
        allow_http: false,
        repair_state: false,
        force: false,
    };
    let checks = checks(args, place, handle.clone()).await?;
    let (status, history) = match Target::open(place, handle, true).await {
        Ok(mut t) => {
            let found = (
                t.status().await.map(|s| show::status_json(&s)),
                t.history(0).await.map(|h| show::history_json(&h)),
            );
            t.close();
            found
        }
        Err(e) => (Err(e.clone()), Err(e)),
    };
    let or_error = |v: Result<Value>| v.unwrap_or_else(|e| json!({"error": e.to_string()}));
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let doc = json!({
        "program": {"name": "os-agent", "version": env!("CARGO_PKG_VERSION")},
        "doctor": document(&checks),
        "status": or_error(status),
        "history": or_error(history),
        "system": if place.disk.is_some() { Value::Null } else { json!({
            "os_release": read("/etc/os-release"), "kernel": read("/proc/version").trim(),
            "cmdline": read("/proc/cmdline").trim(), "mountinfo": read("/proc/self/mountinfo"),
            "partitions": read("/proc/partitions"),
        })},
    });
    out(&format!(
        "{}\n",
        serde_json::to_string_pretty(&doc).unwrap_or_default()
    ));
    Ok(())
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| {
        Err(AgentError::new(
            Code::Internal,
            format!("doctor: the look broke off: {e}"),
        ))
    })
}
