//! Which OS object has the say over which node. One owner per node: a grant holder's OS until the grant is given back, else
//! the oldest OS object that selects the node (then the smaller UID). A typo in another field hands no node over.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::OS;
use crate::operator::check::{Select, select};
use crate::operator::facts::Fleet;

/// Owners of nodes.
pub(crate) struct Claims<'a> {
    fleet: &'a Fleet,
    /// Node → index of the OS that owns it.
    owner: BTreeMap<&'a str, usize>,
    /// Per OS: nodes it selects but does not own, with the owner's index.
    lost: Vec<Vec<(&'a str, usize)>>,
}

impl<'a> Claims<'a> {
    /// Index of the owner of a node.
    pub(crate) fn owner(&self, node: &str) -> Option<usize> {
        self.owner.get(node).copied()
    }

    /// Nodes of one OS, in order of names.
    pub(crate) fn nodes(&self, index: usize) -> impl Iterator<Item = &'a str> + '_ {
        self.owner
            .iter()
            .filter(move |(_, o)| **o == index)
            .map(|(n, _)| *n)
    }

    /// Nodes that this OS selects and another one owns.
    pub(crate) fn conflicts(&self, index: usize) -> Vec<(String, String)> {
        let name = |o: &OS| format!("{}/{}", o.namespace().unwrap_or_default(), o.name_any());
        self.lost[index]
            .iter()
            .map(|(n, o)| ((*n).to_owned(), name(&self.fleet.oses[*o])))
            .collect()
    }

    /// Whether any OSInstance still follows orders of this OS.
    pub(crate) fn held_by(&self, uid: &str) -> bool {
        self.fleet
            .instances
            .values()
            .any(|i| i.spec.osuid.as_deref() == Some(uid))
    }
}

/// Works out the owners.
pub(crate) fn claims(fleet: &Fleet) -> Claims<'_> {
    let selects: Vec<Option<Select>> = fleet
        .oses
        .iter()
        .map(|os| {
            if os.metadata.deletion_timestamp.is_some() {
                None
            } else {
                select(&os.spec).ok()
            }
        })
        .collect();
    let age = |i: &usize| {
        let os = &fleet.oses[*i];
        (
            os.metadata.creation_timestamp.as_ref().map(|t| t.0),
            os.uid().unwrap_or_default(),
        )
    };
    let mut order: Vec<usize> = (0..fleet.oses.len()).collect();
    order.sort_by_key(age);
    let mut holders: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, os) in fleet.oses.iter().enumerate() {
        let status = os.status.as_ref();
        let granted = status
            .into_iter()
            .flat_map(|s| &s.grants)
            .map(|g| (&g.node, &g.node_uid));
        let lost = status
            .into_iter()
            .flat_map(|s| &s.lost)
            .map(|l| (&l.node, &l.node_uid));
        for (node, uid) in granted.chain(lost) {
            if fleet.nodes.get(node).is_some_and(|n| n.uid == *uid) {
                holders.entry(node).or_insert(i);
            }
        }
    }
    let mut owner = BTreeMap::new();
    let mut lost = vec![Vec::new(); fleet.oses.len()];
    for (name, node) in &fleet.nodes {
        let wanting: Vec<usize> = if node.is_control_plane() {
            Vec::new()
        } else {
            order
                .iter()
                .copied()
                .filter(|i| selects[*i].as_ref().is_some_and(|s| s.matches(&node.labels)))
                .collect()
        };
        let Some(winner) = holders.get(name.as_str()).copied().or(wanting.first().copied()) else {
            continue;
        };
        owner.insert(name.as_str(), winner);
        for loser in wanting.into_iter().filter(|i| *i != winner) {
            lost[loser].push((name.as_str(), winner));
        }
    }
    Claims { fleet, owner, lost }
}
