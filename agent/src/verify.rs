//! What makes a payload authentic. [`Authentic`] is made here alone, and `write` takes nothing else.

use crate::error::{AgentError, Result};
use crate::fetch::oci::manifest::{self, Next};
use crate::ports::{Cancel, Report, SlotDevice};
use crate::sys::buf::AlignedBuf;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Arch;
use sha2::{Digest, Sha256};

/// Something whose origin the node's policy accepts.
///
/// ```compile_fail
/// use os_agent::verify::{Authentic, Opaque};
/// // Only this module makes one:
/// let forged = Authentic(Opaque { checksum: os_proto::digest::Sha256Digest([0; 32]) });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authentic<T>(T);

impl<T> Authentic<T> {
    /// What was accepted.
    pub fn get(&self) -> &T {
        &self.0
    }
}

/// A payload without a signature of its own: the checksum that the caller gave is its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opaque {
    checksum: Sha256Digest,
}

impl Opaque {
    /// SHA-256 of the payload file.
    pub fn checksum(&self) -> Sha256Digest {
        self.checksum
    }
}

/// The node's rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Nothing without a trusted signature is installed.
    pub require_signature: bool,
}

/// Accepts a payload by the checksum that the caller gave, where policy permits unsigned ones.
///
/// # Errors
/// `SignatureMissing`.
pub fn opaque(checksum: Sha256Digest, policy: &Policy) -> Result<Authentic<Opaque>> {
    if policy.require_signature {
        return Err(AgentError::new(
            Code::SignatureMissing,
            "this node requires a signature ([trust] require_signature) and a payload named by its checksum carries none; \
             use a signed Slipway update",
        ));
    }
    Ok(Authentic(Opaque { checksum }))
}

/// Accepts the layer of a container image by the checksum of its manifest or index: each document must be what the one before
/// it names, the first what the caller named.
///
/// # Errors
/// `SignatureMissing`, `ChecksumMismatch`, `UnsupportedFormat`.
pub fn layer(
    checksum: Sha256Digest,
    documents: &[Vec<u8>],
    arch: Arch,
    policy: &Policy,
) -> Result<Authentic<Opaque>> {
    let mut wanted = opaque(checksum, policy)?.get().checksum();
    for document in documents {
        let got = Sha256Digest(Sha256::digest(document).into());
        if got != wanted {
            return Err(AgentError::new(
                Code::ChecksumMismatch,
                format!("image manifest: got SHA-256 {got}, wanted {wanted}"),
            ));
        }
        match manifest::next(document, arch)
            .map_err(|e| AgentError::new(Code::UnsupportedFormat, format!("image manifest {e}")))?
        {
            Next::Manifest(p) => wanted = p.digest,
            Next::Layer(p) => return Ok(Authentic(Opaque { checksum: p.digest })),
        }
    }
    Err(AgentError::new(
        Code::UnsupportedFormat,
        "no image manifest leads to a layer",
    ))
}

/// Hashes the first `size` bytes of a device, read from the medium.
///
/// # Errors
/// `Cancelled` and the device's.
pub fn hash_slot(
    device: &mut dyn SlotDevice,
    size: u64,
    cancel: &Cancel,
    report: &dyn Report,
) -> Result<Sha256Digest> {
    report.step("read-back", Some(size));
    device.drop_cache()?;
    let mut buf = AlignedBuf::zeroed(1 << 20);
    let mut sha = Sha256::new();
    let mut at = 0u64;
    while at < size {
        cancel.check()?;
        let len = usize::try_from(size - at).map_or(buf.len(), |l| l.min(buf.len()));
        let part = buf.get_mut(..len).unwrap_or_default();
        device.read_at(at, part)?;
        sha.update(part);
        at += len as u64;
        report.done(at);
    }
    Ok(Sha256Digest(sha.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_suffices_only_where_policy_permits() {
        let sum = Sha256Digest([7; 32]);
        assert_eq!(opaque(sum, &Policy::default()).unwrap().get().checksum(), sum);
        let strict = Policy {
            require_signature: true,
        };
        assert_eq!(opaque(sum, &strict).unwrap_err().code, Code::SignatureMissing);
    }

    #[test]
    fn a_layer_is_as_authentic_as_the_chain_to_it() {
        let sha = |b: &[u8]| Sha256Digest(Sha256::digest(b).into());
        let manifest = format!(
            r#"{{"layers":[{{"digest":"sha256:{}","size":1}}]}}"#,
            Sha256Digest([5; 32])
        )
        .into_bytes();
        let index = format!(
            r#"{{"manifests":[{{"digest":"sha256:{}","size":1}}]}}"#,
            sha(&manifest)
        )
        .into_bytes();
        let p = Policy::default();
        let ok = |pin, docs: &[Vec<u8>]| {
            layer(pin, docs, Arch::X86_64, &p)
                .map(|a| a.get().checksum())
                .map_err(|e| e.code)
        };
        let five = Ok(Sha256Digest([5; 32]));
        assert_eq!(ok(sha(&manifest), std::slice::from_ref(&manifest)), five);
        assert_eq!(ok(sha(&index), &[index.clone(), manifest.clone()]), five);
        assert_eq!(
            ok(sha(&index), std::slice::from_ref(&manifest)),
            Err(Code::ChecksumMismatch)
        );
        assert_eq!(
            ok(sha(&index), &[index.clone(), index.clone()]),
            Err(Code::ChecksumMismatch)
        );
        assert_eq!(ok(sha(&index), &[index]), Err(Code::UnsupportedFormat));
        assert_eq!(ok(sha(b""), &[]), Err(Code::UnsupportedFormat));
        let strict = Policy {
            require_signature: true,
        };
        assert!(layer(sha(&manifest), &[manifest], Arch::X86_64, &strict).is_err());
    }
}
