//! Packages that a bundle asks of the distribution and that a read-only root cannot get: they must come with the image.

use crate::bundle::Bundle;
use crate::sys::child;
use std::collections::BTreeSet;
use std::time::Duration;

/// Limit of one question to the package database.
const LIMIT: Duration = Duration::from_secs(20);

/// Names of packages that a step installs, as far as they are written out: `bb-dnf-install a b`, `bb-pkg install a`. A name
/// that is made while the step runs is found then. PURE.
pub fn packages(step: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let text = step.replace("\\\n", " ");
    for line in text.lines() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        for (i, word) in words.iter().enumerate() {
            let from = match word.strip_prefix("bb-") {
                Some("pkg") if words.get(i + 1) == Some(&"install") => i + 2,
                Some(
                    "apt-install" | "apt-rpm-install" | "dnf-install" | "yum-install" | "zypper-install",
                ) => i + 1,
                _ => continue,
            };
            for raw in words.iter().skip(from) {
                let end = raw.ends_with(';');
                let name = raw.trim_end_matches(';').trim_matches(['"', '\'']);
                let literal = |c: char| c.is_ascii_alphanumeric() || "+-._:".contains(c);
                if name.is_empty() || name.starts_with('-') || !name.chars().all(literal) {
                    if raw.starts_with(['|', '&', ';', '#', '>', '<', '}']) {
                        break;
                    }
                    continue;
                }
                out.insert(name.to_owned());
                if end {
                    break;
                }
            }
        }
    }
    out
}

/// What the image must bring: all packages of the bundle that are not there, where none can be installed. PURE.
pub fn missing(b: &Bundle, writable: bool, there: impl Fn(&str) -> bool) -> Vec<String> {
    if writable {
        return Vec::new();
    }
    let all: BTreeSet<String> = b
        .steps
        .iter()
        .flat_map(|t| packages(&String::from_utf8_lossy(t)))
        .collect();
    all.into_iter().filter(|p| !there(p)).collect()
}

/// The same for this machine.
pub fn of_machine(b: &Bundle) -> Vec<String> {
    let read_only =
        rustix::fs::statvfs("/usr").is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    missing(b, !read_only, installed)
}

fn installed(package: &str) -> bool {
    let ask = |program: &str, args: &[&str]| child::helper(program, args, LIMIT).ok();
    let rpm = ask("rpm", &["-q", "--quiet", "--", package]).is_some_and(|(ok, _)| ok);
    rpm || ask("dpkg-query", &["-W", "-f", "${db:Status-Status}", "--", package])
        .is_some_and(|(ok, text)| ok && text == "installed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::text_bundle;

    #[test]
    fn names_that_are_written_out_are_found() {
        let found = packages(
            "# bb-dnf-install comment\nif true; then bb-dnf-install a \"b-c\" 'd'; fi\nbb-pkg install e \\\n  f\n\
             bb-apt-install -y g h=1 $i | tee x\nbb-pkg remove k\nbb-package-install l:sha256:0\n",
        );
        let want: Vec<&str> = vec!["a", "b-c", "d", "e", "f", "g"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), want);
    }

    #[test]
    fn only_a_read_only_root_needs_an_image() {
        let b = text_bundle(&[
            ("000_a.sh", "bb-dnf-install jq nfs-utils\n"),
            ("010_b.sh", "bb-dnf-install jq\n"),
        ]);
        assert_eq!(missing(&b, false, |p| p == "jq"), ["nfs-utils"]);
        assert!(missing(&b, true, |_| false).is_empty());
    }
}
