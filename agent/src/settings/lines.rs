//! PURE: a text as lines that keep their endings, so that what is not touched stays byte for byte.

/// A text split at its line breaks.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    /// Lines with their endings; the last one may lack its own.
    pub(super) list: Vec<String>,
    ending: &'static str,
}

impl Lines {
    pub(super) fn of(text: &str) -> Lines {
        Lines {
            list: text.split_inclusive('\n').map(str::to_owned).collect(),
            ending: if text.contains("\r\n") { "\r\n" } else { "\n" },
        }
    }

    /// Adds a line behind all others.
    pub(super) fn push(&mut self, line: &str) {
        if let Some(last) = self.list.last_mut().filter(|l| !l.ends_with('\n')) {
            last.push_str(self.ending);
        }
        self.list.push(format!("{line}{}", self.ending));
    }

    pub(super) fn text(&self) -> String {
        self.list.concat()
    }
}

/// A line without its ending.
pub(super) fn body(line: &str) -> &str {
    line.trim_end_matches(['\n', '\r'])
}

/// Words of a line, each with its byte position.
pub(super) fn words(line: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let mut start = None;
    for (i, c) in line.char_indices().chain([(line.len(), ' ')]) {
        match (c.is_whitespace(), start) {
            (false, None) => start = Some(i),
            (true, Some(s)) => {
                out.push((s, line.get(s..i).unwrap_or_default()));
                start = None;
            }
            _ => {}
        }
    }
    out
}

/// `text` with single blanks between its words: how the kernel and sysctl(8) compare values.
pub(super) fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
