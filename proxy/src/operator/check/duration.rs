//! Durations as Kubernetes users write them: 90s, 30m, 1h30m, 2d.

/// Whole seconds of a duration; `None` if it is not one. A unit is required, units go from large to small.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let (mut rest, mut total, mut last) = (text.trim(), 0i64, i64::MAX);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: i64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = match rest.chars().next()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        if unit >= last {
            return None;
        }
        (last, rest) = (unit, &rest[1..]);
        total = total.checked_add(number.checked_mul(unit)?)?;
    }
    // A century is enough for everybody, and keeps sums far from overflow.
    (total <= 100 * 365 * 86_400).then_some(total)
}
