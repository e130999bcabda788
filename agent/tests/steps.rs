//! The real program's step runner: command line, kills, the runner's own socket. Real bash, no root; the dry run needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use camino::{Utf8Path, Utf8PathBuf};
use os_proto::v1::{self, steps_client::StepsClient};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct World {
    _tmp: tempfile::TempDir,
    root: Utf8PathBuf,
}

struct Ran {
    exit: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}

impl World {
    fn new(settings: &str) -> World {
        let tmp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(tmp.path()).unwrap().to_owned();
        let w = World { _tmp: tmp, root };
        w.put("boot_id", "boot-0\n");
        std::fs::create_dir(w.path("asked")).unwrap();
        // As systemd: asking twice in one boot is one reboot.
        w.put(
            "systemctl",
            &format!(
                "#!/bin/bash\n[ \"$1\" = reboot ] && : >{0}/asked/$(cat {0}/boot_id)\n",
                w.root
            ),
        );
        std::fs::set_permissions(w.path("systemctl"), std::fs::Permissions::from_mode(0o755)).unwrap();
        w.put(
            "config.toml",
            &format!(
                "[metrics]\ntextfile = \"{0}/agent.prom\"\n[steps]\n{settings}\n[steps.env]\nT = \"{0}\"\n",
                w.root
            ),
        );
        w
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.root.join(name)
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A bundle directory; replaces the one of that name.
    fn bundle(&self, name: &str, steps: &[(&str, String)]) -> Utf8PathBuf {
        let d = self.path(name);
        let _ = std::fs::remove_dir_all(&d);
        std::fs::create_dir_all(d.join("steps")).unwrap();
        for (n, t) in steps {
            std::fs::write(d.join("steps").join(n), t).unwrap();
        }
        d
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_os-agent"));
        c.args(["--json", "--config"])
            .arg(self.path("config.toml"))
            .arg("steps")
            .arg("--steps-dir")
            .arg(self.path("state"))
            .arg("--root")
            .arg(&self.root)
            .arg("--boot-id-file")
            .arg(self.path("boot_id"))
            .arg("--systemctl")
            .arg(self.path("systemctl"))
            .args(args)
            .env("OS_AGENT_LOG", "warn");
        c
    }

    fn run(&self, args: &[&str]) -> Ran {
        let o = self.command(args).output().unwrap();
        Ran {
            exit: o.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&o.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }

    /// Renders the templates below `from` into the bundle `out`.
    fn render(&self, from: &Utf8Path, context: &Utf8Path, out: &Utf8Path) -> Ran {
        let args = [
            "render",
            from.as_str(),
            "--context",
            context.as_str(),
            "--out",
            out.as_str(),
        ];
        self.run(&args)
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path("said")).unwrap())
            .spawn()
            .unwrap()
    }

    /// The machine restarts if somebody asked for it in this boot; gives whether it did.
    fn restart_if_asked(&self, reboots: &mut u32) -> bool {
        let now = self.read("boot_id").trim().to_owned();
        if !self.path("asked").join(&now).exists() {
            return false;
        }
        *reboots += 1;
        self.put("boot_id", &format!("boot-{}\n", *reboots));
        true
    }
}

fn one(text: &str) -> Vec<(&'static str, String)> {
    vec![("000_a.sh", text.to_owned())]
}

