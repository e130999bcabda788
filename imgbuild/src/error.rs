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
    /// Another process has printed the error and ended with this code.
    Said(u8),
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
            Kind::Said(code) => code,
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

    /// An error that another process of ours has printed.
    pub fn already_said(code: u8) -> Self {
        BuildError::new(Kind::Said(code), "SAID", String::new())
    }

    /// An input or output error; `doing` names the act and the file, as in `writing x.img`.
    pub fn io(doing: impl fmt::Display, e: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let full = matches!(
            e.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        );
        let (kind, code) = if full {
            (Kind::Space, "IO028")
        } else {
            (Kind::Build, "IO001")
        };
        BuildError::new(kind, code, format!("{doing}: {}", reason(e)))
    }
}

/// The system's words, without "(os error N)" and without the act and path that fs-err puts in front.
fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    let own = match e.raw_os_error() {
        Some(_) => text.as_str(),
        None => text.rsplit_once("`: ").map_or(text.as_str(), |(_, tail)| tail),
    };
    own.split(" (os error").next().unwrap_or(own).to_owned()
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}] {}", self.code, self.message)
    }
}

impl std::error::Error for BuildError {}

/// Result of a build stage.
pub type Result<T> = std::result::Result<T, BuildError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_a_class_of_its_own() {
        let e = BuildError::io("writing system.img", &std::io::Error::from_raw_os_error(28));
        assert_eq!(
            e.to_string(),
            "error[IO028] writing system.img: No space left on device"
        );
        assert_eq!(e.kind.exit_code(), 6);
        let e = BuildError::io("reading x", &std::io::Error::from_raw_os_error(13));
        assert_eq!((e.kind, e.code), (Kind::Build, "IO001"));
        let e = BuildError::io("reading /none", &fs_err::read("/none").unwrap_err());
        assert_eq!(e.message, "reading /none: No such file or directory");
    }

    #[test]
    fn exit_codes_are_for_life() {
        let all = [
            Kind::Bug,
            Kind::Input,
            Kind::Space,
            Kind::Build,
            Kind::Trust,
            Kind::Tools,
            Kind::Locked,
            Kind::Signal(2),
            Kind::Signal(15),
        ];
        assert_eq!(all.map(Kind::exit_code), [1, 3, 6, 7, 8, 10, 203, 130, 143]);
    }
}
