//! PURE: image indexes and manifests (OCI image specification 1.1, and Docker's schema 2, which has the same shape).

use os_proto::digest::Sha256Digest;
use os_proto::layout::Arch;
use serde::Deserialize;

/// Media types that are asked for.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Most bytes of a manifest.
pub const MAX: u64 = 4 << 20;

/// Something that a manifest points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Its SHA-256.
    pub digest: Sha256Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// What a document leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The manifest for this machine.
    Manifest(Pointer),
    /// The one layer.
    Layer(Pointer),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

impl Descriptor {
    fn pointer(&self) -> Result<Pointer, String> {
        let hex = self.digest.strip_prefix("sha256:").ok_or_else(|| {
            format!(
                "its parts are named by {:?}, expected sha256",
                self.digest.split(':').next().unwrap_or_default()
            )
        })?;
        Ok(Pointer {
            digest: hex.parse().map_err(|e| format!("{e}"))?,
            size: self.size,
        })
    }
}

/// The name that images use for an architecture.
fn name(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Aarch64 => "arm64",
    }
}

/// Where a document leads for a machine of this architecture.
///
/// # Errors
/// Why it leads nowhere.
pub fn next(document: &[u8], arch: Arch) -> Result<Next, String> {
    let d: Document = serde_json::from_slice(document)
        .map_err(|e| format!("is neither an image index nor a manifest ({e})"))?;
    if let Some(list) = d.manifests {
        let fits = |m: &&Descriptor| match &m.platform {
            Some(p) => p.os == "linux" && p.architecture == name(arch),
            None => list.len() == 1,
        };
        let mut fitting = list.iter().filter(fits);
        return match (fitting.next(), fitting.next()) {
            (Some(m), None) => Ok(Next::Manifest(m.pointer()?)),
            (None, _) => Err(format!("has no image for linux/{}", name(arch))),
            (Some(_), Some(_)) => Err(format!("has several images for linux/{}", name(arch))),
        };
    }
    match d.layers.as_deref() {
        Some([layer]) => Ok(Next::Layer(layer.pointer()?)),
        Some(layers) => Err(format!(
            "has {} layers; an operating system image has exactly one (FROM scratch, one COPY)",
            layers.len()
        )),
        None => Err("has neither manifests nor layers".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }

    fn pointer(n: u8, size: u64) -> Pointer {
        Pointer {
            digest: Sha256Digest([n; 32]),
            size,
        }
    }

    #[test]
    fn an_index_leads_to_the_machines_manifest_and_that_to_its_layer() {
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[
            {{"digest":"sha256:{}","size":10,"platform":{{"os":"linux","architecture":"amd64"}}}},
            {{"digest":"sha256:{}","size":11,"platform":{{"os":"linux","architecture":"arm64"}}}},
            {{"digest":"sha256:{}","size":12,"platform":{{"os":"unknown","architecture":"unknown"}}}}]}}"#,
            d(1),
            d(2),
            d(3)
        );
        assert_eq!(
            next(index.as_bytes(), Arch::X86_64),
            Ok(Next::Manifest(pointer(1, 10)))
        );
        assert_eq!(
            next(index.as_bytes(), Arch::Aarch64),
            Ok(Next::Manifest(pointer(2, 11)))
        );
        let manifest = format!(
            r#"{{"config":{{}},"layers":[{{"digest":"sha256:{}","size":77}}]}}"#,
            d(9)
        );
        assert_eq!(
            next(manifest.as_bytes(), Arch::X86_64),
            Ok(Next::Layer(pointer(9, 77)))
        );
    }

    #[test]
    fn what_leads_nowhere_says_why() {
        let layer = format!(r#"{{"digest":"sha256:{}","size":1}}"#, d(1));
        for (doc, why) in [
            ("<html>".to_owned(), "neither"),
            ("{}".into(), "neither manifests nor layers"),
            (format!(r#"{{"layers":[{layer},{layer}]}}"#), "2 layers"),
            (r#"{"layers":[]}"#.into(), "0 layers"),
            (r#"{"manifests":[]}"#.into(), "no image for linux/amd64"),
            (r#"{"layers":[{"digest":"sha512:00","size":1}]}"#.into(), "sha512"),
            (r#"{"layers":[{"digest":"sha256:00","size":1}]}"#.into(), ""),
        ] {
            let e = next(doc.as_bytes(), Arch::X86_64).unwrap_err();
            assert!(e.contains(why), "{doc}: {e}");
        }
    }
}
