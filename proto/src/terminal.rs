//! What every command-line program of the project owes to the terminal that it was started from.

use std::borrow::Cow;

/// `text` with control characters as escapes, but for line ends and tabs: names and versions come from images, recipes and servers,
/// and what they hold must not steer a terminal. The escapes are JSON's, so a JSON document stays one.
pub fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) {
            plain += &format!("\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    plain.into()
}

/// Whether a process with this `/proc/PID/status` ignores SIGHUP, as below `nohup`: then a terminal that goes away is no reason to
/// stop. From the mask of ignored signals (proc(5)); SIGHUP is its lowest bit.
pub fn ignores_hangup(status: &str) -> bool {
    status
        .lines()
        .find_map(|l| l.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_steer_a_terminal() {
        let cases = [
            ("Version 2\n\tof it", "Version 2\n\tof it"),
            ("a\u{1b}[2Jb", "a\\u001b[2Jb"),
            ("a\rb\u{9b}1m", "a\\u000db\\u009b1m"),
        ];
        for (text, want) in cases {
            assert_eq!(plain(text), want);
        }
        let quoted = serde_json::json!("a\u{9b}b").to_string();
        let back: String = serde_json::from_str(&plain(&quoted)).unwrap_or_default();
        assert_eq!(back, "a\u{9b}b");
    }

    #[test]
    fn the_mask_of_ignored_signals() {
        let status = |mask: &str| {
            format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n")
        };
        assert!(ignores_hangup(&status("0000000000000001")));
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }
}
