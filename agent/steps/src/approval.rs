//! Who may do what to this node now, and what to write to its Node object. PURE.
//!
//! Annotations are Deckhouse's (prefix `update.node.deckhouse.io/`).

use crate::settings::{Approval, Disruption, Settings};
use crate::state::{Kind, Wanted};
use std::collections::BTreeMap;

/// Prefix of the protocol's annotations.
pub const PREFIX: &str = "update.node.deckhouse.io/";
/// The checksum of what the node was brought to.
pub const CHECKSUM: &str = "node.deckhouse.io/configuration-checksum";

/// Annotations of the Node.
pub type Annotations = BTreeMap<String, String>;
/// Changes to them; `None` deletes.
pub type Patch = BTreeMap<String, Option<String>>;

/// What was answered to the node's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    /// Main steps may begin.
    pub update: bool,
    /// A disruption may happen.
    pub disruption: bool,
    /// The node's pods moved away.
    pub drained: bool,
    /// The group replaces nodes instead of disrupting them.
    pub rolling: bool,
}

/// Whether something may happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// Yes.
    Go,
    /// Not before this was answered.
    Ask(Wanted),
    /// Not by this runner: it is only reported.
    Report,
}

impl Answers {
    /// What the Node object says.
    pub fn from_annotations(a: &Annotations) -> Answers {
        let has = |k: &str| a.contains_key(&format!("{PREFIX}{k}"));
        Answers {
            update: has("approved"),
            disruption: has("disruption-approved"),
            drained: a
                .get(&format!("{PREFIX}drained"))
                .is_some_and(|v| v == "bashible"),
            rolling: has("rolling-update"),
        }
    }
}

/// Whether main steps may begin.
pub fn may_begin(s: &Settings, kind: Kind, first_run: bool, a: Answers) -> Gate {
    // Verify runs and the first run of a boot bring no new content; a node that is being made has no pods.
    if kind != Kind::Apply || first_run || s.approval == Approval::Auto || a.update {
        return Gate::Go;
    }
    Gate::Ask(Wanted::Update)
}

/// Whether a step may disrupt.
pub fn may_disrupt(s: &Settings, first_run: bool, a: Answers) -> Gate {
    if first_run || s.disruption == Disruption::Auto || a.disruption {
        return Gate::Go;
    }
    Gate::Ask(Wanted::Disruption)
}

/// Whether the machine may be restarted.
pub fn may_reboot(s: &Settings, first_run: bool, a: Answers) -> Gate {
    match s.disruption {
        // A node that is being made reboots when its installer says so.
        _ if first_run => Gate::Report,
        Disruption::None | Disruption::Slots => Gate::Report,
        Disruption::Auto => Gate::Go,
        Disruption::Ask if a.disruption => Gate::Go,
        Disruption::Ask => Gate::Ask(Wanted::Disruption),
        Disruption::Deckhouse if !a.disruption => Gate::Ask(Wanted::Disruption),
        Disruption::Deckhouse if !a.drained => Gate::Ask(Wanted::Drain),
        Disruption::Deckhouse => Gate::Go,
    }
}

/// What must change on the Node so that it asks for `wanted`; empty = it does already.
pub fn request(wanted: Wanted, have: &Annotations) -> Patch {
    let mut p = Patch::new();
    match wanted {
        Wanted::Update => {
            p.insert(format!("{PREFIX}waiting-for-approval"), Some(String::new()));
            p.insert(CHECKSUM.to_owned(), None);
        }
        Wanted::Disruption => {
            p.insert(format!("{PREFIX}disruption-required"), Some(String::new()));
        }
        Wanted::Drain => {
            // The value says who asked; only the one who asked may call it done.
            p.insert(format!("{PREFIX}draining"), Some("bashible".to_owned()));
        }
        Wanted::Reboot => {}
    }
    changes(p, have)
}

/// What must change on the Node once `checksum` is applied; the controller removes the rest.
pub fn applied(checksum: &str, have: &Annotations) -> Patch {
    if checksum.is_empty() {
        return Patch::new();
    }
    changes(
        Patch::from([(CHECKSUM.to_owned(), Some(checksum.to_owned()))]),
        have,
    )
}

/// What a step of a group that replaces its nodes asks for.
pub fn rolling(have: &Annotations) -> Patch {
    changes(
        Patch::from([(format!("{PREFIX}rolling-update"), Some(String::new()))]),
        have,
    )
}

fn changes(p: Patch, have: &Annotations) -> Patch {
    p.into_iter()
        .filter(|(k, v)| match v {
            // A request that exists is not written again, whatever its value.
            Some(v) if v.is_empty() => !have.contains_key(k),
            Some(v) => have.get(k) != Some(v),
            None => have.contains_key(k),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(approval: Approval, disruption: Disruption) -> Settings {
        Settings {
            approval,
            disruption,
            ..Settings::default()
        }
    }

    fn notes(list: &[(&str, &str)]) -> Annotations {
        list.iter()
            .map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn only_new_content_on_a_node_in_service_needs_approval() {
        let s = settings(Approval::Deckhouse, Disruption::Deckhouse);
        let no = Answers::default();
        assert_eq!(may_begin(&s, Kind::Apply, false, no), Gate::Ask(Wanted::Update));
        assert_eq!(may_begin(&s, Kind::Verify, false, no), Gate::Go);
        assert_eq!(may_begin(&s, Kind::Apply, true, no), Gate::Go);
        let yes = Answers::from_annotations(&notes(&[("approved", "")]));
        assert_eq!(may_begin(&s, Kind::Apply, false, yes), Gate::Go);
        let auto = settings(Approval::Auto, Disruption::None);
        assert_eq!(may_begin(&auto, Kind::Apply, false, no), Gate::Go);
    }

    #[test]
    fn a_reboot_in_a_cluster_is_approved_then_drained_and_never_before() {
        let s = settings(Approval::Deckhouse, Disruption::Deckhouse);
        let steps: [(&[(&str, &str)], Gate); 4] = [
            (&[], Gate::Ask(Wanted::Disruption)),
            (&[("disruption-approved", "")], Gate::Ask(Wanted::Drain)),
            (
                &[("disruption-approved", ""), ("drained", "user")],
                Gate::Ask(Wanted::Drain),
            ),
            (&[("disruption-approved", ""), ("drained", "bashible")], Gate::Go),
        ];
        for (have, want) in steps {
            assert_eq!(
                may_reboot(&s, false, Answers::from_annotations(&notes(have))),
                want
            );
        }
        assert_eq!(
            may_reboot(
                &settings(Approval::Auto, Disruption::Slots),
                false,
                Answers::default()
            ),
            Gate::Report
        );
        assert_eq!(
            may_reboot(
                &settings(Approval::Auto, Disruption::Auto),
                true,
                Answers::default()
            ),
            Gate::Report
        );
    }

    #[test]
    fn a_request_that_stands_is_not_written_again() {
        let first = request(
            Wanted::Update,
            &Annotations::from([(CHECKSUM.into(), "old".into())]),
        );
        assert_eq!(first.len(), 2);
        assert_eq!(first[CHECKSUM], None);
        assert!(request(Wanted::Update, &notes(&[("waiting-for-approval", "")])).is_empty());
        assert!(request(Wanted::Drain, &notes(&[("draining", "bashible")])).is_empty());
        assert_eq!(request(Wanted::Drain, &notes(&[("draining", "user")])).len(), 1);
        assert!(applied("x", &Annotations::from([(CHECKSUM.into(), "x".into())])).is_empty());
        assert_eq!(
            applied("y", &Annotations::from([(CHECKSUM.into(), "x".into())])).len(),
            1
        );
    }
}
