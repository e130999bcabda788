//! PURE: a dotted path in which double or single quotes protect dots (`evictionHard."memory.available"`).

/// Splits a path; both kinds of quotes are taken off.
///
/// # Errors
/// An empty part, a quote that is never closed, text behind a closed quote.
pub(super) fn parse(key: &str) -> Result<Vec<String>, String> {
    let mut parts = Vec::new();
    let mut rest = key;
    loop {
        let (part, after) = match rest.chars().next() {
            Some(q @ ('"' | '\'')) => {
                let inner = rest.get(1..).unwrap_or_default();
                let end = inner
                    .find(q)
                    .ok_or_else(|| format!("the quote {q} in {key:?} is never closed"))?;
                (
                    inner.get(..end).unwrap_or_default(),
                    inner.get(end + 1..).unwrap_or_default(),
                )
            }
            _ => rest.split_at(rest.find('.').unwrap_or(rest.len())),
        };
        if part.is_empty() {
            return Err(format!("{key:?} has an empty part"));
        }
        if part.chars().any(char::is_control) {
            return Err(format!("{key:?} holds a control character"));
        }
        parts.push(part.to_owned());
        if after.is_empty() {
            return Ok(parts);
        }
        rest = after
            .strip_prefix('.')
            .ok_or_else(|| format!("{key:?}: expected a dot behind the closed quote"))?;
    }
}

/// For messages.
pub(super) fn show(path: &[String]) -> String {
    path.iter()
        .map(|p| {
            if p.contains('.') {
                format!("\"{p}\"")
            } else {
                p.clone()
            }
        })
        .collect::<Vec<_>>()
        .join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_both_kinds_protect_dots() {
        let p = |k: &str| parse(k).unwrap().join("|");
        assert_eq!(p("a.b"), "a|b");
        assert_eq!(
            p(r#"plugins."io.containerd.grpc.v1.cri".sandbox_image"#),
            "plugins|io.containerd.grpc.v1.cri|sandbox_image"
        );
        assert_eq!(
            p("evictionHard.'memory.available'"),
            "evictionHard|memory.available"
        );
        for bad in ["", ".a", "a.", "a..b", "a.\"b", "\"a\"b", "''"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
