//! `steps logs`: the journal of a run, and what its steps printed.

use crate::cli::{out, print};
use camino::Utf8Path;
use os_agent::error::{AgentError, Result};
use os_proto::codes::{Code, exit};
use os_proto::suggest::nearest;
use os_steps::bundle;
use os_steps::state::{State, journal};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Names that a refusal offers.
const OFFERED: usize = 5;

/// A file of a run: `STEP.ATTEMPT.STREAM`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Output {
    step: String,
    attempt: u32,
    stream: String,
}

impl Output {
    fn parse(name: &str) -> Option<Output> {
        let mut parts = name.rsplitn(3, '.');
        let (stream, attempt, step) = (parts.next()?, parts.next()?, parts.next()?);
        ["out", "err", "trace"].contains(&stream).then_some(())?;
        Some(Output {
            step: step.to_owned(),
            attempt: attempt.parse().ok()?,
            stream: stream.to_owned(),
        })
    }

    fn file(&self) -> String {
        format!("{}.{}.{}", self.step, self.attempt, self.stream)
    }
}

fn wrong(message: String) -> AgentError {
    AgentError::new(Code::InvalidArgument, message)
}

/// `; nearest: a, b`, or nothing.
fn offer<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(word, names, OFFERED);
    if near.is_empty() {
        String::new()
    } else {
        format!("; nearest: {}", near.join(", "))
    }
}

/// Shows the journal of a run (the last one by default), or what the steps printed whose name is or begins with `step`.
///
/// # Errors
/// `NothingToDo` when nothing ran; `InvalidArgument` with the nearest names for a run or step that there is not.
pub(super) fn logs(steps: &Utf8Path, run: Option<&str>, step: Option<&str>, json: bool) -> Result<u8> {
    let runs = steps.join("runs");
    let state = State::load(steps)?;
    let last = state.run.as_ref();
    let run = match (run, last) {
        (Some(r), _) => r.to_owned(),
        (None, Some(r)) => r.run_id.clone(),
        (None, None) => return Err(AgentError::new(Code::NothingToDo, "no run was recorded yet")),
    };
    let known: BTreeSet<String> = files(&runs).collect();
    if !known.contains(&run) {
        return Err(wrong(format!(
            "run {run:?}: no such run in {runs}{}",
            offer(&run, known.iter().map(String::as_str))
        )));
    }
    let dir = runs.join(&run);
    let text = read(&dir.join("run.jsonl"));
    let Some(step) = step else {
        let lines: Vec<Value> = text
            .lines()
            .filter_map(|l| serde_json::from_str(l).ok())
            .collect();
        print(json, &json!({"run": run, "journal": lines}), &text);
        return Ok(exit::DONE);
    };
    let mut outputs: Vec<Output> = files(&dir).filter_map(|f| Output::parse(&f)).collect();
    outputs.sort();
    let mut names: BTreeSet<String> = journal::replay(&text).into_keys().collect();
    names.extend(outputs.iter().map(|o| o.step.clone()));
    let chosen: Vec<&String> = if names.contains(step) {
        names.iter().filter(|n| *n == step).collect()
    } else {
        names.iter().filter(|n| n.starts_with(step)).collect()
    };
    if chosen.is_empty() {
        // Those of the bundle too that the run did not come to.
        let bundle = last
            .filter(|r| r.run_id == run)
            .map(|r| steps.join("bundles").join(&r.content_hash));
        let of_bundle = bundle.and_then(|d| bundle::load(&d).ok());
        let all: BTreeSet<String> = of_bundle
            .iter()
            .flat_map(|b| b.manifest.steps.iter().map(|s| s.name.clone()))
            .collect();
        if all.contains(step) {
            return Err(AgentError::new(
                Code::NothingToDo,
                format!("step {step}: run {run} did not come to it, so it printed nothing"),
            ));
        }
        names.extend(all);
        return Err(wrong(format!(
            "step {step:?}: run {run} has no step of that name{}",
            offer(step, names.iter().map(String::as_str))
        )));
    }
    outputs.retain(|o| chosen.contains(&&o.step));
    if json {
        let all: Vec<Value> = outputs
            .iter()
            .map(|o| json!({"step": o.step, "attempt": o.attempt, "stream": o.stream, "text": read(&dir.join(o.file()))}))
            .collect();
        print(true, &json!({"run": run, "steps": chosen, "output": all}), "");
        return Ok(exit::DONE);
    }
    for o in &outputs {
        out(&format!("--- {}\n{}", o.file(), read(&dir.join(o.file()))));
    }
    if outputs.is_empty() {
        let names: Vec<&str> = chosen.iter().map(|n| n.as_str()).collect();
        eprintln!("os-agent: {} printed nothing in run {run}", names.join(", "));
    }
    Ok(exit::DONE)
}

fn files(dir: &Utf8Path) -> impl Iterator<Item = String> {
    dir.read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_owned())
}

fn read(path: &Utf8Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_run_are_ordered_by_number() {
        let mut all: Vec<Output> = [
            "a.sh.10.out",
            "a.sh.2.err",
            "a.sh.2.report",
            "run.jsonl",
            "a.sh.x.out",
        ]
        .iter()
        .filter_map(|n| Output::parse(n))
        .collect();
        all.sort();
        let names: Vec<String> = all.iter().map(Output::file).collect();
        assert_eq!(names, ["a.sh.2.err", "a.sh.10.out"]);
        assert_eq!(
            offer("010_b", ["000_a.sh", "010_b.sh"]),
            "; nearest: 010_b.sh, 000_a.sh"
        );
    }
}
