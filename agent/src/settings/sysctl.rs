//! PURE: kernel.sysctl and kernel.sysctl.persist.
//!
//! Format of the file: sysctl.d(5). A key is written with dots or with slashes; the first separator of a key says which, and
//! in a key with dots a slash stands for a dot inside a part (`net.ipv4.conf.eth0/100.rp_filter`).

use super::lines::{Lines, body, squeezed};
use super::{Item, Op, Verdict, plain};
use std::collections::BTreeMap;

/// What is known about a key of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelFact {
    /// Path below /proc/sys, parts joined by slashes; `None` = this kernel has no such setting.
    pub path: Option<String>,
    /// What the kernel holds.
    pub value: Option<String>,
    /// Why it cannot be read or written, where it cannot.
    pub trouble: Option<String>,
}

/// The parts of a key as it is written, without asking a kernel.
///
/// # Errors
/// Keys that are no path below /proc/sys.
pub fn parts(key: &str) -> Result<Vec<String>, String> {
    let slashes = match (key.find('/'), key.find('.')) {
        (Some(s), Some(d)) => s < d,
        (s, _) => s.is_some(),
    };
    let parts: Vec<String> = if slashes {
        key.split('/').map(str::to_owned).collect()
    } else {
        key.split('.').map(|p| p.replace('/', ".")).collect()
    };
    let bad = |p: &String| {
        p.is_empty()
            || p == "."
            || p == ".."
            || p.contains(['=', '\0', '#'])
            || p.contains(char::is_whitespace)
    };
    if parts.iter().any(bad) {
        return Err(format!(
            "{key:?} is no name of a kernel setting; expected for example net.ipv4.ip_forward or net/ipv4/ip_forward"
        ));
    }
    Ok(parts)
}

/// Finds the setting below /proc/sys; `exists` answers for a path of joined parts. A key written with dots finds names that
/// hold dots themselves (`net.ipv4.conf.eth0.100.rp_filter`).
///
/// # Errors
/// As [`parts`].
pub fn resolve(key: &str, exists: &dyn Fn(&str) -> bool) -> Result<Option<String>, String> {
    fn walk(above: &str, rest: &[String], exists: &dyn Fn(&str) -> bool) -> Option<String> {
        if rest.is_empty() {
            return Some(above.to_owned());
        }
        (1..=rest.len()).find_map(|n| {
            let name = rest.get(..n)?.join(".");
            let path = if above.is_empty() {
                name
            } else {
                format!("{above}/{name}")
            };
            exists(&path)
                .then(|| walk(&path, rest.get(n..)?, exists))
                .flatten()
        })
    }
    let parts = parts(key)?;
    let joined = parts.join("/");
    if exists(&joined) {
        return Ok(Some(joined));
    }
    Ok(walk("", &parts, exists))
}

/// Decides about a setting of the running kernel; `Some` = the value to write.
pub(super) fn kernel(item: &Item, fact: &KernelFact) -> (Verdict, Option<String>) {
    let value = match plain(&item.value) {
        Ok(v) if v.trim().is_empty() => return (Verdict::rejected("a value is required"), None),
        Ok(v) => v,
        Err(why) => return (Verdict::rejected(why), None),
    };
    if let Err(why) = parts(&item.key) {
        return (Verdict::rejected(why), None);
    }
    if fact.path.is_none() {
        return (
            Verdict::rejected(format!(
                "this kernel has no setting {:?} below /proc/sys",
                item.key
            )),
            None,
        );
    }
    if let Some(why) = &fact.trouble {
        return (Verdict::rejected(why.clone()), None);
    }
    match &fact.value {
        Some(old) if squeezed(old) == squeezed(&value) => (Verdict::unchanged(""), None),
        Some(old) => (
            Verdict::changed(format!("was {:?}; until the next boot", squeezed(old))),
            Some(value),
        ),
        None => (Verdict::changed("until the next boot"), Some(value)),
    }
}

/// A `key = value` line.
struct Pair<'a> {
    /// Parts joined by slashes.
    key: String,
    /// Everything up to the value.
    head: &'a str,
    value: &'a str,
}

fn pair(line: &str) -> Option<Pair<'_>> {
    let text = body(line);
    let start = text.trim_start();
    if start.is_empty() || start.starts_with(['#', ';']) {
        return None;
    }
    let (left, right) = text.split_once('=')?;
    let name = left.trim();
    // A dash means that a failure is no matter.
    let name = name.strip_prefix('-').unwrap_or(name);
    let value = right.trim();
    let at = left.len() + 1 + (right.len() - right.trim_start().len());
    Some(Pair {
        key: parts(name).ok()?.join("/"),
        head: text.get(..at)?,
        value,
    })
}

/// Applies entries to a file's text, in order.
pub(super) fn edit(
    old: &str,
    items: &[&Item],
    kernel: &BTreeMap<String, KernelFact>,
) -> (String, Vec<Verdict>) {
    let mut lines = Lines::of(old);
    let verdicts = items
        .iter()
        .map(|i| entry(&mut lines, i, kernel.get(&i.key)).unwrap_or_else(Verdict::rejected))
        .collect();
    (lines.text(), verdicts)
}

fn entry(lines: &mut Lines, item: &Item, fact: Option<&KernelFact>) -> Result<Verdict, String> {
    let written = parts(&item.key)?.join("/");
    let found = fact.and_then(|f| f.path.clone());
    let value = plain(&item.value)?;
    let value = value.trim();
    let same = |p: &Pair<'_>| p.key == written || Some(&p.key) == found.as_ref();
    let hits: Vec<usize> = lines
        .list
        .iter()
        .enumerate()
        .filter(|(_, l)| pair(l).is_some_and(|p| same(&p)))
        .map(|(i, _)| i)
        .collect();
    let held = |i: usize| lines.list.get(i).and_then(|l| pair(l)).map(|p| squeezed(p.value));
    if item.op == Op::Delete {
        if hits.is_empty() {
            return Ok(Verdict::unchanged(format!("there is no {:?}", item.key)));
        }
        if let Some(other) = hits
            .iter()
            .filter_map(|i| held(*i))
            .find(|v| *v != squeezed(value))
        {
            return Err(format!(
                "the file holds {other:?}, the entry names {value:?}; a setting is deleted only with the value it has"
            ));
        }
        let mut at = 0;
        lines.list.retain(|_| {
            at += 1;
            !hits.contains(&(at - 1))
        });
        return Ok(Verdict::changed("deleted"));
    }
    if value.is_empty() {
        return Err("a value is required".into());
    }
    // The last line of a key counts.
    if let Some(last) = hits.last().copied() {
        if held(last).as_deref() == Some(squeezed(value).as_str()) {
            return Ok(Verdict::unchanged(""));
        }
        let was = held(last).unwrap_or_default();
        if let Some(line) = lines.list.get_mut(last) {
            let ending = line.get(body(line).len()..).unwrap_or_default().to_owned();
            let head = pair(line).map(|p| p.head.to_owned()).unwrap_or_default();
            *line = format!("{head}{value}{ending}");
        }
        return Ok(Verdict::changed(format!("was {was:?}")));
    }
    let spaced = lines
        .list
        .iter()
        .rev()
        .find_map(|l| pair(l).map(|p| p.head.ends_with("= ")))
        .unwrap_or(false);
    // A name with dots inside a part is only understood with slashes.
    let key = match &found {
        Some(p) if *p != written => p.as_str(),
        _ => item.key.as_str(),
    };
    lines.push(&format!("{key}{}{value}", if spaced { " = " } else { "=" }));
    Ok(Verdict::changed("added"))
}