#[test]
fn the_command_line_plans_runs_reports_and_exits_as_documented() {
    let w = World::new("");
    let b = w.bundle("b", &one("echo x | bb-sync-file $T/conf -\n"));
    let p = w.run(&["plan", b.as_str()]);
    assert_eq!(p.exit, 0, "{}", p.stderr);
    assert_eq!(p.json()["steps"][0]["action"], "run");
    assert!(!w.path("conf").exists());
    let r = w.run(&["run", b.as_str()]);
    assert_eq!(
        (r.exit, r.json()["outcome"].as_str()),
        (0, Some("converged")),
        "{}",
        r.stderr
    );
    let r = w.run(&["run", b.as_str()]);
    assert_eq!(
        (r.json()["outcome"].as_str(), r.json()["executed"].as_u64()),
        (Some("in-sync"), Some(0))
    );
    let s = w.run(&["status"]).json();
    assert_eq!(s["state"], "idle");
    assert_eq!(s["applied"]["content_hash"], p.json()["content_hash"]);

    let bad = w.bundle("bad", &one("if\n"));
    assert_eq!(w.run(&["run", bad.as_str()]).exit, 4);
    let unknown = w.bundle("unknown", &one("bb-flga-set x\n"));
    let r = w.run(&["run", unknown.as_str()]);
    assert!(r.exit == 4 && r.stderr.contains("bb-flga-set"), "{}", r.stderr);
    let failing = w.bundle("failing", &one("# agent: retries=1\necho why >&2; false\n"));
    let r = w.run(&["run", failing.as_str()]);
    assert_eq!((r.exit, r.json()["outcome"].as_str()), (1, Some("failed")));
    let s = w.run(&["status"]).json();
    assert!(s["message"].as_str().unwrap().contains("why"), "{s}");
    let logs = w.run(&["logs", "000_a.sh"]);
    assert!(logs.stdout.contains("why"), "{}", logs.stdout);
    for args in [
        &["run", "/nonexistent"][..],
        &["plan", "/nonexistent"],
        &["explain", "/nonexistent", "/nonexistent"],
        &["render", "--standard", "--context", "/nonexistent", "--out", "x"],
        &[
            "render",
            "/nonexistent",
            "--context",
            "/nonexistent",
            "--out",
            "x",
        ],
        &["render", "/nonexistent", "--lint"],
    ] {
        let r = w.run(args);
        assert_eq!(
            (r.exit, r.json()["code"].as_str()),
            (2, Some("InvalidArgument")),
            "{args:?}"
        );
        let said = "/nonexistent: no such file or directory: expected a ";
        assert!(r.stderr.contains(said), "{args:?}: {}", r.stderr);
    }
    assert_eq!(w.run(&["run", "https://x.invalid/b.tar"]).exit, 2);
    w.run(&["flag", "set", "reboot"]);
    assert_eq!(w.run(&["flag", "list"]).json()["flags"][0], "reboot");
    assert_eq!(w.run(&["flag", "unset", "../x"]).exit, 2);
}

