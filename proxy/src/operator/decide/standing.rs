//! Where one node stands with respect to one wish. The version triggers, the digest proves.

use kube::ResourceExt;

use crate::api::{
    ANN_REINSTALL, AgentReport, Grant, GrantKind, OSInstance, OsInstanceSpec, OsInstanceStatus, Phase,
    Target, counts_as_failure,
};
use crate::operator::check::Wish;
use crate::operator::facts::NodeFacts;

use super::Case;
use super::claims::Claims;
use super::ledger::Ledger;

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No agent reports; the node takes no grant and blocks nobody.
    NoAgent,
    /// Runs the target.
    UpToDate,
    /// Runs the target, and its step runner wants a reboot.
    RebootWanted(String),
    /// Has the wanted version, made from another digest; no work.
    SameVersionOtherDigest,
    /// Runs the wanted digest, whose version is not the wanted one; no work, a human must correct the spec.
    WrongVersion(String),
    /// opstype config: the node runs another version than the spec names.
    VersionDiffers(String),
    /// opstype rollback: the previous system is not the wanted one.
    NoPrevious(String),
    /// The digest is on the denylist.
    Denied,
    /// Needs work and has no order yet.
    Todo,
    /// Was told to stage.
    Staging,
    /// Can be taken down.
    Ready,
    /// Holds a grant.
    InFlight(Grant),
    /// Gave its grant back; the order is still to be withdrawn.
    Releasing,
    /// Written off by a user after its time ran out.
    Lost,
    /// Failed on this target.
    Failed(String),
}

impl Standing {
    /// Whether something could still be done for the wish.
    pub(crate) fn wants_work(&self) -> bool {
        matches!(
            self,
            Standing::Todo
                | Standing::Staging
                | Standing::Ready
                | Standing::InFlight(_)
                | Standing::Releasing
                | Standing::RebootWanted(_)
        )
    }

    /// Whether the node runs what is wished.
    pub(crate) fn is_updated(&self) -> bool {
        matches!(self, Standing::UpToDate | Standing::RebootWanted(_))
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Standing::NoAgent => "NoAgent",
            Standing::UpToDate => "UpToDate",
            Standing::RebootWanted(_) => "RebootWanted",
            Standing::SameVersionOtherDigest => "SameVersionOtherDigest",
            Standing::WrongVersion(_) => "WrongVersion",
            Standing::VersionDiffers(_) => "VersionDiffers",
            Standing::NoPrevious(_) => "NoPreviousVersion",
            Standing::Denied => "Denied",
            Standing::Todo => "Waiting",
            Standing::Staging => "Staging",
            Standing::Ready => "Ready",
            Standing::InFlight(_) => "Updating",
            Standing::Releasing => "Releasing",
            Standing::Lost => "Lost",
            Standing::Failed(_) => "Failed",
        }
    }
}

/// A node under one OS object.
pub(crate) struct Member<'a> {
    /// Node name.
    pub(crate) name: &'a str,
    /// Facts of the Node.
    pub(crate) node: &'a NodeFacts,
    /// Its OSInstance.
    pub(crate) instance: Option<&'a OSInstance>,
    /// Where it stands.
    pub(crate) standing: Standing,
    /// What it would be told to stage, boot or apply.
    pub(crate) target: Option<Target>,
    /// Value of the topology label; empty where there is none.
    pub(crate) group: &'a str,
    /// Still selected (a grant holder may no longer be).
    pub(crate) selected: bool,
}

static NO_SPEC: std::sync::LazyLock<OsInstanceSpec> = std::sync::LazyLock::new(OsInstanceSpec::default);
static NO_STATUS: std::sync::LazyLock<OsInstanceStatus> = std::sync::LazyLock::new(OsInstanceStatus::default);

impl Member<'_> {
    /// Its orders.
    pub(crate) fn spec(&self) -> &OsInstanceSpec {
        self.instance.map_or(&NO_SPEC, |i| &i.spec)
    }

    /// Its report.
    pub(crate) fn report(&self) -> &OsInstanceStatus {
        self.instance
            .and_then(|i| i.status.as_ref())
            .unwrap_or(&NO_STATUS)
    }

    /// Has an agent.
    pub(crate) fn counts(&self) -> bool {
        self.standing != Standing::NoAgent
    }

    /// Not available for whatever reason, grant holders included.
    pub(crate) fn down(&self) -> bool {
        matches!(self.standing, Standing::InFlight(_)) || (self.counts() && self.node.unavailable())
    }
}

/// The nodes of one OS object.
pub(crate) fn members<'a>(
    case: &Case<'a>,
    claims: &Claims<'a>,
    index: usize,
    ledger: &Ledger,
) -> Vec<Member<'a>> {
    let fleet = case.fleet;
    let select = crate::operator::check::select(&case.os.spec).ok();
    let topology = case
        .wish
        .as_ref()
        .ok()
        .and_then(|w| w.group.as_ref())
        .map(|(key, _)| key.as_str());
    let mut members = Vec::new();
    for name in claims.nodes(index) {
        let Some(node) = fleet.nodes.get(name) else {
            continue;
        };
        let instance = fleet.instances.get(name).filter(|i| belongs(i, node));
        let target = case
            .wish
            .as_ref()
            .ok()
            .and_then(|w| target(w, report_of(instance)));
        let standing = standing(case, node, instance, target.as_ref(), ledger, name);
        let group = topology
            .and_then(|key| node.labels.get(key))
            .map_or("", String::as_str);
        let selected = !case.deleting
            && !node.is_control_plane()
            && select.as_ref().is_none_or(|s| s.matches(&node.labels));
        members.push(Member {
            name,
            node,
            instance,
            standing,
            target,
            group,
            selected,
        });
    }
    members
}

