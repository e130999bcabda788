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

    /// Name of the class, for programs.
    pub const fn class(self) -> &'static str {
        match self {
            Kind::Bug => "bug",
            Kind::Input => "input",
            Kind::Space => "space",
            Kind::Build | Kind::Said(_) => "build",
            Kind::Trust => "trust",
            Kind::Tools => "tools",
            Kind::Locked => "locked",
            Kind::Signal(_) => "interrupted",
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

/// The document that `--json` prints for a command that failed: the first error, which decides the exit code, and all of
/// them in `errors`. None when another process of ours has printed it.
pub fn document(errors: &[BuildError]) -> Option<serde_json::Value> {
    let object = |e: &BuildError| {
        serde_json::json!({
            "code": e.code, "class": e.kind.class(), "exit_code": e.kind.exit_code(), "message": e.message})
    };
    let first = errors.first().filter(|e| !matches!(e.kind, Kind::Said(_)))?;
    let mut doc = object(first);
    doc["errors"] = errors.iter().map(object).collect();
    Some(doc)
}

/// The system's words, without "(os error N)" and without the act and path that fs-err puts in front.
pub(crate) fn reason(e: &std::io::Error) -> String {
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
    fn programs_get_every_error_and_the_deciding_one_first() {
        let errors = [
            BuildError::new(Kind::Input, "CFG003", "r.toml:1:1: \"x\"\nmore"),
            BuildError::new(Kind::Trust, "SUM001", "y"),
        ];
        let doc = document(&errors).unwrap();
        assert_eq!(
            doc,
            serde_json::json!({
                "code": "CFG003", "class": "input", "exit_code": 3, "message": "r.toml:1:1: \"x\"\nmore",
                "errors": [
                    {"code": "CFG003", "class": "input", "exit_code": 3, "message": "r.toml:1:1: \"x\"\nmore"},
                    {"code": "SUM001", "class": "trust", "exit_code": 8, "message": "y"},
                ]
            })
        );
        assert_eq!(document(&[BuildError::already_said(7)]), None);
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
            Kind::Signal(1),
            Kind::Signal(2),
            Kind::Signal(15),
        ];
        assert_eq!(all.map(Kind::exit_code), [1, 3, 6, 7, 8, 10, 203, 129, 130, 143]);
    }
}