#[test]
fn requests_are_answered_on_the_command_line() {
    let w = World::new("approval = \"ask\"");
    let b = w.bundle("b", &one("echo x >>$T/log\n"));
    let r = w.run(&["run", b.as_str()]);
    assert_eq!(
        (r.exit, r.json()["outcome"].as_str()),
        (5, Some("waiting-approval"))
    );
    assert_eq!(w.run(&["status"]).json()["ask"]["wanted"], "update");
    // By the digits that our own output shows, and only for what waits.
    let hash = w.run(&["plan", b.as_str()]).json()["content_hash"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(w.run(&["approve", "update", &hash[..11]]).exit, 2);
    assert_eq!(w.run(&["approve", "update", "000000000000"]).exit, 3);
    assert!(!w.path("state/approvals/update").exists());
    let r = w.run(&["approve", "update", &hash[..12]]);
    assert_eq!(
        (r.exit, r.json()["content_hash"].as_str()),
        (0, Some(hash.as_str())),
        "{}",
        r.stderr
    );
    assert_eq!(
        w.run(&["plan", &hash[..12]]).json()["content_hash"].as_str(),
        Some(hash.as_str())
    );
    let r = w.run(&["explain", &hash[..12], b.as_str()]);
    assert!(
        r.stdout.contains("the content is the same"),
        "{}{}",
        r.stdout,
        r.stderr
    );
    // The answer is good for what was asked about.
    let other = w.bundle("other", &one("echo other >>$T/log\n"));
    assert_eq!(w.run(&["run", other.as_str()]).exit, 5);
    assert_eq!(w.run(&["run", b.as_str()]).exit, 0);
    assert_eq!(w.read("log"), "x\n");
    let r = w.run(&["approve", "update"]);
    assert_eq!(r.exit, 3, "nothing waits");
}

#[test]
fn logs_are_one_document_and_a_wrong_name_is_refused_with_the_nearest() {
    let w = World::new("");
    assert_eq!(w.run(&["logs"]).exit, 3, "nothing ran");
    let b = w.bundle(
        "b",
        &[
            ("000_first.sh", "echo one; echo two >&2\n".to_owned()),
            ("010_silent.sh", "# agent: retries=1\nfalse\n".to_owned()),
            ("020_never.sh", ":\n".to_owned()),
        ],
    );
    assert_eq!(w.run(&["run", b.as_str()]).exit, 1);
    let doc = w.run(&["logs"]).json();
    let journal = doc["journal"].as_array().unwrap();
    assert_eq!(journal.len(), 4);
    assert_eq!(
        (&journal[0]["step"], &journal[0]["what"]),
        (&"000_first.sh".into(), &"begin".into())
    );
    assert!(journal[0]["at_unix"].as_i64().unwrap() > 1_700_000_000);
    let doc = w.run(&["logs", "000_first.sh"]).json();
    let out = doc["output"].as_array().unwrap();
    let streams: Vec<&str> = out.iter().map(|o| o["stream"].as_str().unwrap()).collect();
    assert_eq!(streams, ["err", "out"]);
    assert!(out[1]["text"].as_str().unwrap().contains("one") && out[1]["attempt"] == 1);
    assert_eq!(w.run(&["logs", "000"]).json()["steps"][0], "000_first.sh");
    assert_eq!(
        w.run(&["logs", "010_silent.sh"]).json()["output"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let r = w.run(&["logs", "020_never.sh"]);
    assert!(
        r.exit == 3 && r.stderr.contains("did not come to it"),
        "{}{}",
        r.exit,
        r.stderr
    );
    for (args, near) in [
        (&["logs", "000_frist.sh"][..], "nearest: 000_first.sh"),
        (&["logs", "silent"], "nearest: 010_silent.sh"),
        (&["logs", "--run", "../../x"], "no such run"),
    ] {
        let r = w.run(args);
        assert_eq!(
            (r.exit, r.json()["code"].as_str()),
            (2, Some("InvalidArgument")),
            "{args:?}"
        );
        assert!(r.stderr.contains(near), "{args:?}: {}", r.stderr);
    }
}

/// What a person reads.
fn plain(w: &World, args: &[&str]) -> (i32, String) {
    let mut c = w.command(args);
    let without: Vec<_> = c.get_args().skip(1).map(std::ffi::OsStr::to_owned).collect();
    let program = c.get_program().to_owned();
    c = Command::new(program);
    let o = c.args(without).env("OS_AGENT_LOG", "error").output().unwrap();
    (
        o.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&o.stdout).into_owned(),
    )
}

/// kill -9: status tells of that run, where and since when, and not of an older failure.
#[test]
fn a_killed_run_is_told_and_not_an_older_failure() {
    let w = World::new("");
    let bad = w.bundle("bad", &one("# agent: retries=1\necho older >&2; false\n"));
    assert_eq!(w.run(&["run", bad.as_str()]).exit, 1);
    let b = w.bundle(
        "b",
        &[
            ("000_a.sh", ":\n".to_owned()),
            (
                "010_b.sh",
                ": >$T/started; until [ -e $T/go ]; do sleep 0.05; done\n".to_owned(),
            ),
        ],
    );
    for deaths in 1..=2 {
        let _ = std::fs::remove_file(w.path("started"));
        let mut c = w.spawn(&["run", b.as_str()]);
        wait(|| w.path("started").exists());
        assert_eq!(w.run(&["status"]).json()["state"], "running");
        c.kill().unwrap();
        c.wait().unwrap();
        let s = w.run(&["status"]).json();
        assert_eq!(s["state"], "interrupted", "{s}");
        assert_eq!(s["outcome"]["outcome"], "interrupted");
        assert_eq!(
            (
                &s["outcome"]["steps"][0]["step"],
                &s["outcome"]["steps"][0]["runner_died"]
            ),
            (&"010_b.sh".into(), &deaths.into())
        );
        assert_eq!(
            (&s["step"], &s["previous"]["outcome"]),
            (&"010_b.sh".into(), &"failed".into())
        );
        let since = s["since_unix"].as_i64().unwrap();
        assert!(since >= s["run"]["started_unix"].as_i64().unwrap());
        let (_, text) = plain(&w, &["status"]);
        let line = text.lines().find(|l| l.starts_with("last run: ")).unwrap();
        assert!(
            line.starts_with("last run: interrupted in step 010_b.sh (attempt "),
            "{text}"
        );
        assert!(line.contains(", since 20") && !line.contains("older"), "{text}");
        assert_eq!(
            line.contains("the runner died 2 times by now"),
            deaths == 2,
            "{text}"
        );
        assert!(text.contains("before it, "), "{text}");
        let p = w.run(&["plan", b.as_str()]).json();
        assert_eq!(p["steps"][0]["action"], "skip");
        assert!(
            p["steps"][1]["reason"]
                .as_str()
                .unwrap()
                .starts_with("resumes here; the runner died "),
            "{p}"
        );
    }
    w.put("go", "");
    assert_eq!(w.run(&["run", b.as_str()]).exit, 0);
    let s = w.run(&["status"]).json();
    assert_eq!(
        (&s["state"], &s["outcome"]["outcome"]),
        (&"idle".into(), &"converged".into())
    );
}

/// A reboot that the service manager refuses is told in text, with what to do, and is no success.
#[test]
fn a_refused_reboot_is_told_and_exits_as_waiting() {
    let w = World::new("disruption = \"auto\"");
    w.put(
        "systemctl",
        "#!/bin/bash\necho 'an inhibitor holds it' >&2; exit 1\n",
    );
    let b = w.bundle("b", &one("bb-flag-set reboot\n"));
    for _ in 0..2 {
        let (exit, text) = plain(&w, &["run", b.as_str()]);
        assert_eq!(exit, 5, "{text}");
        for part in [
            "reboot pending",
            "refused",
            "an inhibitor holds it",
            "systemctl list-jobs",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let (_, text) = plain(&w, &["status"]);
    assert!(
        text.contains("reboot refused: asked for 2 times, last answer: systemctl reboot: an inhibitor"),
        "{text}"
    );
    w.put("systemctl", "#!/bin/bash\n");
    let (exit, text) = plain(&w, &["run", b.as_str()]);
    assert!(exit == 0 && !text.contains("refused"), "{exit} {text}");
    assert!(!plain(&w, &["status"]).1.contains("refused"));
}

#[test]
fn a_bundle_is_rendered_where_the_caller_stands() {
    let w = World::new("");
    w.put("c.yaml", "{}\n");
    let args = ["render", "--standard", "--context", "c.yaml", "--out", "bundle"];
    let o = w.command(&args).current_dir(w.path("")).output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    assert!(w.path("bundle/manifest.json").exists());
}

#[test]
fn a_second_run_is_refused_and_a_stopped_one_resumes() {
    let w = World::new("");
    let b = w.bundle(
        "b",
        &one(": >$T/started; until [ -e $T/go ]; do sleep 0.05; done\n"),
    );
    let mut first = w.spawn(&["run", b.as_str()]);
    wait(|| w.path("started").exists());
    assert_eq!(w.run(&["run", b.as_str()]).exit, 3);
    assert_eq!(w.run(&["status"]).json()["state"], "running");
    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(5));
    w.put("go", "");
    assert_eq!(w.run(&["run", b.as_str()]).exit, 0);
}

fn wait(mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Steps of which each leaves a trace; the one in the middle needs a reboot, once per generation.
fn generation(n: u32) -> Vec<(&'static str, String)> {
    const NAMES: [&str; 7] = [
        "000_a.sh",
        "010_b.sh",
        "020_c.sh",
        "030_reboot.sh",
        "040_d.sh",
        "050_e.sh",
        "060_f.sh",
    ];
    NAMES
        .iter()
        .map(|name| {
            let more = if name.contains("reboot") {
                // Asks as long as the boot runs in which the kernel was installed: it may be killed anywhere.
                format!(
                    "[ -s $T/kernel-{n} ] || {{ cp $T/boot_id $T/.kernel; mv $T/.kernel $T/kernel-{n}; }}\n\
                     if cmp -s $T/boot_id $T/kernel-{n}; then bb-reboot-and-resume kernel {n}; fi\n"
                )
            } else {
                String::new()
            };
            let text = format!(
                "# agent: retries=2\nsleep 0.03\n{more}echo {n} | bb-sync-file $T/out-{name} -\necho {n} {name} >>$T/ran\n"
            );
            (*name, text)
        })
        .collect()
}

/// kill -9 of the runner at random moments, with a reboot in the middle of the bundle: it converges, no step is reported
/// failed, and each generation of the bundle reboots once.
#[test]
fn killed_at_random_moments_it_converges_and_reboots_once() {
    let kills: u32 = if std::env::var_os("SLIPWAY_E2E").is_some() {
        50
    } else {
        6
    };
    let w = World::new("disruption = \"auto\"");
    let mut raw = [0u8; 8];
    rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty()).unwrap();
    let mut seed = u64::from_ne_bytes(raw);
    println!("seed {seed}");
    let mut random = move |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let (mut reboots, mut generations, mut killed, mut early) = (0, 1, 0, 0);
    let mut b = w.bundle("b", &generation(generations));
    while killed < kills {
        let mut c = w.spawn(&["run", b.as_str()]);
        let until = Instant::now() + Duration::from_millis(random(1200));
        let ended = loop {
            if let Some(s) = c.try_wait().unwrap() {
                break Some(s);
            }
            if Instant::now() >= until {
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        match ended {
            None => {
                c.kill().unwrap();
                c.wait().unwrap();
                killed += 1;
                w.restart_if_asked(&mut reboots);
            }
            Some(s) => {
                assert_eq!(
                    s.code(),
                    Some(0),
                    "{}{}",
                    w.read("said"),
                    w.run(&["status"]).stdout
                );
                early += 1;
                if !w.restart_if_asked(&mut reboots) {
                    // Converged: the next generation.
                    assert_eq!(reboots, generations);
                    generations += 1;
                    b = w.bundle("b", &generation(generations));
                }
            }
        }
        assert!(early < 1000);
    }
    // Left alone, it converges.
    for _ in 0..10 {
        let r = w.run(&["run", b.as_str()]);
        assert_eq!(r.exit, 0, "{}{}", r.stdout, r.stderr);
        if !w.restart_if_asked(&mut reboots) {
            assert!(["converged", "in-sync"].contains(&r.json()["outcome"].as_str().unwrap()));
        }
    }
    assert_eq!(reboots, generations, "one reboot per generation");
    for (name, _) in generation(generations) {
        assert_eq!(w.read(&format!("out-{name}")), format!("{generations}\n"));
    }
    // No attempt of any run was ever recorded as failed.
    for run in std::fs::read_dir(w.path("state/runs")).unwrap().flatten() {
        let text = std::fs::read_to_string(run.path().join("run.jsonl")).unwrap_or_default();
        assert!(!text.contains("\"failed\""), "{text}");
    }
    assert_eq!(w.run(&["status"]).json()["failures"], 0);
    println!("{killed} kills, {generations} generations, {reboots} reboots: converged");
}

/// The runner dies at the very moment at which a step asked for a reboot, and the step will not ask again.
#[test]
fn a_request_to_reboot_survives_the_runner() {
    let w = World::new("disruption = \"auto\"");
    let b = w.bundle(
        "b",
        &one("if ! bb-flag? asked; then bb-flag-set asked; trap 'kill -9 $PPID; sleep 30' EXIT; bb-reboot-and-resume kernel; fi\n"),
    );
    assert_eq!(w.run(&["run", b.as_str()]).exit, -1);
    let r = w.run(&["run", b.as_str()]);
    assert_eq!(r.json()["outcome"], "reboot-pending", "{}{}", r.stdout, r.stderr);
    assert!(w.restart_if_asked(&mut 0));
    assert_eq!(w.run(&["run", b.as_str()]).json()["outcome"], "converged");
}

/// A step that kills the runner itself: bounded, named, and then the node is unharmed.
#[test]
fn a_step_that_kills_its_parent_is_named_in_the_end() {
    let w = World::new("");
    let b = w.bundle("b", &one("echo x >>$T/tries\nkill -9 $PPID\nsleep 30\n"));
    let mut last = None;
    for _ in 0..40 {
        let r = w.run(&["run", b.as_str()]);
        if r.exit != -1 {
            last = Some(r);
            break;
        }
    }
    let r = last.expect("it never ended");
    assert_eq!(r.exit, 1, "{}{}", r.stdout, r.stderr);
    assert_eq!(r.json()["detail"]["kind"], "killed");
    let named = "step 000_a.sh ended the runner 20 times";
    assert!(
        r.json()["detail"]["message"].as_str().unwrap().starts_with(named),
        "{}",
        r.stdout
    );
    let (_, text) = plain(&w, &["status"]);
    assert!(text.contains(named), "{text}");
    let p = w.run(&["plan", b.as_str()]).json();
    assert_eq!(
        p["steps"][0]["reason"],
        "resumes here; the runner died 20 times in it"
    );
    assert_eq!(w.read("tries").lines().count(), 20);
    let good = w.bundle("good", &one(":\n"));
    assert_eq!(w.run(&["run", good.as_str()]).exit, 0);
}

#[test]
fn templates_are_rendered_into_a_bundle_and_explained() {
    let w = World::new("");
    std::fs::create_dir(w.path("tpl")).unwrap();
    w.put("tpl/000_a.sh.tpl", "echo {{ .name | quote }} >$T/said\n");
    w.put("context.yaml", "name: one\n");
    w.put("context2.yaml", "name: two\n");
    let (tpl, c1, c2) = (w.path("tpl"), w.path("context.yaml"), w.path("context2.yaml"));
    let (b1, b2) = (w.path("b1"), w.path("b2"));
    for (c, b) in [(&c1, &b1), (&c2, &b2)] {
        let r = w.render(&tpl, c, b);
        assert_eq!(r.exit, 0, "{}", r.stderr);
    }
    assert_eq!(w.run(&["run", b1.as_str()]).exit, 0);
    assert_eq!(w.read("said"), "one\n");
    let r = w.run(&[
        "explain",
        b1.as_str(),
        b2.as_str(),
        "--contexts",
        c1.as_str(),
        c2.as_str(),
    ]);
    let text = r.json()["text"].as_str().unwrap().to_owned();
    assert!(
        text.contains("~ 000_a.sh") && text.contains("input .name: changed"),
        "{text}"
    );
    // What is missing in the context is named, whether the step is bash all the same or not.
    for (text, exit) in [("a={{ .nosuch.key }}\n", 4), ("a='{{ .nosuch.key }}'\n", 0)] {
        w.put("tpl/005_b.sh.tpl", text);
        let out = w.path(&format!("warned-{exit}"));
        let r = w.render(&tpl, &c1, &out);
        let said =
            "005_b.sh.tpl:1: .nosuch.key is missing in the context, or null, and became \"<no value>\"";
        assert_eq!(r.exit, exit, "{}", r.stderr);
        assert!(r.stderr.contains(said), "{}", r.stderr);
        assert_eq!(r.json()["warnings"][0].as_str(), (exit == 0).then_some(said));
    }
    std::fs::remove_file(w.path("tpl/005_b.sh.tpl")).unwrap();
    w.put("broken.yaml", "name: one\nlist: [a\nb: 1\n");
    let broken = w.path("broken.yaml");
    let r = w.render(&tpl, &broken, &w.path("b4"));
    assert!(
        r.exit == 2 && r.stderr.contains(&format!("{broken}:3:2: not YAML: expected ")),
        "{}",
        r.stderr
    );
    // One bad template: nothing is written, unless the step is kept from an older bundle.
    w.put("tpl/010_user.sh.tpl", "echo {{ nosuch }}\n");
    let b3 = w.path("b3");
    let r = w.render(&tpl, &c1, &b3);
    assert!(
        r.exit == 4 && r.stderr.contains("010_user.sh.tpl:1: function \"nosuch\""),
        "{}",
        r.stderr
    );
    assert!(!b3.exists());
    let r = w.run(&["render", tpl.as_str(), "--lint"]);
    assert_eq!(r.exit, 4);
    w.put("list.yaml", "- a\n");
    let r = w.render(&tpl, &w.path("list.yaml"), &b3);
    assert!(
        r.exit == 2 && r.stderr.contains("expected an object, found a list"),
        "{}",
        r.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runners_own_socket_streams_a_run_and_its_tick_keeps_the_node() {
    let w = World::new("");
    let b = w.bundle("b", &one("echo hello; echo x >>$T/log\n"));
    let socket = w.path("os-agent.sock");
    let mut c = w.command(&["serve"]);
    c.arg("--socket").arg(&socket);
    let mut child = c.spawn().unwrap();
    let path = w.path("steps.sock");
    wait(|| path.exists());
    let channel = os_agent::client::channel(&path, "test").await.unwrap();
    let mut client = StepsClient::new(channel);
    let mut stream = client
        .run(v1::StepsRunRequest {
            bundle: b.to_string(),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let mut seen = Vec::new();
    while let Some(e) = stream.message().await.unwrap() {
        seen.push((e.state, e.line, e.outcome));
    }
    let has = |s: &str, l: &str| seen.iter().any(|(a, b, _)| a == s && b == l);
    assert!(
        has("began", "") && has("output", "hello") && has("done", ""),
        "{seen:?}"
    );
    assert_eq!(seen.last().unwrap().2, "converged");
    // A run is followed by a look of the tick, which holds the lock for a moment.
    let start = Instant::now();
    let s = loop {
        let s = client
            .status(v1::StepsStatusRequest {})
            .await
            .unwrap()
            .into_inner();
        if s.state == "idle" || start.elapsed() > Duration::from_secs(60) {
            break s;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((s.state.as_str(), s.outcome.as_str()), ("idle", "converged"));
    let p = client
        .plan(v1::StepsPlanRequest {
            bundle: b.to_string(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(p.steps[0].action, "skip");
    wait(|| {
        w.read("os-agent-steps.prom")
            .contains("steps_step_attempts_total{step=\"000_a.sh\",result=\"done\"} 1")
    });
    // The standard bundle by RPC: into the store, from where it can be run by its hash.
    let r = client
        .render(v1::StepsRenderRequest {
            values_json: "{}".into(),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert!(r.bundle_dir.ends_with(&r.content_hash), "{r:?}");
    let p = client
        .plan(v1::StepsPlanRequest {
            bundle: r.content_hash,
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(p.steps.len(), 9);
    let e = client
        .render(v1::StepsRenderRequest {
            values_json: "[]".into(),
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert!(e.message().contains("expected an object"), "{e}");
    let rss = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let rss = rss
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap_or_default()
        .to_owned();
    println!("steps unit: {rss}");
    assert_eq!(w.read("log"), "x\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
#[ignore = "a dry run needs root: private namespaces and overlays; tests/run steps runs it"]
fn a_dry_run_changes_nothing_outside_its_namespaces() {
    let w = World::new("");
    let marker = format!("/etc/slipway-dry-{}", std::process::id());
    let b = w.bundle(
        "b",
        &one(&format!(
            "echo x >{marker}; [ -e {marker} ]; rm -rf $T/precious; echo y | bb-sync-file $T/conf -\n\
             systemctl restart x; echo 1 >/proc/sys/vm/overcommit_memory && exit 9; mknod /dev/x b 254 0 && exit 8\n\
             [ $(ls /proc | grep -c '^[0-9]') -lt 10 ] || exit 7; kill -9 -1 || true\n"
        )),
    );
    w.put("precious", "kept");
    let r = w.run(&["run", "--check", b.as_str()]);
    println!("{}\n{}", r.stdout, r.stderr);
    assert_eq!(w.read("precious"), "kept");
    assert!(!Utf8Path::new(&marker).exists());
    assert!(!w.path("conf").exists());
    assert!(!w.path("state/state.json").exists());
    assert!([0, 1].contains(&r.exit), "{} {}", r.exit, r.stderr);
    let notes = r.json()["notes"].to_string();
    assert!(
        notes.contains("would write") && notes.contains("would systemctl restart x"),
        "{notes}"
    );
}

#[test]
#[ignore = "fills a small file system: needs root; tests/run steps runs it"]
fn a_full_file_system_ends_the_run_by_name_and_leaves_the_last_state() {
    let w = World::new("");
    let small = w.path("state");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
        .arg(&small)
        .status()
        .unwrap();
    assert!(mounted.success());
    let good = w.bundle("good", &one(":\n"));
    let first = w.run(&["run", good.as_str()]);
    let b = w.bundle(
        "b",
        &[
            (
                "000_fill.sh",
                format!("# agent: onFailure=continue retries=1\ncat /dev/zero >{small}/fill\n"),
            ),
            ("010_next.sh", ":\n".to_owned()),
        ],
    );
    let full = w.run(&["run", b.as_str()]);
    let status = w.run(&["status"]);
    let _ = std::fs::remove_file(small.join("fill"));
    let after = w.run(&["run", good.as_str()]);
    let _ = Command::new("umount").arg(&small).status();
    assert_eq!(first.exit, 0, "{}", first.stderr);
    assert!(
        full.exit == 5 && full.stderr.contains("StateWriteFailed"),
        "{} {}",
        full.exit,
        full.stderr
    );
    assert!(
        full.stderr.contains("journal") || full.stderr.contains("state.json"),
        "{}",
        full.stderr
    );
    assert_eq!(status.exit, 0);
    assert_eq!(after.exit, 0, "{}", after.stderr);
}
