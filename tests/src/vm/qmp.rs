//! The few words of QEMU's monitor protocol that tests need.

use anyhow::{Context, Result};
use camino::Utf8Path;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One command on a fresh connection: its `return` value.
///
/// # Errors
/// When QEMU does not answer within five seconds or answers with an error.
pub fn command(sock: &Utf8Path, name: &str) -> Result<Value> {
    let mut s = UnixStream::connect(sock).context("QMP")?;
    s.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(s.try_clone()?).lines();
    lines.next().context("QMP greeting")??;
    let mut answer = Value::Null;
    for c in ["qmp_capabilities", name] {
        writeln!(s, "{}", json!({ "execute": c }))?;
        answer = loop {
            let line = lines.next().context("QMP was closed")??;
            let v: Value = serde_json::from_str(&line)?;
            if let Some(e) = v.get("error") {
                anyhow::bail!("QMP {c}: {e}");
            }
            if let Some(r) = v.get("return") {
                break r.clone();
            }
        };
    }
    Ok(answer)
}

/// `running`, `paused`, `shutdown`, …
///
/// # Errors
/// As [`command`].
pub fn query_status(sock: &Utf8Path) -> Result<String> {
    let v = command(sock, "query-status")?;
    Ok(v["status"].as_str().unwrap_or("unknown").to_owned())
}

/// The reset button.
///
/// # Errors
/// As [`command`].
pub fn reset(sock: &Utf8Path) -> Result<()> {
    command(sock, "system_reset").map(drop)
}
