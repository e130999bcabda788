//! The agent's one error type and the only mapping to `tonic::Status`.

use os_proto::codes::{Class, Code};
use std::collections::HashMap;
use std::fmt;
use tonic_types::{ErrorDetails, StatusExt};

/// A failure with its code; `message` names the thing, what was expected, what was found and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentError {
    /// What programs branch on.
    pub code: Code,
    /// For people. Never holds credentials.
    pub message: String,
}

impl AgentError {
    /// A new error.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        AgentError {
            code,
            message: message.into(),
        }
    }

    /// Class of the code.
    pub fn class(&self) -> Class {
        self.code.class()
    }

    /// The same error with `context: ` before its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for AgentError {}

/// Result of everything in the agent.
pub type Result<T> = std::result::Result<T, AgentError>;

impl From<AgentError> for tonic::Status {
    fn from(e: AgentError) -> tonic::Status {
        let details = ErrorDetails::with_error_info(
            e.code.as_str(),
            os_proto::ERROR_DOMAIN,
            HashMap::from([("class".to_owned(), e.class().as_str().to_owned())]),
        );
        tonic::Status::with_error_details(e.code.grpc(), e.message, details)
    }
}

impl From<tonic::Status> for AgentError {
    fn from(s: tonic::Status) -> AgentError {
        let code = s
            .get_details_error_info()
            .filter(|i| i.domain == os_proto::ERROR_DOMAIN)
            .and_then(|i| i.reason.parse().ok())
            .unwrap_or(match s.code() {
                tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => Code::AgentUnavailable,
                tonic::Code::Unimplemented => Code::Unimplemented,
                tonic::Code::PermissionDenied => Code::NotPermitted,
                _ => Code::Internal,
            });
        AgentError::new(code, s.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_survives_the_wire() {
        for c in Code::ALL {
            let e = AgentError::new(*c, "text with ünïcode");
            let s: tonic::Status = e.clone().into();
            assert_eq!(s.code(), c.grpc());
            assert_eq!(AgentError::from(s), e);
        }
    }
}
