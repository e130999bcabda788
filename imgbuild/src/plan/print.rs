//! A plan as text.

use super::{Plan, Source};
use os_proto::layout::MIB;
use std::fmt::{self, Write as _};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {}, {}",
            self.pretty_name,
            self.arch.as_str(),
            if self.bootable {
                "boots by UEFI and BIOS"
            } else {
                "without boot loader"
            }
        )?;
        writeln!(
            f,
            "\nDisk {} MiB, sectors of {} bytes, GUID {}",
            self.disk_size / MIB,
            self.sector_size,
            self.disk_guid
        )?;
        writeln!(
            f,
            "  {:>2}  {:<9} {:>12} {:>10}  {:<36}  content",
            "no", "name", "start", "size", "GUID"
        )?;
        for p in &self.partitions {
            let (start, size) = (amount(p.start), amount(p.size));
            writeln!(
                f,
                "  {:>2}  {:<9} {start:>12} {size:>10}  {:<36}  {}",
                p.number,
                p.name,
                p.guid.to_string(),
                p.content
            )?;
        }
        match &self.source {
            Source::Tree { path } => writeln!(f, "\nRoot from the directory {path}")?,
            Source::Packages { packages, repos } => {
                writeln!(
                    f,
                    "\nRoot from {} packages and what they depend on:",
                    packages.len()
                )?;
                f.write_str(&wrap(packages))?;
                for r in repos {
                    let trust = match &r.key {
                        Some(k) => format!("signed, key {k}"),
                        None => "NOT VERIFIED".to_owned(),
                    };
                    writeln!(f, "  repository {}: {} ({trust})", r.id, r.location)?;
                }
            }
        }
        list(f, "Kernel arguments added", &self.boot_args)?;
        let files: Vec<String> = self
            .files
            .iter()
            .map(|(to, from)| format!("{to} <- {from}"))
            .collect();
        if !files.is_empty() {
            writeln!(f, "\nFiles added:")?;
            for line in files {
                writeln!(f, "  {line}")?;
            }
        }
        list(f, "Users", &self.users)?;
        list(f, "Units enabled", &self.enable)?;
        list(f, "Units disabled", &self.disable)
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, items: &[String]) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}: {}", items.join(" "))
}

fn amount(bytes: u64) -> String {
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{} KiB", bytes / 1024)
    }
}

/// Words in lines of at most 100 characters, indented.
fn wrap(words: &[String]) -> String {
    let mut out = String::new();
    let mut line = String::new();
    for w in words {
        if !line.is_empty() && line.len() + w.len() > 98 {
            let _ = writeln!(out, "  {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(w);
    }
    if !line.is_empty() {
        let _ = writeln!(out, "  {line}");
    }
    out
}
