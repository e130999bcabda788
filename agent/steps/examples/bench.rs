//! Figures of the step runner against plain bash, as ratios. `tests/bench steps` starts it.
//!
//! Plain bash sources the same library and the same steps, one fresh bash per step, with the same environment, and keeps
//! nothing. Ours adds: verified bundle, session, control group where there is one, captured output, durable journal, state.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use camino::Utf8Path;
use os_steps::bundle::{Bundle, Files};
use os_steps::dirs::Dirs;
use os_steps::render::{GoTemplates, Template, render};
use os_steps::run::{Host, Limits, Options, Runner};
use os_steps::settings::Settings;
use os_steps::store;
use os_steps::sys::clock::Stop;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const STEPS: usize = 75;

#[derive(Default)]
struct BenchHost(AtomicU32);

impl Host for BenchHost {
    fn boot_id(&self) -> String {
        self.0.load(Ordering::SeqCst).to_string()
    }
    fn hostname(&self) -> String {
        "bench".into()
    }
    fn reboot(&self) -> Result<(), String> {
        Ok(())
    }
}

fn bundle(text: impl Fn(usize) -> String) -> Bundle {
    let mut f = Files::default();
    for i in 0..STEPS {
        f.add(&format!("steps/{i:03}_s.sh"), text(i).into_bytes())
            .unwrap();
    }
    f.check(None).unwrap()
}

/// One fresh bash per step, nothing else.
fn plain(dirs: &Dirs, b: &Bundle) -> Duration {
    let stored = store::dir(dirs, &b.manifest.content_hash);
    let start = Instant::now();
    for s in &b.manifest.steps {
        let status = Command::new(store::bash().unwrap())
            .args([
                "--noprofile",
                "--norc",
                "-eE",
                "-o",
                "pipefail",
                "-c",
                ". \"$BB_LIB\"; . \"$BB_STEP_FILE\"",
            ])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &dirs.base)
            .env("FIRST_BASHIBLE_RUN", "no")
            .env("BB_WORKSPACE", dirs.base.join(".bb-workspace"))
            .env("BB_FLAGS", dirs.flags())
            .env("BB_UNHANDLED", dirs.unhandled())
            .env("BB_LIB", stored.join("lib/bb.sh"))
            .env("BB_STEP_FILE", stored.join("steps").join(&s.name))
            .env("BB_STEP", &s.name)
            .env("BB_REPORT", "/dev/null")
            .env("BB_TMP", dirs.opt.join("tmp/.plain"))
            .current_dir(&dirs.base)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{}", s.name);
    }
    start.elapsed()
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(0.0)
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(7);
    let base = std::env::current_dir().unwrap();
    let tmp = tempfile::tempdir_in(base).unwrap();
    let root = Utf8Path::from_path(tmp.path()).unwrap();
    let dirs = Dirs::new(&root.join("steps"), Some(root));
    dirs.make_all().unwrap();
    let host = Arc::new(BenchHost::default());
    let runner = Runner {
        dirs: dirs.clone(),
        settings: Settings::default(),
        host: host.clone(),
        cluster: None,
        sink: Arc::new(|_| {}),
        stop: Stop::default(),
        limits: Limits::default(),
    };
    let uname = rustix::system::uname();
    println!(
        "machine: {} {}, {} cores",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        std::thread::available_parallelism().map_or(0, usize::from)
    );
    println!(
        "state: durable (a journal line per step that a kill of the runner does not lose, fsync and rename per run) below {root}"
    );
    let noop = bundle(|_| ":\n".to_owned());
    let files = bundle(|i| {
        format!(
            "bb-event-on changed :\nbb-sync-file {root}/f{i} - changed <<EOF\nline {i}\nEOF\nbb-flag? x || true\n"
        )
    });
    for (name, b) in [
        ("no-op steps", &noop),
        ("steps that sync a file (unchanged)", &files),
    ] {
        // The first run installs the bundle and makes the files.
        runner.run(b, &Options::default()).unwrap();
        let (mut ratios, mut over) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let p = plain(&dirs, b).as_secs_f64() * 1000.0;
            host.0.fetch_add(1, Ordering::SeqCst);
            let start = Instant::now();
            let e = runner.run(b, &Options::default()).unwrap();
            let ours = start.elapsed().as_secs_f64() * 1000.0;
            assert_eq!(e.executed as usize, STEPS);
            ratios.push(ours / p);
            over.push((ours - p) / STEPS as f64);
            println!("{name}: {STEPS} steps: ours {ours:.0} ms, plain bash {p:.0} ms");
        }
        println!(
            "{name}: overhead per step median {:.2} ms (wanted: at most 3), ratio median {:.2} (wanted: at most 2)",
            median(over),
            median(ratios)
        );
    }
    let start = Instant::now();
    for _ in 0..100 {
        let tick = Options {
            tick: true,
            ..Options::default()
        };
        assert_eq!(runner.run(&files, &tick).unwrap().executed, 0);
    }
    println!(
        "a tick that finds nothing: {:.2} ms, no step executed",
        start.elapsed().as_secs_f64() * 10.0
    );

    let text = include_str!("../../../tests/conformance/cases.json");
    let cases: serde_json::Value = serde_json::from_str(text).unwrap();
    let body: String = cases
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["name"].as_str().unwrap().ends_with(" step"))
        .map(|c| c["template"].as_str().unwrap().to_owned())
        .collect();
    let all: Vec<Template> = (0..STEPS)
        .map(|i| Template {
            file: format!("{i:03}_s.sh.tpl"),
            step: format!("{i:03}_s.sh"),
            text: body.clone(),
        })
        .collect();
    let context: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/conformance/context.json")).unwrap();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let r = render(&GoTemplates::default(), &all, &context);
        assert!(r.values().all(Result::is_ok));
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    println!(
        "rendering {STEPS} templates of {} bytes: median {:.1} ms (wanted: at most 150 in release)",
        body.len(),
        median(times)
    );
}
