//! One table: error code → class → gRPC code → exit code.
//!
//! The code travels as `google.rpc.ErrorInfo.reason` and as `code` in JSON output; programs branch on it, people read the
//! message beside it. Codes are never renamed or reused.

use serde::{Deserialize, Serialize};

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Passing: the agent retries by itself, the caller may repeat.
    Retry,
    /// The caller must change something first.
    Refused,
    /// Data, medium or authenticity.
    Corrupt,
    /// A fault of ours.
    Internal,
}

impl Class {
    /// The class as JSON and `status` write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Retry => "retry",
            Class::Refused => "refused",
            Class::Corrupt => "corrupt",
            Class::Internal => "internal",
        }
    }
}

macro_rules! codes {
    ($( $(#[$doc:meta])* $name:ident => $class:ident, $grpc:ident; )*) => {
        /// Every error code of the agent. The variant's name is what travels in `ErrorInfo.reason`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code { $( $(#[$doc])* $name, )* }

        impl Code {
            /// All codes, in the table's order.
            pub const ALL: &'static [Code] = &[ $( Code::$name, )* ];

            /// The name that travels in `ErrorInfo.reason`.
            pub const fn as_str(self) -> &'static str {
                match self { $( Code::$name => stringify!($name), )* }
            }

            /// The class of this code.
            pub const fn class(self) -> Class {
                match self { $( Code::$name => Class::$class, )* }
            }

            /// The gRPC status code.
            pub const fn grpc(self) -> tonic::Code {
                match self { $( Code::$name => tonic::Code::$grpc, )* }
            }
        }

        impl std::str::FromStr for Code {
            type Err = UnknownCode;
            fn from_str(s: &str) -> Result<Self, UnknownCode> {
                match s { $( stringify!($name) => Ok(Code::$name), )* other => Err(UnknownCode(other.to_owned())) }
            }
        }
    };
}

codes! {
    /// The download did not succeed yet.
    FetchFailed => Retry, Unavailable;
    /// The clock is implausible for what was read.
    ClockSuspect => Retry, Unavailable;
    /// The object changed while it was being downloaded.
    ObjectChanged => Retry, Unavailable;
    /// The durable state could not be written.
    StateWriteFailed => Retry, Unavailable;
    /// The agent cannot be reached on its socket.
    AgentUnavailable => Retry, Unavailable;
    /// This digest failed too often; `forget` allows it again.
    BudgetSpent => Refused, FailedPrecondition;
    /// This digest fell back before; `force` or `forget` allows it again.
    DigestFailedBefore => Refused, FailedPrecondition;
    /// A redirect that policy forbids.
    Redirect => Refused, FailedPrecondition;
    /// Plain http without the flag that permits it.
    HttpNotAllowed => Refused, FailedPrecondition;
    /// An argument of the call is malformed.
    InvalidArgument => Refused, InvalidArgument;
    /// Recognised, but needs a newer agent.
    UnsupportedFormat => Refused, FailedPrecondition;
    /// The image's version is not the wanted one.
    WrongVersion => Refused, FailedPrecondition;
    /// The image is for another machine architecture.
    WrongArch => Refused, FailedPrecondition;
    /// The image is for another product family.
    NotCompatible => Refused, FailedPrecondition;
    /// The image lacks what a slot needs to boot and to be updated again.
    NotBootable => Refused, FailedPrecondition;
    /// The image's epoch is below the node's floor.
    EpochTooLow => Refused, FailedPrecondition;
    /// The image is older and `allow_older` is not set.
    OlderVersion => Refused, FailedPrecondition;
    /// The update's manifest has expired.
    ManifestExpired => Refused, FailedPrecondition;
    /// A slot's role is missing or double, or its PARTUUID exists on another disk too.
    SlotAmbiguous => Refused, FailedPrecondition;
    /// Command line, mount and partition table name different slots.
    SlotContradiction => Refused, FailedPrecondition;
    /// The target is mounted, swapped on, held or opened exclusively.
    SlotBusy => Refused, FailedPrecondition;
    /// The image is larger than the slot.
    SlotTooSmall => Refused, FailedPrecondition;
    /// The target is the running root.
    SlotIsActive => Refused, FailedPrecondition;
    /// The running slot is not the committed one: the other is the only proven one.
    UncommittedBoot => Refused, FailedPrecondition;
    /// The disk below the root is of a kind that cannot be updated.
    DiskUnsupported => Refused, FailedPrecondition;
    /// A slot is armed or on trial.
    TrialRunning => Refused, FailedPrecondition;
    /// The slot does not hold what was asked for.
    NotStaged => Refused, FailedPrecondition;
    /// The node rebooted since the caller looked.
    BootIdChanged => Refused, FailedPrecondition;
    /// The order's time had passed.
    OrderExpired => Refused, FailedPrecondition;
    /// An entry of a configuration cannot be applied; nothing was changed.
    SettingRejected => Refused, FailedPrecondition;
    /// Nothing to roll back, cancel or forget.
    NothingToDo => Refused, FailedPrecondition;
    /// The caller may not do this.
    NotPermitted => Refused, PermissionDenied;
    /// Another operation is running.
    Busy => Refused, Aborted;
    /// The operation was cancelled.
    Cancelled => Refused, Cancelled;
    /// The durable state was written by a newer agent; this one only reads it.
    StateTooNew => Refused, FailedPrecondition;
    /// A step of a bundle failed for good.
    StepFailed => Internal, Internal;
    /// A bundle is damaged, unsafe or calls what does not exist; nothing of it was run.
    BundleInvalid => Corrupt, DataLoss;
    /// The run waits for an approval, a drain or a later moment.
    Waiting => Retry, Unavailable;
    /// Exists in the interface, not built yet.
    Unimplemented => Refused, Unimplemented;
    /// The bytes are not a payload at all.
    NotAPayload => Corrupt, DataLoss;
    /// No trusted signature.
    SignatureMissing => Corrupt, DataLoss;
    /// Signed by a key that the node does not trust.
    KeyUnknown => Corrupt, DataLoss;
    /// A hash differs.
    ChecksumMismatch => Corrupt, DataLoss;
    /// Bytes are missing or too many.
    SizeMismatch => Corrupt, DataLoss;
    /// The compressed stream or the file system is damaged.
    PayloadCorrupt => Corrupt, DataLoss;
    /// The medium reads back differently from what was written.
    MediumCorrupt => Corrupt, DataLoss;
    /// Both environment copies were lost.
    EnvLost => Corrupt, DataLoss;
    /// os-state is not where the layout says.
    StateBroken => Corrupt, DataLoss;
    /// The environment could not be written, or reads back differently.
    EnvWriteFailed => Corrupt, DataLoss;
    /// The boot loader did not count the trial.
    TrialNotStarted => Internal, Internal;
    /// A requested reboot did not happen.
    RebootStuck => Internal, Internal;
    /// A fault of ours or of the operating system.
    Internal => Internal, Internal;
}

/// A string that is none of the codes.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an os-agent error code")]
pub struct UnknownCode(pub String);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Exit codes of the `os-agent` command.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// Failed (internal).
    pub const FAILED: u8 = 1;
    /// Wrong usage.
    pub const USAGE: u8 = 2;
    /// Refused: the caller must change something.
    pub const REFUSED: u8 = 3;
    /// Corrupt or not authentic.
    pub const CORRUPT: u8 = 4;
    /// Temporary: repeat later.
    pub const TEMPORARY: u8 = 5;
}

impl Code {
    /// Exit code of the `os-agent` command for this error.
    pub const fn exit_code(self) -> u8 {
        match self {
            Code::InvalidArgument => exit::USAGE,
            _ => match self.class() {
                Class::Retry => exit::TEMPORARY,
                Class::Refused => exit::REFUSED,
                Class::Corrupt => exit::CORRUPT,
                Class::Internal => exit::FAILED,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_documents_and_scripts_rely_on() {
        let table: String = Code::ALL
            .iter()
            .map(|c| {
                format!(
                    "{:<20} {:<9} {:<19} {}\n",
                    c,
                    c.class().as_str(),
                    format!("{:?}", c.grpc()),
                    c.exit_code()
                )
            })
            .collect();
        insta::assert_snapshot!(table);
    }

    #[test]
    fn names_round_trip() {
        for c in Code::ALL {
            assert_eq!(c.as_str().parse::<Code>().unwrap(), *c);
        }
        assert!("Nonsense".parse::<Code>().is_err());
    }
}
