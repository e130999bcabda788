//! The server's audit log: who asked for what, how it was answered, with the bodies of writes to our own objects.

use anyhow::{Context, Result};
use camino::Utf8Path;
use serde_json::Value;
use std::collections::BTreeMap;

/// One finished request.
#[derive(Debug, Clone)]
pub struct Call {
    /// get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// Plural with subresource: `pods/eviction`; empty for paths that are no resource.
    pub resource: String,
    /// Namespace, empty for cluster-wide objects.
    pub namespace: String,
    /// Name; of an eviction the pod's.
    pub name: String,
    /// Who.
    pub user: String,
    /// What program.
    pub agent: String,
    /// HTTP status.
    pub code: u16,
    /// Time of the answer, RFC 3339 with microseconds: sorts as text.
    pub at: String,
    /// The query, which holds `dryRun` and `fieldManager`.
    pub uri: String,
    /// Body of the request where the policy keeps it.
    pub request: Value,
    /// Body of the answer where the policy keeps it.
    pub response: Value,
}

impl Call {
    /// Changes something when it succeeds.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    /// Asked for with `dryRun`.
    pub fn is_dry(&self) -> bool {
        self.uri.contains("dryRun=All") || self.request.pointer("/deleteOptions/dryRun").is_some()
    }

    /// Changed what is stored: a dry run is answered with what would be there, and leaves nothing.
    pub fn changed(&self) -> bool {
        self.ok() && self.is_write() && !self.is_dry()
    }

    /// A write whose connection broke before the answer: it may have been stored all the same (the server logs 504, or nothing).
    pub fn unsure(&self) -> bool {
        matches!(self.code, 0 | 504) && self.is_write() && !self.is_dry()
    }

    /// Succeeded.
    pub fn ok(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// All requests in the order of their answers.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    /// The requests.
    pub calls: Vec<Call>,
}

fn text(v: &Value, path: &str) -> String {
    v.pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// One line of the log.
fn parse(line: &str) -> Result<Call> {
    let mut v: Value = serde_json::from_str(line).with_context(|| format!("audit log: {line:.200}"))?;
    let mut resource = text(&v, "/objectRef/resource");
    let sub = text(&v, "/objectRef/subresource");
    if !sub.is_empty() {
        resource = format!("{resource}/{sub}");
    }
    Ok(Call {
        verb: text(&v, "/verb"),
        resource,
        namespace: text(&v, "/objectRef/namespace"),
        name: text(&v, "/objectRef/name"),
        user: text(&v, "/user/username"),
        agent: text(&v, "/userAgent"),
        code: v
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .and_then(|c| u16::try_from(c).ok())
            .unwrap_or(0),
        at: text(&v, "/stageTimestamp"),
        uri: text(&v, "/requestURI"),
        request: v
            .pointer_mut("/requestObject")
            .map(Value::take)
            .unwrap_or_default(),
        response: v
            .pointer_mut("/responseObject")
            .map(Value::take)
            .unwrap_or_default(),
    })
}

impl Audit {
    /// Reads the log; a last line that is still being written is left out.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn read(path: &Utf8Path) -> Result<Audit> {
        let all = fs_err::read_to_string(path)?;
        let whole = &all[..all.rfind('\n').map_or(0, |i| i + 1)];
        let mut calls = whole.lines().map(parse).collect::<Result<Vec<_>>>()?;
        calls.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(Audit { calls })
    }

    /// Those of one user.
    pub fn of(&self, user: &str) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |c| c.user == user)
    }

    /// Counts by `verb resource`.
    pub fn counts<'a>(calls: impl Iterator<Item = &'a Call>) -> BTreeMap<String, usize> {
        let mut map = BTreeMap::new();
        for c in calls {
            *map.entry(format!("{} {}", c.verb, c.resource)).or_default() += 1;
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_log() {
        let c = parse(
            r#"{"kind":"Event","level":"Request","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/d/pods/p/eviction?dryRun=All","verb":"create","user":{"username":"u","groups":[]},"userAgent":"os-proxy/1","objectRef":{"resource":"pods","namespace":"d","name":"p","subresource":"eviction"},"responseStatus":{"code":429},"requestObject":{"kind":"Eviction"},"stageTimestamp":"2026-01-01T00:00:00.000001Z"}"#,
        )
        .unwrap();
        assert_eq!(
            (c.verb.as_str(), c.resource.as_str(), c.code),
            ("create", "pods/eviction", 429)
        );
        assert!(c.is_dry() && c.is_write() && !c.ok() && !c.changed());
        assert_eq!(c.request["kind"], "Eviction");
        assert_eq!(Audit::counts([c].iter())["create pods/eviction"], 1);
    }
}
