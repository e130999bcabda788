//! `steps render` and `steps explain`: files in, files out.

use super::args::RenderArgs;
use crate::cli::print;
use camino::{Utf8Path, Utf8PathBuf};
use os_agent::error::{AgentError, Result};
use os_agent::steps::with_warnings;
use os_proto::codes::{Code, exit};
use os_steps::bundle;
use os_steps::dirs::Dirs;
use os_steps::error::StepsError;
use os_steps::render::{self, Engine, GoTemplates, Rendered, explain as why};
use os_steps::standard;
use os_steps::store;
use std::io::Read;

/// Largest context that is read, in bytes.
const LARGEST: u64 = 16 << 20;

fn read(path: &Utf8Path) -> Result<String> {
    let bad = |e: &dyn std::fmt::Display| AgentError::new(Code::InvalidArgument, format!("{path}: {e}"));
    let file =
        std::fs::File::open(path).map_err(|e| StepsError::named(path, "a context, YAML or JSON", &e))?;
    let mut data = Vec::new();
    file.take(LARGEST + 1)
        .read_to_end(&mut data)
        .map_err(|e| bad(&e))?;
    if data.len() as u64 > LARGEST {
        return Err(bad(&format!("larger than {} MiB", LARGEST >> 20)));
    }
    String::from_utf8(data).map_err(|e| bad(&format!("not UTF-8 at byte {}", e.utf8_error().valid_up_to())))
}

fn context(path: &Utf8Path) -> Result<serde_json::Value> {
    Ok(render::context(path.as_str(), &read(path)?)?)
}

fn missing(what: &str) -> AgentError {
    AgentError::new(Code::InvalidArgument, format!("{what} is needed (or --lint)"))
}

pub(super) fn render(r: &RenderArgs, json: bool) -> Result<u8> {
    if r.example {
        crate::cli::out(standard::EXAMPLE);
        return Ok(exit::DONE);
    }
    let all = match &r.templates {
        Some(dir) => render::templates(dir)?,
        None => standard::templates(),
    };
    let engine = GoTemplates::default();
    if r.lint {
        let faults: Vec<String> = all
            .iter()
            .filter(|t| t.file.ends_with(".tpl"))
            .filter_map(|t| engine.lint(&t.file, &t.text).err())
            .flatten()
            .map(|f| f.to_string())
            .collect();
        return lint(&all, &faults, json);
    }
    let context = context(r.context.as_deref().ok_or_else(|| missing("--context FILE"))?)?;
    let out = r.out.as_deref().ok_or_else(|| missing("--out DIR"))?;
    let mut rendered = render::render(&engine, &all, &context);
    let (faults, warnings) = render::faults(&rendered);
    if !faults.is_empty() {
        let Some(old) = &r.keep else {
            return Err(AgentError::new(Code::BundleInvalid, faults.join("\n")));
        };
        keep(&mut rendered, old)?;
        for f in &faults {
            eprintln!("os-agent: kept from {old}: {f}");
        }
    }
    let b = render::to_bundle(&rendered, render::inputs_hash(&all, &context), &r.node_group)
        .and_then(|b| store::export(&b, out).map(|()| b))
        .map_err(|e| with_warnings(e.into(), &warnings))?;
    for w in &warnings {
        crate::cli::tell(&format!("warning: {w}"));
    }
    let n = b.manifest.steps.len();
    let doc = serde_json::json!({"content_hash": b.manifest.content_hash, "inputs_hash": b.manifest.inputs_hash,
        "steps": n, "errors": faults, "warnings": warnings});
    print(
        json,
        &doc,
        &format!("{n} steps, content {} in {out}\n", b.manifest.content_hash),
    );
    Ok(exit::DONE)
}

fn lint(all: &[render::Template], faults: &[String], json: bool) -> Result<u8> {
    let mut notes: Vec<String> = faults.to_vec();
    // A weight of 1000 and more sorts before 999: four digits against three.
    notes.extend(
        all.iter()
            .filter(|t| t.step.bytes().take_while(u8::is_ascii_digit).count() > 3)
            .map(|t| {
                format!(
                    "{}: a number of more than three digits breaks the order of steps",
                    t.file
                )
            }),
    );
    let text: String = notes.iter().map(|n| format!("{n}\n")).collect();
    print(json, &serde_json::json!({"faults": notes}), &text);
    Ok(if notes.is_empty() {
        exit::DONE
    } else {
        exit::CORRUPT
    })
}

/// Failed steps as they were in an older bundle.
fn keep(rendered: &mut Rendered, old: &Utf8Path) -> Result<()> {
    let b = bundle::load(old)?;
    for (name, text) in rendered.iter_mut().filter(|(_, t)| t.is_err()) {
        let found = b
            .manifest
            .steps
            .iter()
            .position(|s| s.name == *name)
            .and_then(|i| b.steps.get(i));
        match found {
            Some(data) => {
                *text = Ok(render::Text {
                    text: String::from_utf8_lossy(data).into_owned(),
                    warnings: Vec::new(),
                });
            }
            None => {
                return Err(AgentError::new(
                    Code::BundleInvalid,
                    format!("{name}: failed, and {old} does not have it either"),
                ));
            }
        }
    }
    Ok(())
}

pub(super) fn explain(
    dirs: &Dirs,
    old: &str,
    new: &str,
    contexts: Option<&[Utf8PathBuf]>,
    json: bool,
) -> Result<u8> {
    let load = |text: &str| -> Result<bundle::Bundle> {
        if store::is_hash(text) && !Utf8Path::new(text).exists() {
            return Ok(store::load(dirs, &store::resolve(dirs, text)?)?);
        }
        Ok(bundle::load(Utf8Path::new(text))?)
    };
    let mut text = why::bundles(&load(old)?, &load(new)?);
    let mut inputs = Vec::new();
    if let Some([a, b]) = contexts {
        inputs = why::contexts(&context(a)?, &context(b)?);
        for i in &inputs {
            text.push_str(&format!("input {i}\n"));
        }
    }
    print(json, &serde_json::json!({"text": text, "inputs": inputs}), &text);
    Ok(exit::DONE)
}
