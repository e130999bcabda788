//! What the proxy in front does on purpose, and to which requests.

use serde_json::{Value, json};
use std::time::Duration;

/// What happens to a request that a rule matches.
#[derive(Debug, Clone)]
pub enum Action {
    /// The server is not asked; this status object is the answer.
    Answer {
        /// HTTP status.
        code: u16,
        /// `Retry-After` in seconds.
        retry_after: Option<u32>,
        /// The body, a `Status` object or anything else.
        body: Value,
    },
    /// Waits first.
    Delay(Duration),
    /// The connection breaks before the server is asked.
    Cut,
    /// The server is asked, then the connection breaks: the write happened, the answer is lost.
    CutAfter,
    /// Events of this watch arrive so much later.
    Lag(Duration),
    /// Events of this watch are swallowed, but the connection stays.
    Mute,
}

impl Action {
    /// A plain error of the server.
    pub fn error(code: u16) -> Action {
        Action::Answer {
            code,
            retry_after: None,
            body: json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "on purpose", "code": code}),
        }
    }

    /// API priority and fairness has no room.
    pub fn overload(retry_after: u32) -> Action {
        Action::Answer {
            code: 429,
            retry_after: Some(retry_after),
            body: json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests",
                "message": "too many requests, please try again later", "code": 429}),
        }
    }
}

/// Which requests, and what happens to them. Empty fields match all.
#[derive(Debug, Clone)]
pub struct Rule {
    /// get, list, watch, create, update, patch, delete.
    pub verb: &'static str,
    /// `pods`, `pods/eviction`, `nodes`, `os/status`, …
    pub resource: &'static str,
    /// Name of the object.
    pub name: String,
    /// Part of the user's name.
    pub user: &'static str,
    /// What happens.
    pub action: Action,
    /// How many requests it still applies to.
    pub times: u64,
    /// Of these only so many in a thousand, chosen by a hash of the request's number.
    pub per_mille: u64,
    /// Passes so many matching requests before it begins.
    pub skip: u64,
}

impl Rule {
    /// A rule for every request of this kind.
    pub fn on(verb: &'static str, resource: &'static str, action: Action) -> Rule {
        Rule {
            verb,
            resource,
            name: String::new(),
            user: "",
            action,
            times: u64::MAX,
            per_mille: 1000,
            skip: 0,
        }
    }

    /// Only so many times.
    pub fn times(mut self, n: u64) -> Rule {
        self.times = n;
        self
    }

    /// Only for this object.
    pub fn named(mut self, name: &str) -> Rule {
        self.name = name.into();
        self
    }

    /// Only for users whose name contains this.
    pub fn by(mut self, user: &'static str) -> Rule {
        self.user = user;
        self
    }

    /// Only for so many in a thousand.
    pub fn per_mille(mut self, n: u64) -> Rule {
        self.per_mille = n;
        self
    }

    /// Only after so many.
    pub fn after(mut self, n: u64) -> Rule {
        self.skip = n;
        self
    }
}
