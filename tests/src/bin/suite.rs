//! Runs the layers of tests, cheap ones first, and adds up what passed. Started by `tests/run` and `tests/long`.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, bail};
use camino::Utf8Path;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

struct Step {
    name: &'static str,
    argv: Vec<&'static str>,
}

fn step(name: &'static str, line: &'static str) -> Step {
    Step {
        name,
        argv: line.split_whitespace().collect(),
    }
}

/// The tests on real parts whose paths begin with `tests`: a module (`upgrade::`) or one test of it.
fn e2e(name: &'static str, tests: &'static str) -> Step {
    let line = "cargo test --quiet -p os-e2e --test e2e -- --include-ignored --test-threads=1 --nocapture";
    let mut s = step(name, line);
    s.argv.push(tests);
    s
}

fn steps(layer: &str) -> Vec<Step> {
    match layer {
        "unit" => vec![
            step("formatting", "cargo fmt --all --check"),
            step(
                "clippy",
                "cargo clippy --quiet --workspace --all-targets -- -D warnings",
            ),
            step("tests", "cargo test --quiet --workspace"),
        ],
        "image" => vec![
            step(
                "imgbuild with root",
                "cargo test --quiet -p imgbuild -- --include-ignored --show-output",
            ),
            step(
                "agent with root",
                "cargo test --quiet -p os-agent -- --include-ignored --show-output",
            ),
            e2e("images", "image::"),
            e2e("refusals and bad input", "refusals::"),
            e2e("kill -9 of the agent", "kill9_agent::"),
            e2e("mounts of the initramfs", "mounts::"),
        ],
        "boot" => vec![
            e2e("GRUB against its model", "grub_matrix::"),
            e2e("power cuts of an update, real GRUB", "crash_images::"),
            e2e("upgrade, BIOS", "upgrade::"),
            e2e("broken version 3", "broken3::"),
            e2e("power cuts", "kill9_qemu::"),
        ],
        // Whole stories of many boots that are too long for the default run.
        "boot-more" => vec![
            step("the main job, UEFI", "tests/demo --yes"),
            e2e("/etc follows the slot", "etc_slot::"),
            e2e("causes of a fallback", "causes::"),
            e2e("a broken PERSIST", "persist_broken::"),
            e2e("power cuts of a resumed update", "resume_cut::"),
            e2e("power cuts of the step runner", "steps_qemu::"),
        ],
        // The control plane is built from pinned Go modules once, or KUBEBUILDER_ASSETS names it.
        "cluster" => vec![
            e2e("drain against kubectl drain", "cluster_drain::"),
            e2e("a node's way through updates", "cluster_proxy::"),
            e2e("the operator and bad input", "cluster_operator::"),
            e2e("200 simulated nodes", "cluster_fleet::two_hundred_nodes"),
            e2e("steps on a real server", "cluster_steps::"),
        ],
        // Every roll-out holds half a minute of faults and then the time to come to rest: too long for the default run.
        "cluster-more" => vec![
            e2e("roll-outs while everything dies", "cluster_chaos::"),
            e2e("1,000 simulated nodes", "cluster_fleet::a_thousand_nodes"),
        ],
        // Both at once: a node in QEMU and a control plane.
        "whole" => vec![
            e2e("the whole system by kubectl apply", "cluster_whole::"),
            e2e("a fresh node joins by the standard bundle", "cluster_join::"),
        ],
        "steps" => vec![
            step(
                "step runner",
                "cargo test --quiet -p os-steps -- --include-ignored --show-output",
            ),
            step(
                "step runner: kills, sockets, dry run; API proxy; standard bundle",
                "cargo test --quiet -p os-agent --test steps --test api_proxy --test standard -- --include-ignored --test-threads=1 --show-output",
            ),
            step("renderer against Go", "tests/conformance/check"),
        ],
        _ => Vec::new(),
    }
}

/// Whether a layer installs from the fixture distribution.
fn needs_fixture(layer: &str) -> bool {
    matches!(layer, "image" | "boot" | "boot-more" | "whole")
}

