//! The main job on real parts, told step by step; ends with a table. Started by `tests/demo`.
#![allow(clippy::disallowed_methods)]

use anyhow::{Result, bail, ensure};
use os_e2e::guest::{self, STAGE};
use os_e2e::images::{self, Broken};
use os_e2e::node::{Node, say};
use os_e2e::vm::Firmware;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

struct Table {
    start: Instant,
    rows: Vec<(String, String, f64)>,
}

impl Table {
    fn row(&mut self, what: &str, seen: String) {
        let at = self.start.elapsed().as_secs_f64();
        say(&format!("{what}: {seen}"));
        self.rows.push((what.to_owned(), seen, at));
    }

    fn print(&self) {
        let wide = |f: fn(&(String, String, f64)) -> usize| self.rows.iter().map(f).max().unwrap_or(0);
        let (a, b) = (wide(|r| r.0.len()), wide(|r| r.1.len()));
        println!("\n{:<a$} | {:<b$} | at", "step", "what happened");
        println!("{:-<a$}-|-{:-<b$}-|-------", "", "");
        for (what, seen, at) in &self.rows {
            println!("{what:<a$} | {seen:<b$} | {at:5.0} s");
        }
    }
}

fn main() -> std::process::ExitCode {
    let mut table = Table {
        start: Instant::now(),
        rows: Vec::new(),
    };
    let told = tell(&mut table);
    table.print();
    match told {
        Ok(()) => {
            println!(
                "\nAll as it should be, in {:.0} s.",
                table.start.elapsed().as_secs_f64()
            );
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            println!("\nFAILED: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn tell(table: &mut Table) -> Result<()> {
    say(
        "compiling os-agent and imgbuild (minutes where nothing is compiled yet), then RPM packages and images from them",
    );
    let images = with_signs_of_life("still compiling and building", images::images)?;
    table.row(
        "build",
        format!(
            "versions 1 and 2 by imgbuild from RPM packages ({}{})",
            if images.fresh { "" } else { "by an earlier run: " },
            images.dir
        ),
    );
    let mut node = Node::start("demo", &images, "1", Firmware::Uefi)?;
    let done = story(table, &images, &mut node);
    if done.is_err() {
        node.keep();
    }
    done
}

/// Does something long that may be silent, with a line every minute.
fn with_signs_of_life<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let (done, wait) = channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            while wait.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                say(&format!("{what}, {} min so far", start.elapsed().as_secs() / 60));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

fn story(table: &mut Table, images: &images::Images, node: &mut Node) -> Result<()> {
    let r = node.ready.clone();
    ensure!(
        r.slot == "A" && r.version == "1" && r.trial.is_none(),
        "boot 1: {r:?}"
    );
    table.row("boot 1 (UEFI)", guest::describe(&r));

    node.staged(&images.update("2"))?;
    table.row(
        "stage version 2 over HTTP",
        "written to slot B, read back, inspected".into(),
    );
    let f = node.flip()?;
    ensure!(
        f.ready.slot == "B" && f.ready.version == "2" && f.ready.trial == Some(2),
        "boot 2: {f:?}"
    );
    table.row("activate --reboot, boot 2", guest::describe(&f.ready));
    let s = node.vm()?.committed("B")?;
    table.row(
        "health good",
        format!("slot {} committed", text(&s["env"]["cur"])),
    );

    let broken = images.broken(Broken::Panic)?;
    let digest = node.staged(&broken)?;
    table.row(
        "stage broken version 3",
        "staged: only a boot can tell that its kernel panics".into(),
    );
    let f = node.flip()?;
    let want = [("A", "2"), ("A", "1"), ("A", "0"), ("B", "-")];
    let seen: Vec<(&str, &str)> = f.boots.iter().map(|(s, t)| (s.as_str(), t.as_str())).collect();
    ensure!(seen == want, "expected the boots {want:?}, found {seen:?}");
    table.row(
        "boots 3, 4, 5",
        "slot A, version 3: kernel panic, three tries".into(),
    );
    ensure!(f.ready.slot == "B" && f.ready.version == "2", "fallback: {f:?}");
    table.row("boot 6: fell back by itself", guest::describe(&f.ready));
    let s = node
        .vm()?
        .status_until("memory of the fallback", guest::UP, |s| {
            s["failed_digests"].as_array().is_some_and(|a| !a.is_empty())
        })?;
    let failed = &s["failed_digests"][0];
    ensure!(
        text(&failed["digest"]).contains(&digest),
        "failed digests: {failed}"
    );
    table.row(
        "digest remembered",
        format!("{}… failed, cause {}", &digest[..12], text(&failed["cause"])),
    );
    if text(&failed["cause"]) == "no_report" {
        table.row(
            "why not cause panic",
            "nothing kept a record: the pstore driver lies in the initramfs that version 3 breaks".into(),
        );
    }
    let url = node
        .server
        .guest_url(&format!("/{}", broken.file_name().unwrap_or_default()));
    let again = node.vm()?.agent(
        &format!("stage --image '{url}' --sha256 {digest} --allow-http"),
        STAGE,
    )?;
    if again.code != 3 || !again.text.contains("DigestFailedBefore") {
        bail!("the same digest again: status {}: {}", again.code, again.text);
    }
    table.row(
        "stage version 3 again",
        "refused: DigestFailedBefore, exit code 3".into(),
    );
    Ok(())
}

fn text(v: &serde_json::Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), ToOwned::to_owned)
}
