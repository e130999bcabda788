//! Why a checksum changed: two bundles, or two rendered groups, compared step by step. PURE.

use crate::bundle::Bundle;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Lines of context that a change shows.
const SHOWN: usize = 20;

/// What differs between an old and a new bundle, for people.
pub fn bundles(old: &Bundle, new: &Bundle) -> String {
    let (a, b) = (&old.manifest, &new.manifest);
    let mut t = String::new();
    if a.content_hash == b.content_hash {
        let _ = writeln!(t, "the content is the same: {}", a.content_hash);
        for (what, x, y) in [
            ("inputs", &a.inputs_hash, &b.inputs_hash),
            ("epoch", &a.epoch, &b.epoch),
            ("external checksum", &a.external_checksum, &b.external_checksum),
        ] {
            if x != y {
                let _ = writeln!(t, "  the {what} changed, which changes no step: {x:?} to {y:?}");
            }
        }
        return t;
    }
    let _ = writeln!(t, "content hash: {} to {}", a.content_hash, b.content_hash);
    if a.lib_sha256 != b.lib_sha256 {
        let _ = writeln!(t, "the helper library changed: every step counts as changed");
    }
    let index = |x: &Bundle| -> BTreeMap<String, usize> {
        x.manifest
            .steps
            .iter()
            .enumerate()
            .map(|(i, s)| (s.name.clone(), i))
            .collect()
    };
    let (before, after) = (index(old), index(new));
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in all {
        match (before.get(name), after.get(name)) {
            (Some(_), None) => {
                let _ = writeln!(t, "- {name}: removed");
            }
            (None, Some(_)) => {
                let _ = writeln!(t, "+ {name}: added");
            }
            (Some(i), Some(j)) => step(&mut t, name, (old, *i), (new, *j)),
            (None, None) => {}
        }
    }
    t
}

fn step(t: &mut String, name: &str, old: (&Bundle, usize), new: (&Bundle, usize)) {
    let entry = |(b, i): (&Bundle, usize)| b.manifest.steps.get(i).cloned();
    let (Some(a), Some(b)) = (entry(old), entry(new)) else {
        return;
    };
    if a.attributes != b.attributes {
        let _ = writeln!(
            t,
            "~ {name}: attributes: {:?} to {:?}",
            a.attributes, b.attributes
        );
    }
    if a.sha256 == b.sha256 {
        return;
    }
    let _ = writeln!(t, "~ {name}: {} to {} bytes", a.bytes, b.bytes);
    let text = |(b, i): (&Bundle, usize)| {
        b.steps
            .get(i)
            .map(|d| String::from_utf8_lossy(d).into_owned())
            .unwrap_or_default()
    };
    let (x, y) = (text(old), text(new));
    let (x, y): (Vec<&str>, Vec<&str>) = (x.lines().collect(), y.lines().collect());
    // What is equal at both ends is left out; what lies between is shown.
    let head = x.iter().zip(&y).take_while(|(a, b)| a == b).count();
    let most = x.len().min(y.len()) - head;
    let tail = x
        .iter()
        .rev()
        .zip(y.iter().rev())
        .take(most)
        .take_while(|(a, b)| a == b)
        .count();
    for (sign, lines) in [('-', &x), ('+', &y)] {
        let part = lines.get(head..lines.len() - tail).unwrap_or_default();
        for (n, l) in part.iter().take(SHOWN).enumerate() {
            let _ = writeln!(t, "    {sign}{:>4}  {l}", head + n + 1);
        }
        if part.len() > SHOWN {
            let _ = writeln!(t, "    {sign}      … {} more lines", part.len() - SHOWN);
        }
    }
}

/// Which inputs of two contexts differ, by path.
pub fn contexts(old: &serde_json::Value, new: &serde_json::Value) -> Vec<String> {
    let mut out = Vec::new();
    compare("", old, new, &mut out);
    out
}

fn compare(path: &str, a: &serde_json::Value, b: &serde_json::Value, out: &mut Vec<String>) {
    match (a, b) {
        (serde_json::Value::Object(x), serde_json::Value::Object(y)) => {
            let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            for k in keys {
                let at = format!("{path}.{k}");
                match (x.get(k), y.get(k)) {
                    (Some(a), Some(b)) => compare(&at, a, b, out),
                    (Some(_), None) => out.push(format!("{at}: removed")),
                    _ => out.push(format!("{at}: added")),
                }
            }
        }
        _ if a != b => out.push(format!("{path}: changed")),
        _ => {}
    }
}
