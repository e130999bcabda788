//! The builder's errors: a code that scripts can match, a message for people, and the exit code.

use std::fmt;

/// Class of a failure; decides the exit code (the numbers are older than this program: KubeOS's builder has them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A bug of ours.
    Bug,
    /// Bad input: recipe, command line, named files.
    Input,
    /// Not enough space.
    Space,
    /// The build itself failed: packages, scriptlets, initramfs.
    Build,
    /// A signature or checksum that is missing or wrong.
    Trust,
    /// A program that we need is not installed.
    Tools,
    /// Another build holds the output directory.
    Locked,
    /// Ended by a signal (its number).
    Signal(u8),
}

impl Kind {
    /// Exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Kind::Bug => 1,
            Kind::Input => 3,
            Kind::Space => 6,
            Kind::Build => 7,
            Kind::Trust => 8,
            Kind::Tools => 10,
            Kind::Locked => 203,
            Kind::Signal(n) => 128 + n,
        }
    }
}

/// A failure of the builder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildError {
    /// Class, and with it the exit code.
    pub kind: Kind,
    /// Stable code such as `RPM001`.
    pub code: &'static str,
    /// What, expected, found, what to do. May have several lines; the first stands alone.
    pub message: String,
}

impl BuildError {
    /// A new error.
    pub fn new(kind: Kind, code: &'static str, message: impl Into<String>) -> Self {
        BuildError {
            kind,
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}] {}", self.code, self.message)
    }
}

impl std::error::Error for BuildError {}

/// Result of a build stage.
pub type Result<T> = std::result::Result<T, BuildError>;
