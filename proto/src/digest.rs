//! SHA-256 digests as users write them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A SHA-256 digest; written as 64 lower-case hex digits, read with or without `sha256:` and in either case (KubeOS users
/// have both).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Digest(pub [u8; 32]);

/// Why a string is not a digest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not a SHA-256: expected 64 hex digits, optionally after \"sha256:\"")]
pub struct BadDigest {
    /// What was given.
    pub found: String,
}

impl FromStr for Sha256Digest {
    type Err = BadDigest;
    fn from_str(s: &str) -> Result<Self, BadDigest> {
        let t = s.trim();
        let bare = match t.get(..7) {
            Some(p) if p.eq_ignore_ascii_case("sha256:") => &t[7..],
            _ => t,
        };
        let mut out = [0u8; 32];
        hex::decode_to_slice(bare, &mut out).map_err(|_| BadDigest { found: s.to_owned() })?;
        Ok(Sha256Digest(out))
    }
}

impl TryFrom<String> for Sha256Digest {
    type Error = BadDigest;
    fn try_from(s: String) -> Result<Self, BadDigest> {
        s.parse()
    }
}

impl From<Sha256Digest> for String {
    fn from(d: Sha256Digest) -> String {
        d.to_string()
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_users_have_and_prints_one_form() {
        let want = "ab".repeat(32);
        for given in [
            want.clone(),
            want.to_uppercase(),
            format!("sha256:{want}"),
            format!("SHA256:{want}"),
            format!(" {want}\n"),
        ] {
            assert_eq!(
                given.parse::<Sha256Digest>().unwrap().to_string(),
                want,
                "{given}"
            );
        }
        for bad in [
            "",
            "sha256:",
            "ab",
            &"zz".repeat(32),
            &"ab".repeat(33),
            "sha512:ab",
            "ééééééé",
        ] {
            assert!(bad.parse::<Sha256Digest>().is_err(), "{bad}");
        }
    }
}