/// An OSInstance that was made for another Node of this name says nothing about this one.
pub(crate) fn belongs(instance: &OSInstance, node: &NodeFacts) -> bool {
    instance
        .owner_references()
        .iter()
        .filter(|o| o.kind == "Node")
        .all(|o| o.uid == node.uid)
}

fn report_of(instance: Option<&OSInstance>) -> &OsInstanceStatus {
    instance.and_then(|i| i.status.as_ref()).unwrap_or(&NO_STATUS)
}

/// What a node would be told to stage, boot or apply.
fn target(wish: &Wish, report: &OsInstanceStatus) -> Option<Target> {
    let of = |digest: String, source| Target {
        version: wish.version.clone(),
        digest,
        source,
        kind: wish.kind,
    };
    match wish.kind {
        GrantKind::Upgrade => Some(of(wish.key.clone(), wish.source.clone())),
        GrantKind::Config => Some(of(wish.key.clone(), None)),
        _ => {
            let previous = report.agent.as_ref()?.previous_digest.clone();
            let source = crate::api::Source {
                slot: Some("previous".into()),
                ..Default::default()
            };
            (!previous.is_empty()).then(|| of(previous, Some(source)))
        }
    }
}

fn standing(
    case: &Case<'_>,
    node: &NodeFacts,
    instance: Option<&OSInstance>,
    target: Option<&Target>,
    ledger: &Ledger,
    name: &str,
) -> Standing {
    if let Some(grant) = ledger.of(name) {
        return Standing::InFlight(grant.clone());
    }
    let report = report_of(instance);
    let spec = instance.map_or(&*NO_SPEC, |i| &i.spec);
    if ledger.lost.iter().any(|l| l.node == name) {
        return Standing::Lost;
    }
    let Some(agent) = &report.agent else {
        return Standing::NoAgent;
    };
    if spec.grant.is_some() {
        return Standing::Releasing;
    }
    let Ok(wish) = &case.wish else {
        return Standing::Todo;
    };
    let runs = running_version(agent, node);
    let version_ok =
        wish.version == runs || (!agent.version_id.is_empty() && wish.version == agent.version_id);
    let key = wish.key.as_str();
    let updated = match wish.kind {
        GrantKind::Config => {
            if !wish.version.is_empty() && !version_ok {
                return Standing::VersionDiffers(format!("runs {runs:?}; opstype config changes no version"));
            }
            let applied = report.sysconfigs.as_ref().and_then(|c| c.version.as_deref());
            applied.is_some_and(|v| key.strip_prefix("config:") == Some(v))
        }
        GrantKind::Upgrade if version_ok => {
            let other = agent.knows_digest() && !agent.runs(key);
            let again = case.annotation(ANN_REINSTALL) == Some(case.generation);
            if other && !again {
                return Standing::SameVersionOtherDigest;
            }
            !other
        }
        GrantKind::Upgrade if agent.runs(key) => {
            return Standing::WrongVersion(format!("the image with this checksum calls itself {runs:?}"));
        }
        _ => version_ok,
    };
    if updated {
        return match &report.reboot_required {
            Some(r) if wish.kind != GrantKind::Rollback => Standing::RebootWanted(r.reason.clone()),
            _ => Standing::UpToDate,
        };
    }
    if let Some(why) = failed_on(wish, spec, report, target) {
        return Standing::Failed(why);
    }
    if wish.kind == GrantKind::Rollback {
        let matches = agent.previous_version == wish.version
            || agent.previous_version.rsplit(' ').next() == Some(wish.version.as_str())
            || wish.version.rsplit(' ').next() == Some(agent.previous_version.as_str());
        if target.is_none() || agent.previous_version.is_empty() || !matches {
            return Standing::NoPrevious(format!("the other slot holds {:?}", agent.previous_version));
        }
    }
    if case.old.denylist.iter().any(|d| d.digest == key) && !ledger.forgiven_now(key) {
        return Standing::Denied;
    }
    let Some(target) = target else {
        return Standing::Todo;
    };
    if wish.kind == GrantKind::Config || (report.phase == Phase::Staged && agent.has_staged(&target.digest)) {
        return Standing::Ready;
    }
    let ordered = spec.desired == crate::api::Desired::Stage && spec.target.as_ref() == Some(target);
    if ordered {
        Standing::Staging
    } else {
        Standing::Todo
    }
}

/// The agent knows better than the kubelet, which reports some time after a boot.
fn running_version<'a>(agent: &'a AgentReport, node: &'a NodeFacts) -> &'a str {
    if agent.os_version.is_empty() {
        &node.os_image
    } else {
        &agent.os_version
    }
}

/// Why the wish is not tried again on this node.
pub(crate) fn failed_on(
    wish: &Wish,
    spec: &OsInstanceSpec,
    report: &OsInstanceStatus,
    target: Option<&Target>,
) -> Option<String> {
    let digest = target.map_or(wish.key.as_str(), |t| t.digest.as_str());
    if let Some(f) = spec
        .failed
        .as_ref()
        .filter(|f| f.digest == digest && f.count >= wish.max_attempts)
    {
        return Some(f.reason.clone());
    }
    if spec.denied.iter().any(|d| d == digest) {
        return Some("denied here before".into());
    }
    // Only an answer to the order that stands: after a human lifted a denial the old report says nothing.
    let answered = spec.opid.is_some() && report.observed_op_id == spec.opid && report.phase == Phase::Failed;
    let f = report
        .failure
        .as_ref()
        .filter(|f| answered && f.digest == digest)?;
    counts_as_failure(&f.reason).then(|| f.reason.clone())
}
