//! Our helper library for steps, and which names it offers.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// `lib/bb.sh` of every bundle that brings none of its own.
pub const TEXT: &str = include_str!("library/bb.sh");

/// Families of names that the library answers without a function for each.
pub const FAMILIES: [&str; 3] = [
    "bb-waiting-approval-",
    "bb-disruption-approval-",
    "bb-bashible-ready-",
];

/// Functions that a bash text defines at the beginning of a line. PURE.
pub fn defined(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|l| {
            let l = l.trim_start();
            let (l, keyword) = match l.strip_prefix("function ") {
                Some(rest) => (rest.trim_start(), true),
                None => (l, false),
            };
            let end = l.find(|c: char| c.is_whitespace() || c == '(' || c == '{');
            let (name, rest) = l.split_at(end.unwrap_or(l.len()));
            let call = rest.trim_start().starts_with('(') && rest.contains(')');
            (!name.is_empty() && (keyword || call)).then(|| name.to_owned())
        })
        .collect()
}

/// Whether our library answers `name`.
pub fn knows(name: &str) -> bool {
    static NAMES: OnceLock<BTreeSet<String>> = OnceLock::new();
    NAMES.get_or_init(|| defined(TEXT)).contains(name) || FAMILIES.iter().any(|f| name.starts_with(f))
}

#[cfg(test)]
mod tests;
