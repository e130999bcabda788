//! Progress of a build: a bar on a terminal, plain lines elsewhere.

/// Receives what a build does. Implementations must not fail.
pub trait Progress: Send + Sync {
    /// A stage begins, e.g. "install 123 packages".
    fn stage(&self, name: &str);
    /// Part of the current stage is done; `total` 0 = unknown.
    fn step(&self, done: u64, total: u64, what: &str);
    /// A warning for the person who runs the build, with its code (`SEC002`).
    fn warning(&self, code: &str, message: &str);
}

/// Drops everything; for tests and library use.
pub struct Silent;

impl Progress for Silent {
    fn stage(&self, _name: &str) {}
    fn step(&self, _done: u64, _total: u64, _what: &str) {}
    fn warning(&self, _code: &str, _message: &str) {}
}