/// Whether a layer mounts: root trees, or the step runner's overlays.
fn needs_root(layer: &str) -> bool {
    needs_fixture(layer) || layer == "steps"
}

/// Whether a layer runs on a real kube-apiserver.
fn needs_control_plane(layer: &str) -> bool {
    matches!(layer, "cluster" | "cluster-more" | "whole")
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("tests: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let layers: Vec<String> = std::env::args().skip(1).collect();
    let mut total = Count::default();
    let start = Instant::now();
    let mut summary = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        let all = steps(layer);
        if all.is_empty() {
            summary.push(format!("{layer}: skipped: nothing yet (0 tests)"));
            continue;
        }
        if needs_root(layer) && !rustix::process::geteuid().is_root() {
            bail!("the layer {layer:?} mounts file systems and needs root; `tests/run unit` does not");
        }
        let began = Instant::now();
        let mut count = Count::default();
        // Built once, so that no single test pays for it or is blamed for it.
        let fixture = if needs_fixture(layer) {
            Some(os_e2e::fixture::ensure()?.dir)
        } else {
            None
        };
        if needs_control_plane(layer)
            && let os_e2e::cluster::Found::Missing(why) = os_e2e::cluster::assets::ensure()?
        {
            summary.push(format!("{layer}: NOT RUN: {why}"));
            total.skipped += all.len() as u64;
            continue;
        }
        for s in &all {
            println!("== {layer}: {}: {}", s.name, s.argv.join(" "));
            let one = execute(s, layer != "unit", fixture.as_deref())?;
            count.passed += one.passed;
            count.failed += one.failed;
            count.skipped += one.skipped;
            if one.failed > 0 {
                println!("== {layer}: {}: FAILED", s.name);
            }
        }
        let line = format!(
            "{layer}: {} passed, {} failed, {} skipped in {:.0} s",
            count.passed,
            count.failed,
            count.skipped,
            began.elapsed().as_secs_f64()
        );
        println!("== {line}");
        summary.push(line);
        total.passed += count.passed;
        total.failed += count.failed;
        total.skipped += count.skipped;
        if count.failed > 0 {
            for rest in &layers[i + 1..] {
                summary.push(format!("{rest}: not run, {layer} is broken"));
            }
            break;
        }
    }
    println!("\n{}", summary.join("\n"));
    println!("in {:.0} s", start.elapsed().as_secs_f64());
    println!(
        "{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.skipped
    );
    Ok(total.failed == 0)
}

/// Runs one step; a step without test results counts as one test.
fn execute(step: &Step, real: bool, fixture: Option<&Utf8Path>) -> Result<Count> {
    let (program, args) = step.argv.split_first().context("empty step")?;
    let mut c = Command::new(program);
    c.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    if real {
        c.env("SLIPWAY_E2E", "1");
    }
    if let Some(dir) = fixture {
        c.env("SLIPWAY_FIXTURE", dir);
    }
    let mut child = c.spawn().with_context(|| format!("cannot start {program}"))?;
    let out = child.stdout.take().context("stdout")?;
    let mut count = Count::default();
    let mut results = false;
    for line in BufReader::new(out).lines() {
        let line = line.unwrap_or_default();
        if let Some((p, f, i)) = result_line(&line) {
            results = true;
            count.passed += p;
            count.failed += f;
            // Without root the ignored ones are simply left to the other layers.
            count.skipped += if real { i } else { 0 };
        }
        if real && line.trim_start().starts_with("skipped:") {
            count.skipped += 1;
            count.passed = count.passed.saturating_sub(1);
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if !results {
        count.passed += u64::from(status.success());
    }
    if !status.success() && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
fn result_line(line: &str) -> Option<(u64, u64, u64)> {
    let rest = line.trim_start().strip_prefix("test result:")?;
    let number = |what: &str| {
        let before = rest.split_once(what)?.0;
        before.split_whitespace().next_back()?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?, number(" ignored")?))
}

#[cfg(test)]
mod tests {
    use super::result_line;

    #[test]
    fn reads_what_cargo_prints() {
        let line =
            "test result: ok. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(result_line(line), Some((12, 1, 3)));
        assert_eq!(result_line("running 3 tests"), None);
    }
}
