//! `configure FILE`.

use super::args::ConfigureArgs;
use super::target::Target;
use os_agent::error::{AgentError, Result};
use os_agent::settings::document;
use os_proto::codes::Code;
use os_proto::v1;
use std::io::Read;

/// Reads the file.
pub(super) fn read(a: &ConfigureArgs) -> Result<Vec<v1::Config>> {
    let bad = |why: String| AgentError::new(Code::InvalidArgument, format!("{}: {why}", a.file));
    let mut text = String::new();
    let limit = document::MAX_BYTES as u64 + 1;
    let read = if a.file == "-" {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(&a.file).and_then(|f| f.take(limit).read_to_string(&mut text))
    };
    read.map_err(|e| bad(e.to_string()))?;
    document::parse(&text, a.part).map_err(bad)
}

/// Sends it and shows the result of every entry.
pub(super) async fn run(
    target: &mut Target,
    a: &ConfigureArgs,
    configs: Vec<v1::Config>,
    json: bool,
) -> Result<()> {
    let reply = target
        .configure(v1::ConfigureRequest {
            op_id: a.op_id.clone(),
            dry_run: a.dry_run,
            configs,
        })
        .await?;
    let doc = serde_json::json!({
        "dry_run": a.dry_run,
        "changed": reply.changed,
        "results": reply.results.iter().map(|r| serde_json::json!({
            "config": r.config_index, "content": r.content_index, "model": r.model, "key": r.key,
            "outcome": r.outcome, "message": r.message, "pending": r.pending,
        })).collect::<Vec<_>>(),
    });
    super::print(json, &doc, &text(&reply, a.dry_run));
    Ok(())
}

fn text(reply: &v1::ConfigureReply, dry_run: bool) -> String {
    let mut out = String::new();
    for r in &reply.results {
        let outcome = match (r.outcome.as_str(), dry_run) {
            ("changed", true) => "would change",
            (o, _) => o,
        };
        let mut notes: Vec<&str> = Vec::new();
        if !r.message.is_empty() {
            notes.push(&r.message);
        }
        if r.pending && !dry_run {
            notes.push("written, not yet in effect");
        }
        let notes = if notes.is_empty() {
            String::new()
        } else {
            format!(": {}", notes.join("; "))
        };
        out.push_str(&format!("{outcome:<12} {} {}{notes}\n", r.model, r.key));
    }
    if out.is_empty() {
        out.push_str("no entries\n");
    }
    out
}
