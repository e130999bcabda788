//! "Did you mean": the closest of a list of words.

/// The candidate closest to `word`, if any is close enough to be a likely misspelling.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let limit = (length / 3).clamp(1, 3);
    candidates
        .into_iter()
        // Each letter too many or too few is a change: the table of a very long word is not even made.
        .filter(|c| c.chars().count().abs_diff(length) <= limit)
        .map(|c| (distance(word, c), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// `; did you mean "x"?`, or nothing.
pub fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    closest(word, candidates).map_or_else(String::new, |c| format!("; did you mean {c:?}?"))
}

/// The `n` candidates closest to `word`, the closest first; one of which `word` is the beginning or a part is closer than any
/// misspelling.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>, n: usize) -> Vec<&'a str> {
    let mut all: Vec<(bool, usize, &str)> = candidates
        .into_iter()
        .map(|c| (word.is_empty() || !c.contains(word), distance(word, c), c))
        .collect();
    all.sort_unstable();
    all.into_iter().take(n).map(|(_, _, c)| c).collect()
}

/// Edit distance in which swapping two neighbours counts once.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_misspellings_and_leaves_strangers_alone() {
        let keys = ["version", "name", "arch", "packages", "rootfs"];
        assert_eq!(closest("verison", keys), Some("version"));
        assert_eq!(closest("package", keys), Some("packages"));
        assert_eq!(closest("pakcagse", keys), Some("packages"));
        assert_eq!(closest("colour", keys), None);
        assert_eq!(hint("nmae", keys), "; did you mean \"name\"?");
        assert_eq!(hint("zzz", keys), "");
        assert_eq!(nearest("nam", keys, 2), ["name", "arch"]);
        assert_eq!(nearest("oot", keys, 1), ["rootfs"]);
        assert!(nearest("x", [], 2).is_empty());
    }
}
