//! The crate's one error type; its codes are those of the whole agent.

use os_proto::codes::Code;
use std::fmt;

/// A failure with its code; `message` names the thing, what was expected, what was found and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepsError {
    /// What programs branch on; gives the exit code.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl StepsError {
    /// A new error.
    pub fn new(code: Code, message: impl Into<String>) -> StepsError {
        StepsError {
            code,
            message: message.into(),
        }
    }

    /// A bundle that is not run.
    pub fn bundle(message: impl Into<String>) -> StepsError {
        StepsError::new(Code::BundleInvalid, message)
    }

    /// A file or directory that a person named cannot be read: theirs to mend where it is absent or closed to us. `expected`
    /// says what should be there.
    pub fn named(path: impl fmt::Display, expected: &str, e: &std::io::Error) -> StepsError {
        use std::io::ErrorKind as K;
        match e.kind() {
            K::NotFound | K::NotADirectory => StepsError::new(
                Code::InvalidArgument,
                format!("{path}: no such file or directory: expected {expected}"),
            ),
            K::PermissionDenied | K::IsADirectory | K::InvalidFilename => {
                StepsError::new(Code::InvalidArgument, format!("{path}: {e}: expected {expected}"))
            }
            _ => StepsError::io(path, e),
        }
    }

    /// Something of the operating system failed at `thing`.
    pub fn io(thing: impl fmt::Display, e: &std::io::Error) -> StepsError {
        StepsError::new(Code::Internal, format!("{thing}: {e}"))
    }
}

impl fmt::Display for StepsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for StepsError {}

impl From<os_proto::bundle::BadBundle> for StepsError {
    fn from(e: os_proto::bundle::BadBundle) -> StepsError {
        StepsError::bundle(e.0)
    }
}

/// Result of everything here.
pub type Result<T> = std::result::Result<T, StepsError>;
