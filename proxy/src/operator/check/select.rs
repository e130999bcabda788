//! Which nodes an OS object means. Control-plane nodes are left out by the caller.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};

use crate::api::{LABEL_NODE_SELECTOR, OsSpec};

use super::Problem;

/// A selection of nodes by their labels.
#[derive(Clone, Debug)]
pub enum Select {
    /// `no-label`: those without label node-selector.
    Unlabelled,
    /// `all-label`: all.
    All,
    /// Label node-selector has this value; the empty value is one.
    Pool(String),
    /// A label selector.
    Labels(Selector),
}

impl Select {
    /// Whether a node with these labels is meant.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Select::Unlabelled => !labels.contains_key(LABEL_NODE_SELECTOR),
            Select::All => true,
            Select::Pool(pool) => labels.get(LABEL_NODE_SELECTOR) == Some(pool),
            Select::Labels(selector) => selector.matches(labels),
        }
    }
}

/// The selection of a spec; it stands also when other fields are wrong, so that a typo elsewhere hands no node over.
pub fn select(spec: &OsSpec) -> Result<Select, Problem> {
    if let Some(s) = &spec.selector {
        return labels(s, "selector");
    }
    Ok(match spec.nodeselector.as_deref() {
        None | Some("no-label") => Select::Unlabelled,
        Some("all-label") => Select::All,
        Some(pool) => Select::Pool(pool.to_owned()),
    })
}

/// A label selector; unknown operators are problems.
pub(super) fn labels(selector: &LabelSelector, field: &str) -> Result<Select, Problem> {
    Selector::try_from(selector.clone())
        .map(Select::Labels)
        .map_err(|e| Problem {
            field: field.into(),
            text: format!("{e}; operators are In, NotIn, Exists and DoesNotExist"),
        })
}
