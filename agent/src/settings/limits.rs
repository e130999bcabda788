//! PURE: pam.limits, the lines of limits.conf(5): domain, type, item, value.
//!
//! The key of an entry is the domain, its value `type.item.value`. A line is matched by domain, type *and* item.

use super::lines::{Lines, body, words};
use super::{Item, Op, Verdict, plain};

const TYPES: [&str; 3] = ["soft", "hard", "-"];
const ITEMS: [&str; 19] = [
    "core",
    "data",
    "fsize",
    "memlock",
    "nofile",
    "rss",
    "stack",
    "cpu",
    "nproc",
    "as",
    "maxlogins",
    "maxsyslogins",
    "nonewprivs",
    "priority",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
];

/// What an entry names; `None` = `_`, which keeps what is there.
struct Wanted {
    kind: Option<String>,
    item: Option<String>,
    value: Option<String>,
}

/// Which line of the file an entry is about, for telling duplicates.
pub(super) fn line_key(item: &Item) -> String {
    let value = plain(&item.value).unwrap_or_default();
    let mut p = value.splitn(3, '.');
    format!(
        "{} {} {}",
        item.key.trim(),
        p.next().unwrap_or_default(),
        p.next().unwrap_or_default()
    )
}

fn wanted(text: &str) -> Result<Wanted, String> {
    let p: Vec<&str> = text.splitn(3, '.').map(str::trim).collect();
    let [kind, item, value] = p.as_slice() else {
        return Err(format!(
            "expected type.item.value such as hard.nofile.65536, found {text:?}"
        ));
    };
    let part = |s: &str| (s != "_").then(|| s.to_owned());
    if *kind != "_" && !TYPES.contains(kind) {
        return Err(format!("type {kind:?}: expected one of {}", TYPES.join(", ")));
    }
    if *item != "_" && !ITEMS.contains(item) {
        return Err(format!("item {item:?}: expected one of {}", ITEMS.join(", ")));
    }
    let number = value.parse::<i64>().is_ok() || matches!(*value, "unlimited" | "infinity");
    if *value != "_" && !number {
        return Err(format!(
            "value {value:?}: expected a whole number, unlimited or infinity"
        ));
    }
    Ok(Wanted {
        kind: part(kind),
        item: part(item),
        value: part(value),
    })
}

/// A line's four words with their places; `None` = comment, blank or something else.
fn fields(line: &str) -> Option<[(usize, &str); 4]> {
    let text = body(line);
    let text = text.split('#').next().unwrap_or_default();
    words(text).try_into().ok()
}

/// Applies entries to the file's text, in order.
pub(super) fn edit(old: &str, items: &[&Item]) -> (String, Vec<Verdict>) {
    let mut lines = Lines::of(old);
    let verdicts = items
        .iter()
        .map(|i| entry(&mut lines, i).unwrap_or_else(Verdict::rejected))
        .collect();
    (lines.text(), verdicts)
}

fn entry(lines: &mut Lines, item: &Item) -> Result<Verdict, String> {
    let domain = item.key.trim();
    if domain.is_empty() || domain.contains(char::is_whitespace) || domain.contains('#') {
        return Err(format!(
            "domain {:?}: expected a user, @group, a range or * without blanks",
            item.key
        ));
    }
    let text = plain(&item.value)?;
    let want = wanted(&text)?;
    let fits = |f: &[(usize, &str); 4]| {
        let [d, k, i, _] = f;
        d.1 == domain
            && want.kind.as_deref().is_none_or(|w| w == k.1)
            && want.item.as_deref().is_none_or(|w| w == i.1)
    };
    let hits: Vec<usize> = (0..lines.list.len())
        .filter(|n| {
            lines
                .list
                .get(*n)
                .and_then(|l| fields(l))
                .is_some_and(|f| fits(&f))
        })
        .collect();
    let value_of = |lines: &Lines, n: usize| {
        lines
            .list
            .get(n)
            .and_then(|l| fields(l))
            .map(|[_, _, _, v]| v.1.to_owned())
            .unwrap_or_default()
    };
    if item.op == Op::Delete {
        let (Some(_), Some(_), Some(value)) = (&want.kind, &want.item, &want.value) else {
            return Err("a line is deleted only by its whole value; \"_\" names none".into());
        };
        if hits.is_empty() {
            return Ok(Verdict::unchanged("there is no such line"));
        }
        if let Some(other) = hits.iter().map(|n| value_of(lines, *n)).find(|v| v != value) {
            return Err(format!(
                "the file holds {other}, the entry names {value}; a line is deleted only with the value it has"
            ));
        }
        let mut at = 0;
        lines.list.retain(|_| {
            at += 1;
            !hits.contains(&(at - 1))
        });
        return Ok(Verdict::changed("deleted"));
    }
    if hits.is_empty() {
        let (Some(kind), Some(what), Some(value)) = (&want.kind, &want.item, &want.value) else {
            return Err(format!(
                "no line of {domain} matches, and a new one needs type, item and value instead of \"_\""
            ));
        };
        lines.push(&format!("{domain} {kind} {what} {value}"));
        return Ok(Verdict::changed("added"));
    }
    let Some(value) = &want.value else {
        return Ok(Verdict::unchanged(""));
    };
    let mut was = Vec::new();
    for n in hits {
        let old = value_of(lines, n);
        if old == *value {
            continue;
        }
        if let Some(line) = lines.list.get_mut(n)
            && let Some(at) = fields(line).map(|[_, _, _, v]| v.0)
        {
            line.replace_range(at..at + old.len(), value);
        }
        was.push(old);
    }
    Ok(if was.is_empty() {
        Verdict::unchanged("")
    } else {
        Verdict::changed(format!("was {}; counts for new sessions", was.join(", ")))
    })
}
