//! Makes sense of what dnf and rpm print. Pure; written against real output of dnf 4 with rpm 4.18.

use crate::error::{BuildError, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Lines of a scriptlet's output that an error quotes.
const QUOTED: usize = 20;

/// `(3/180): name.rpm …` while downloading, `Installing : name-1-1.noarch 3/180` in the transaction → done, total, what.
pub(super) fn progress(line: &str) -> Option<(u64, u64, &str)> {
    let line = line.trim();
    if let Some((count, what)) = line.strip_prefix('(').and_then(|l| l.split_once("): ")) {
        let (done, total) = fraction(count)?;
        return Some((done, total, what.split_whitespace().next()?));
    }
    let rest = line.strip_prefix("Installing")?.trim_start().strip_prefix(':')?;
    let mut words = rest.split_whitespace();
    let what = words.next()?;
    let (done, total) = fraction(words.next()?)?;
    Some((done, total, what))
}

fn fraction(text: &str) -> Option<(u64, u64)> {
    let (done, total) = text.split_once('/')?;
    Some((done.trim().parse().ok()?, total.trim().parse().ok()?))
}

/// The repository of each package in dnf's transaction table: `(name, arch)` → repository.
///
/// The table is wrapped to the width of a terminal, so rows are read as groups of six words: name, arch, version, repository,
/// size and its unit.
pub(super) fn transaction_table(log: &[String]) -> BTreeMap<(String, String), String> {
    let mut table = BTreeMap::new();
    let body = log
        .iter()
        .map(|l| l.trim())
        .skip_while(|l| !l.starts_with("Installing"))
        .take_while(|l| *l != "Transaction Summary")
        .filter(|l| !l.ends_with(':') && !l.starts_with("replacing ") && !l.starts_with("===="));
    let words: Vec<&str> = body.flat_map(str::split_whitespace).collect();
    for row in words.chunks_exact(6) {
        if let [name, arch, _, repo, size, "k" | "M" | "G" | "B"] = row
            && size.starts_with(|c: char| c.is_ascii_digit())
        {
            table.insert(((*name).to_owned(), (*arch).to_owned()), (*repo).to_owned());
        }
    }
    table
}

/// How many packages dnf would install, as it says below its table.
pub(super) fn package_count(log: &[String]) -> Option<usize> {
    let rest = log.iter().find_map(|l| l.trim().strip_prefix("Install "))?;
    let (count, word) = rest.trim().split_once(' ')?;
    word.trim_start()
        .starts_with("Package")
        .then(|| count.parse().ok())?
}

/// Whether a dnf that did not succeed only stopped because the answer to its question was no.
pub(super) fn only_asked(log: &[String]) -> bool {
    log.iter().any(|l| l.trim() == "Operation aborted.") && !log.iter().any(|l| l.starts_with("Error:"))
}

/// What dnf, curl and rpm say when the disk is full. rpm sees the image's root, whose disk is that of the results.
const FULL: [&str; 6] = [
    "No space left on device",
    "Disk quota exceeded",
    "Failed writing received data to disk",
    "more space needed on the",
    "more space on the",
    "more inodes on the",
];

/// The error behind a dnf that did not succeed.
pub(super) fn explain(log: &[String], arch: &str) -> BuildError {
    let has = |needle: &str| log.iter().any(|l| l.contains(needle));
    if FULL.iter().any(|f| has(f)) {
        // The image's "/" is not the host's.
        let detail = grep(log, &FULL).replace("on the / filesystem", "on the output directory's disk");
        return BuildError::new(
            Kind::Space,
            "IO028",
            format!(
                "installing packages: the disk of the output directory is full; free space there or give --out another \
                 disk: {detail}"
            ),
        );
    }
    if let Some(error) = trust(log) {
        return error;
    }
    if let Some(error) = repository(log) {
        return error;
    }
    let missing = missing_packages(log);
    if !missing.is_empty() {
        let list: Vec<String> = missing
            .iter()
            .map(|n| format!("no package matches {n:?}"))
            .collect();
        return BuildError::new(Kind::Build, "RPM001", list.join("\n"));
    }
    let problems = problems(log);
    let foreign: BTreeSet<&str> = problems.iter().filter_map(|l| wrong_arch(l)).collect();
    if !foreign.is_empty() {
        let list: Vec<String> = foreign
            .iter()
            .map(|nevra| format!("{nevra}: image is {arch}"))
            .collect();
        return BuildError::new(Kind::Build, "RPM003", list.join("\n"));
    }
    if !problems.is_empty() {
        return BuildError::new(
            Kind::Build,
            "RPM002",
            format!("the packages do not fit together:{}", indent(&problems)),
        );
    }
    if let Err(error) = scriptlet_failures(log) {
        return error;
    }
    if has("Transaction test error") || has("conflicts with file") || has("conflict with file") {
        let lines: Vec<&str> = log
            .iter()
            .map(|l| l.trim())
            .filter(|l| l.contains("conflict"))
            .collect();
        return BuildError::new(
            Kind::Build,
            "RPM004",
            format!("packages bring the same file:{}", indent(&lines)),
        );
    }
    let from = log.len().saturating_sub(QUOTED);
    let tail: Vec<&str> = log[from..].iter().map(String::as_str).collect();
    BuildError::new(Kind::Build, "RPM000", format!("dnf failed:{}", indent(&tail)))
}

fn trust(log: &[String]) -> Option<BuildError> {
    let mut found: Vec<String> = Vec::new();
    for line in log.iter().map(|l| l.trim()) {
        if let Some(package) = between(line, "Package ", " is not signed") {
            found.push(format!(
                "{}: unsigned; set allow_unsigned = true for its repository to accept",
                rpm_name(package)
            ));
        } else if let Some(package) = between(line, "Public key for ", " is not installed") {
            found.push(format!(
                "{}: signed by another key than the repository's",
                rpm_name(package)
            ));
        } else if let Some(package) = between(line, "Failing package is: ", "") {
            found.push(format!(
                "{}: signed by another key than the repository's",
                rpm_name(package)
            ));
        } else if let Some(package) = between(line, "Problem opening package ", "") {
            found.push(format!(
                "{}: damaged, or its signature is not valid",
                rpm_name(package)
            ));
        } else if line.contains(" does not verify: ")
            || line.contains("signature, key ID") && line.contains("BAD")
        {
            found.push(line.trim_start_matches("error: ").to_owned());
        } else if line.contains("checksum doesn't match")
            || line.contains("Error: Package") && line.contains("checksum")
        {
            found.push(format!(
                "a downloaded file is not what the repository's index says: {line}"
            ));
        } else if line.starts_with("Didn't install any keys") || line.starts_with("Failed to import GPG key")
        {
            found.push(line.to_owned());
        }
    }
    if found.is_empty() && log.iter().any(|l| l.contains("GPG check FAILED")) {
        found.push(format!(
            "a signature was not accepted:{}",
            indent(&log.iter().map(String::as_str).collect::<Vec<_>>())
        ));
    }
    let mut seen = BTreeSet::new();
    found.retain(|line| seen.insert(line.clone()));
    (!found.is_empty()).then(|| BuildError::new(Kind::Trust, "SIG001", few(&found)))
}

/// Packages that an error about signatures names; a wrong key concerns all of a repository.
const NAMED: usize = 5;

/// The first lines, how many more there are, and what to do about a key that is not the right one.
fn few(found: &[String]) -> String {
    let mut lines: Vec<String> = found.iter().take(NAMED).cloned().collect();
    if found.len() > NAMED {
        lines.push(format!("and {} more packages", found.len() - NAMED));
        if found.iter().any(|l| l.contains("signed by another key")) {
            lines.push(
                "the key of rootfs.repos is probably not the one that this repository signs with; get its public key from \
                 whoever runs the repository"
                    .to_owned(),
            );
        }
    }
    lines.join("\n")
}

fn repository(log: &[String]) -> Option<BuildError> {
    // Error: Failed to download metadata for repo 'x': Cannot download repomd.xml: …
    for line in log {
        if let Some(rest) = line.split("Failed to download metadata for repo '").nth(1) {
            let (repo, what) = rest.split_once("': ").unwrap_or((rest, ""));
            let reason = curl_reason(log).unwrap_or_else(|| what.trim().to_owned());
            let message = format!("repo {repo:?}: {reason} (5 tries)");
            return Some(BuildError::new(Kind::Build, "REPO002", message));
        }
    }
    if log.iter().any(|l| l.contains("Error downloading packages")) {
        let reason = curl_reason(log)
            .or_else(|| {
                let mut after = log
                    .iter()
                    .skip_while(|l| !l.contains("Error downloading packages"))
                    .skip(1);
                after.next().map(|l| l.trim().to_owned())
            })
            .unwrap_or_default();
        return Some(BuildError::new(
            Kind::Build,
            "REPO002",
            format!("cannot download a package: {reason}"),
        ));
    }
    if log
        .iter()
        .any(|l| l.contains("There are no enabled repositories"))
    {
        return Some(BuildError::new(
            Kind::Input,
            "REPO001",
            "no enabled repository in the recipe",
        ));
    }
    None
}

/// `  - Curl error (7): Couldn't connect to server for URL [Failed to connect …]` → `URL: Couldn't connect to server`.
/// `  - Status code: 404 for URL (IP: …)` → `URL: status 404`.
fn curl_reason(log: &[String]) -> Option<String> {
    log.iter().map(|l| l.trim()).find_map(|line| {
        let line = line.trim_start_matches("- ");
        if let Some(rest) = line.split("Status code: ").nth(1) {
            let (code, rest) = rest.split_once(" for ")?;
            let url = rest.split_whitespace().next()?;
            return Some(format!("{url}: status {code}"));
        }
        let rest = line.split("Curl error (").nth(1)?;
        let (_, rest) = rest.split_once("): ")?;
        let (what, rest) = rest.split_once(" for ")?;
        let url = rest.split_whitespace().next()?;
        Some(format!("{url}: {what}"))
    })
}

/// Names that no repository has.
pub(super) fn missing_packages(log: &[String]) -> Vec<&str> {
    let mut names: Vec<&str> = log
        .iter()
        .filter_map(|l| l.trim().strip_prefix("No match for argument: "))
        .map(str::trim)
        .collect();
    if names.is_empty() {
        names = log
            .iter()
            .filter_map(|l| l.split("Unable to find a match: ").nth(1))
            .flat_map(str::split_whitespace)
            .collect();
    }
    names.dedup();
    names
}

/// The solver's explanation, word for word.
fn problems(log: &[String]) -> Vec<&str> {
    let start = log.iter().position(|l| {
        let l = l.trim_start().trim_start_matches("Error:").trim_start();
        l.starts_with("Problem:") || l.starts_with("Problem 1:")
    });
    let Some(start) = start else {
        return Vec::new();
    };
    log[start..]
        .iter()
        .map(String::as_str)
        .take_while(|l| !l.starts_with('(') && !l.contains("(try to add"))
        .filter(|l| !l.trim().is_empty())
        .map(|l| l.trim_start_matches("Error:").trim_end())
        .collect()
}

/// `- package t-1.0-1.aarch64 from fixture does not have a compatible architecture` → the package.
fn wrong_arch(line: &str) -> Option<&str> {
    if !line.contains("does not have a compatible architecture") {
        return None;
    }
    line.split("package ").nth(1)?.split_whitespace().next()
}

/// Fails when a scriptlet did: rpm warns, and dnf still ends with 0.
pub(super) fn scriptlet_failures(log: &[String]) -> Result<()> {
    let mut found = Vec::new();
    for (at, line) in log.iter().enumerate() {
        if let Some(what) = failed_scriptlet(line) {
            found.push(format!("{what}{}", indent(&output_before(log, at))));
        }
    }
    found.dedup();
    if found.is_empty() {
        Ok(())
    } else {
        Err(BuildError::new(Kind::Build, "RPM007", found.join("\n")))
    }
}

/// `warning: %post(foo-1-1.noarch) scriptlet failed, exit status 1` → `%post(foo-1-1.noarch) failed (exit 1)`.
/// A failed Lua scriptlet says `error: lua script failed: …`.
fn failed_scriptlet(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(why) = line.strip_prefix("error: lua script failed: ") {
        return Some(format!("a Lua scriptlet failed: {why}"));
    }
    let line = line
        .strip_prefix("warning: ")
        .or_else(|| line.strip_prefix("error: "))
        .unwrap_or(line);
    let (which, how) = line.split_once(" scriptlet failed")?;
    let (kind, package) = which.strip_prefix('%')?.split_once('(')?;
    let kind = match kind {
        "prein" => "pre",
        "postin" => "post",
        other => other,
    };
    let how = how.trim_start_matches([',', ' ']).replace("exit status", "exit");
    let how = if how.is_empty() {
        "no status".to_owned()
    } else {
        how
    };
    Some(format!("%{kind}({package} failed ({how})"))
}

/// What the scriptlet wrote: the lines back to dnf's own.
fn output_before(log: &[String], at: usize) -> Vec<&str> {
    let mut lines: Vec<&str> = log[..at]
        .iter()
        .rev()
        .map(|l| l.trim_end())
        .take_while(|l| {
            let l = l.trim_start();
            ![
                "Running scriptlet",
                "Installing ",
                "Upgrading ",
                "Preparing ",
                "Verifying ",
                "Cleanup ",
            ]
            .iter()
            .any(|own| l.starts_with(own))
        })
        .filter(|l| !l.trim().is_empty())
        .take(QUOTED)
        .collect();
    lines.reverse();
    lines
}

/// Users and groups that rpm did not find when it unpacked files: `user x`, `group x`.
pub(super) fn unknown_owners(log: &[String]) -> BTreeSet<String> {
    log.iter()
        .filter_map(|l| {
            let rest = l.trim().strip_prefix("warning: ")?;
            let (who, _) = rest.split_once(" does not exist - using root")?;
            (who.starts_with("user ") || who.starts_with("group ")).then(|| who.to_owned())
        })
        .collect()
}

/// `/x/foo-1.0-1.noarch.rpm` → `foo-1.0-1.noarch`.
fn rpm_name(path: &str) -> &str {
    let name = path.trim().rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".rpm").unwrap_or(name)
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = &line[line.find(before)? + before.len()..];
    if after.is_empty() {
        return Some(rest);
    }
    Some(&rest[..rest.find(after)?])
}

fn grep(log: &[String], needles: &[&str]) -> String {
    let lines: Vec<&str> = log
        .iter()
        .map(|l| l.trim())
        .filter(|l| needles.iter().any(|n| l.contains(n)))
        .take(3)
        .collect();
    lines.join("; ")
}

fn indent(lines: &[&str]) -> String {
    lines.iter().map(|l| format!("\n  {}", l.trim_end())).collect()
}

#[cfg(test)]
mod tests;
