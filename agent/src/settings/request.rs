//! PURE: reads a Configure request.

use super::{Item, Model, Op, Target, confine};
use crate::error::{AgentError, Result};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use os_proto::v1;
use serde_json::Value;

/// Most entries of one call.
const MAX_ENTRIES: usize = 4096;

/// The entries of a request, in order. `running` = the slot that runs, or why there are no slots.
///
/// # Errors
/// `SettingRejected` for a model that does not exist, `InvalidArgument` for a request that is too large. Everything that is
/// wrong with one entry is kept in [`Item::bad`], so that all of them can be named at once.
pub fn items(configs: &[v1::Config], running: &Result<Slot>) -> Result<Vec<Item>> {
    let total: usize = configs.iter().map(|c| c.contents.len()).sum();
    if total > MAX_ENTRIES {
        return Err(AgentError::new(
            Code::InvalidArgument,
            format!("{total} entries in one call, at most {MAX_ENTRIES}"),
        ));
    }
    let mut out = Vec::new();
    for (n, config) in (0u32..).zip(configs) {
        let model = Model::parse(&config.model).ok_or_else(|| {
            AgentError::new(
                Code::SettingRejected,
                format!(
                    "configs[{n}]: model {:?} is not known; expected one of {}; nothing was changed",
                    config.model,
                    Model::ALL.map(Model::as_str).join(", ")
                ),
            )
        })?;
        let (target, bad_target) = match target(model, &config.configpath, running) {
            Ok(t) => (t, None),
            Err(why) => (Target::Kernel, Some(why)),
        };
        let mut note = String::new();
        if config.model != model.as_str() {
            note = format!("model {:?} was read as {model}", config.model);
        }
        for (k, content) in (0u32..).zip(&config.contents) {
            let (op, word) = operation(model, &content.operation);
            let (value, bad_value) = match value(&content.value_json) {
                Ok(v) => (v, None),
                Err(why) => (Value::Null, Some(why)),
            };
            let notes: Vec<&str> = [note.as_str(), word.as_deref().unwrap_or_default()]
                .into_iter()
                .filter(|n| !n.is_empty())
                .collect();
            out.push(Item {
                at: (n, k),
                model,
                target: target.clone(),
                key: content.key.clone(),
                op: *op.as_ref().unwrap_or(&Op::Set),
                value,
                note: notes.join("; "),
                bad: bad_target.clone().or(op.err()).or(bad_value),
            });
        }
    }
    Ok(out)
}

fn target(model: Model, path: &str, running: &Result<Slot>) -> std::result::Result<Target, String> {
    match model {
        Model::Sysctl => Ok(Target::Kernel),
        Model::GrubCurrent | Model::GrubNext => match running {
            Ok(s) if model == Model::GrubCurrent => Ok(Target::Arguments(*s)),
            Ok(s) => Ok(Target::Arguments(s.other())),
            Err(e) => Err(format!("kernel arguments belong to slots: {}", e.message)),
        },
        _ => {
            let default = confine::default_path(model).unwrap_or_default();
            let path = if path.is_empty() || !confine::honours_path(model) {
                default
            } else {
                path
            };
            confine::allowed(model, path).map(Target::File)
        }
    }
}

/// The operation, and what to say about an odd word.
fn operation(model: Model, word: &str) -> (std::result::Result<Op, String>, Option<String>) {
    match (word, model) {
        ("" | "add" | "update", _) => (Ok(Op::Set), None),
        ("delete", Model::Sysctl) => (
            Err("a kernel setting always has a value and cannot be deleted".into()),
            None,
        ),
        ("delete", _) => (Ok(Op::Delete), None),
        (other, Model::Sysctl) => (
            Err(format!(
                "operation {other:?} is not known; leave it out to set the value"
            )),
            None,
        ),
        (other, _) => (
            Ok(Op::Set),
            Some(format!(
                "operation {other:?} is not known and was read as add or update; expected none or \"delete\""
            )),
        ),
    }
}

fn value(json: &str) -> std::result::Result<Value, String> {
    if json.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(json).map_err(|e| format!("the value is no JSON text: {e}"))
}

/// Entries for the interface.
pub fn reply(results: &[super::EntryResult]) -> v1::ConfigureReply {
    v1::ConfigureReply {
        results: results
            .iter()
            .map(|r| v1::ConfigResult {
                config_index: r.config,
                content_index: r.content,
                model: r.model.clone(),
                key: r.key.clone(),
                outcome: r.outcome.as_str().to_owned(),
                message: r.message.clone(),
                pending: r.pending,
            })
            .collect(),
        changed: results.iter().any(|r| r.outcome == super::Outcome::Changed),
    }
}
