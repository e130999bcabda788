//! The step runner in a guest that is cut off at random moments, with a restart in the middle of its bundle: it converges, no step
//! is reported failed, and no generation of the bundle restarts the node more than once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use crate::common::{Random, long};
use os_e2e::guest::UP;
use os_e2e::images::images;
use os_e2e::node::{Node, say};
use os_e2e::vm::{Firmware, ctl};
use serde_json::Value;
use std::time::{Duration, Instant};

const NAMES: [&str; 7] = [
    "000_first",
    "010_second",
    "020_third",
    "030_kernel",
    "040_fifth",
    "050_sixth",
    "060_last",
];

/// Every step leaves a trace of its generation; the one in the middle asks for a restart while the boot runs in which it
/// installed its kernel.
fn step(name: &str, generation: u32) -> String {
    let kernel = format!("$T/kernel-{generation}");
    let restart = if name.ends_with("kernel") {
        format!(
            "b=/proc/sys/kernel/random/boot_id\n[ -s {kernel} ] || {{ cat $b >$T/.kernel; sync; mv $T/.kernel {kernel}; sync; }}\n\
             if [ \"$(cat $b)\" = \"$(cat {kernel})\" ]; then bb-reboot-and-resume kernel {generation}; fi\n"
        )
    } else {
        String::new()
    };
    format!("# agent: retries=2\nsleep 0.5\n{restart}echo {generation} | bb-sync-file $T/out-{name} -\n")
}

/// Puts a generation of the bundle in place, at once, and wakes the runner.
fn install(node: &mut Node, generation: u32) {
    let mut script = String::from("set -e; d=/persist/test; rm -rf $d/next; mkdir -p $d/next/steps\n");
    for name in NAMES {
        let text = ctl::encode(step(name, generation).as_bytes());
        script += &format!("echo {text} | base64 -d >$d/next/steps/{name}.sh\n");
    }
    script += "rm -rf $d/old; sync; [ ! -e $d/bundle ] || mv $d/bundle $d/old; mv $d/next $d/bundle; sync\n\
               systemctl restart os-agent-steps.service";
    node.vm().unwrap().ok(&script).unwrap();
}

/// Configures and enables the runner.
fn enable(node: &mut Node) {
    let config = "[steps]\\nsource = \\\"/persist/test/bundle\\\"\\ndisruption = \\\"auto\\\"\\n[steps.env]\\nT = \\\"/persist/test\\\"\\n";
    node.vm()
        .unwrap()
        .ok(&format!(
            "mkdir -p /etc/os-agent /persist/test; printf \"{config}\" > /etc/os-agent/config.toml; systemctl enable os-agent-steps.service; sync"
        ))
        .unwrap();
}

/// The runner's status; `None` while the guest restarts or the runner is not up.
fn status(node: &mut Node) -> Option<Value> {
    let (code, text) = node
        .vm()
        .unwrap()
        .exec("os-agent --json steps status", Duration::from_secs(30))
        .ok()?;
    (code == 0).then(|| serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
}

fn at_rest(s: &Value) -> bool {
    ["converged", "in-sync"].contains(&s["outcome"]["outcome"].as_str().unwrap_or_default())
}

/// Leaves the node alone until the last step's trace is of this generation and the runner is at rest.
fn converged(node: &mut Node, generation: u32, from: &mut usize) {
    let start = Instant::now();
    let script = format!(
        "[ \"$(cat /persist/test/out-{})\" = {generation} ] && os-agent --json steps status",
        NAMES[6]
    );
    loop {
        match node.vm().unwrap().exec(&script, Duration::from_secs(30)) {
            Ok((0, text)) => {
                let s: Value = serde_json::from_str(&text).unwrap();
                if at_rest(&s) {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) if !node.vm().unwrap().boots(*from).is_empty() => {
                let f = node.next_system(*from).unwrap();
                *from = f.ready.index + 1;
            }
            Err(_) => {}
        }
        assert!(
            start.elapsed() < UP * 2,
            "generation {generation} did not converge: {:?}",
            status(node)
        );
        std::thread::sleep(Duration::from_secs(2));
    }
}

#[test]
#[ignore = "needs root, QEMU and the fixture: tests/run boot-more"]
fn power_cuts_with_a_restart_in_the_middle_of_a_bundle() {
    let images = images().unwrap();
    let cuts = if long() { 50 } else { 5 };
    let mut random = Random::new();
    let mut node = Node::start("steps", &images, "1", Firmware::Bios).unwrap();
    node.keep();
    enable(&mut node);
    let mut generation = 1;
    install(&mut node, generation);
    let mut from = node.ready.index + 1;
    for cut in 0..cuts {
        // Seven steps of half a second and a restart: cuts fall before, into and behind it.
        std::thread::sleep(Duration::from_secs_f64(random.unit() * 25.0));
        node.power_cycle().unwrap();
        from = node.ready.index + 1;
        let done = status(&mut node).is_some_and(|s| at_rest(&s));
        let traced = node
            .vm()
            .unwrap()
            .exec(
                &format!("cat /persist/test/out-{}", NAMES[6]),
                Duration::from_secs(60),
            )
            .is_ok_and(|(_, t)| t.trim() == generation.to_string());
        say(&format!(
            "cut {cut} in generation {generation}, converged: {done}"
        ));
        if done && traced {
            generation += 1;
            install(&mut node, generation);
        }
    }
    converged(&mut node, generation, &mut from);
    for name in NAMES {
        let text = node
            .vm()
            .unwrap()
            .ok(&format!("cat /persist/test/out-{name}"))
            .unwrap();
        assert_eq!(text.trim(), generation.to_string(), "{name}");
    }
    let s = status(&mut node).expect("the runner answers");
    assert_eq!(s["failures"], 0, "{s:#}");
    let failed = node
        .vm()
        .unwrap()
        .ok("grep -rl '\"failed\"' /persist/os-agent/steps/runs --include run.jsonl; true")
        .unwrap();
    assert_eq!(failed.trim(), "", "a step was recorded as failed");
    // What GRUB started, less what the test switched on: restarts that the runner asked for.
    let log = fs_err::read_to_string(node.machine.dir.join("serial.log")).unwrap();
    let grub = log.lines().filter(|l| l.contains("slipway: src=")).count();
    let on = log.lines().filter(|l| l.ends_with("---- power on")).count();
    assert!(
        on == cuts + 1 && grub >= on,
        "{grub} boots, {on} times switched on"
    );
    let restarts = grub - on;
    say(&format!(
        "{cuts} cuts, {generation} generations, {restarts} restarts by the runner: converged"
    ));
    assert!(
        restarts <= generation as usize,
        "{restarts} restarts for {generation} generations"
    );
}
