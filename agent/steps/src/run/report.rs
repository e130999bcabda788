//! Lines that the helper library leaves for the runner. PURE.

/// What a step told us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// It changed something.
    pub(super) changed: bool,
    /// It set flag `reboot`.
    pub(super) flag_reboot: bool,
    /// It may not go on before a disruption is approved.
    pub(super) wants_disruption: bool,
    /// Its group replaces nodes instead.
    pub(super) rolling: bool,
    /// The node must restart before the bundle goes on.
    pub(super) reboot_now: Option<String>,
    /// For people: what a dry run would do, packages that the image lacks, conditions and events.
    pub(super) notes: Vec<String>,
}

impl Report {
    /// Adds what a later attempt told.
    pub(super) fn add(&mut self, later: Report) {
        self.changed |= later.changed;
        self.flag_reboot |= later.flag_reboot;
        self.wants_disruption |= later.wants_disruption;
        self.rolling |= later.rolling;
        if later.reboot_now.is_some() {
            self.reboot_now = later.reboot_now;
        }
        self.notes.extend(later.notes);
        self.notes.truncate(NOTES);
    }
}

/// Most notes that are kept of one step.
const NOTES: usize = 200;

pub(super) fn parse(text: &str) -> Report {
    let mut r = Report::default();
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "changed" => r.changed = true,
            "flag" => r.flag_reboot |= rest == "reboot",
            "wait-disruption" => r.wants_disruption = true,
            "rolling-update" => r.rolling = true,
            "reboot-now" => r.reboot_now = Some(rest.to_owned()),
            "would" | "needs-image" | "condition" | "event" if r.notes.len() < NOTES => {
                r.notes.push(line.to_owned());
            }
            _ => {}
        }
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_facts_and_odd_ones_are_ignored() {
        let r = parse(
            "changed /etc/x\nflag reboot\nflag other\nneeds-image jq\nreboot-now new kernel\nnonsense\n",
        );
        assert!(r.changed && r.flag_reboot && !r.wants_disruption);
        assert_eq!(r.reboot_now.as_deref(), Some("new kernel"));
        assert_eq!(r.notes, ["needs-image jq"]);
        assert_eq!(parse(""), Report::default());
        assert!(!parse("flag rebooted\n").flag_reboot);
    }
}
