//! How the real program ended; for the tests that start it.
#![allow(dead_code, unreachable_pub)]

use serde_json::Value;
use std::process::Output;

/// What one run of os-agent left.
pub struct Ran {
    /// Exit status; -1 after a signal.
    pub exit: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(out: Output) -> Ran {
        Ran {
            exit: out.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// The one document on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", self.stdout, self.stderr))
    }

    /// The document of a run that ended well.
    #[track_caller]
    pub fn good(&self) -> Value {
        assert_eq!(self.exit, 0, "{}{}", self.stdout, self.stderr);
        self.json()
    }
}
