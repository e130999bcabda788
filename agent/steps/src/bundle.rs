//! Bundles in their three forms (directory, tar, NodeGroupBundle object) → one checked form in memory.

mod read;

use crate::error::{Result, StepsError};
use crate::{library, lint};
use camino::Utf8Path;
use os_proto::bundle::{
    Attributes, MAX_STEP_BYTES, Manifest, Phase, Renderer, SCHEMA, StepEntry, check_name,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

pub use read::{from_dir, from_file, from_tar};

/// All steps of a bundle together, bytes.
pub const MAX_BUNDLE_BYTES: u64 = 16 << 20;

/// Files of a bundle by their path in it, before anything was checked but the paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// `manifest.json`, where there is one.
    pub manifest: Option<Vec<u8>>,
    /// `manifest.json.sig`, where there is one.
    pub signature: Option<Vec<u8>>,
    /// `lib/bb.sh`, where there is one.
    pub lib: Option<Vec<u8>>,
    /// Steps by name.
    pub steps: BTreeMap<String, Vec<u8>>,
}

/// A bundle whose manifest, hashes, names and attributes hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// With its content hash.
    pub manifest: Manifest,
    /// The helper library.
    pub lib: Vec<u8>,
    /// In the manifest's order.
    pub steps: Vec<Vec<u8>>,
    /// Signature over the manifest as delivered, where there is one.
    pub signature: Option<Vec<u8>>,
    /// The manifest as delivered.
    pub signed_text: Vec<u8>,
}

/// SHA-256 as 64 lower-case hex digits.
pub fn sha256(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

impl Files {
    /// Adds a file by its path in a directory or archive; other files are ignored.
    ///
    /// # Errors
    /// An unsafe path, a second file of the same name, a file or bundle that is too large.
    pub fn add(&mut self, path: &str, data: Vec<u8>) -> Result<()> {
        let clean = path.strip_prefix("./").unwrap_or(path);
        let unsafe_path = clean.starts_with('/')
            || clean.split('/').any(|c| c == ".." || c.is_empty())
            || clean.contains(['\0', '\n', '\\']);
        if unsafe_path {
            return Err(StepsError::bundle(format!(
                "{path:?}: unsafe path: expected manifest.json, lib/bb.sh or steps/NAME"
            )));
        }
        let twice = || StepsError::bundle(format!("{path:?} is in the bundle twice"));
        match clean {
            "manifest.json" => {
                if self.manifest.replace(data).is_some() {
                    return Err(twice());
                }
            }
            "manifest.json.sig" => self.signature = Some(data),
            "lib/bb.sh" => {
                if self.lib.replace(data).is_some() {
                    return Err(twice());
                }
            }
            _ => {
                // Without a directory `steps`, the files at the top that end in .sh are the steps.
                let name = match clean.split_once('/') {
                    Some(("steps", name)) => name,
                    None if clean.ends_with(".sh") => clean,
                    _ => return Ok(()),
                };
                check_name(name)?;
                if data.len() as u64 > MAX_STEP_BYTES {
                    return Err(StepsError::bundle(format!(
                        "step {name}: {} bytes: expected at most {MAX_STEP_BYTES}",
                        data.len()
                    )));
                }
                if self.steps.insert(name.to_owned(), data).is_some() {
                    return Err(StepsError::bundle(format!("two steps are named {name:?}")));
                }
            }
        }
        if self.size() > MAX_BUNDLE_BYTES {
            return Err(StepsError::bundle(format!(
                "the bundle is larger than {MAX_BUNDLE_BYTES} bytes"
            )));
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.steps.values().map(|d| d.len() as u64).sum()
    }

    /// Reads a NodeGroupBundle of `bashible.deckhouse.io/v1alpha1`: `data` maps file names to texts. `file` is where the text is
    /// from, for messages.
    ///
    /// # Errors
    /// Not such an object, or what [`Files::add`] finds.
    pub fn from_node_group_bundle(file: &str, text: &[u8]) -> Result<(Files, Manifest)> {
        #[derive(serde::Deserialize)]
        struct Meta {
            #[serde(default)]
            name: String,
            #[serde(default)]
            annotations: BTreeMap<String, String>,
        }
        #[derive(serde::Deserialize)]
        struct Object {
            #[serde(rename = "apiVersion")]
            api_version: String,
            kind: String,
            metadata: Meta,
            data: BTreeMap<String, String>,
        }
        let o: Object = serde_json::from_slice(text).map_err(|e| {
            StepsError::bundle(format!(
                "not a NodeGroupBundle: {}",
                os_proto::json::fault(file, &e)
            ))
        })?;
        if o.api_version != "bashible.deckhouse.io/v1alpha1" || o.kind != "NodeGroupBundle" {
            return Err(StepsError::bundle(format!(
                "{} {}: expected bashible.deckhouse.io/v1alpha1 NodeGroupBundle",
                o.api_version, o.kind
            )));
        }
        let mut files = Files::default();
        for (name, step) in o.data {
            check_name(&name)?;
            files.add(&format!("steps/{name}"), step.into_bytes())?;
        }
        let mut head = empty_manifest("bashible-apiserver");
        head.node_group = o.metadata.name;
        head.external_checksum = o
            .metadata
            .annotations
            .get("bashible.deckhouse.io/configuration-checksum")
            .cloned()
            .unwrap_or_default();
        Ok((files, head))
    }

    /// Checks everything that can be checked without running anything.
    ///
    /// # Errors
    /// The first fault, by step.
    pub fn check(self, head: Option<Manifest>) -> Result<Bundle> {
        let (mut manifest, signed_text) = match &self.manifest {
            Some(text) => (Manifest::parse(text)?, text.clone()),
            None => {
                let mut m = head.unwrap_or_else(|| empty_manifest("directory"));
                for (name, data) in &self.steps {
                    m.steps.push(entry(name, data)?);
                }
                m.mark_pre_approval();
                (m, Vec::new())
            }
        };
        let mut steps = Vec::with_capacity(manifest.steps.len());
        let mut files = self.steps;
        for s in &manifest.steps {
            let data = files.remove(&s.name).ok_or_else(|| {
                StepsError::bundle(format!("step {} is in the manifest and missing", s.name))
            })?;
            let found = sha256(&data);
            if found != s.sha256 || data.len() as u64 != s.bytes {
                return Err(StepsError::bundle(format!(
                    "step {}: expected SHA-256 {} ({} bytes), found {found} ({} bytes)",
                    s.name,
                    s.sha256,
                    s.bytes,
                    data.len()
                )));
            }
            steps.push(data);
        }
        if let Some(extra) = files.keys().next() {
            return Err(StepsError::bundle(format!(
                "step {extra} is not in manifest.json; steps come only with their digest"
            )));
        }
        let lib = self.lib.unwrap_or_else(|| library::TEXT.as_bytes().to_vec());
        let lib_sha256 = sha256(&lib);
        if !manifest.lib_sha256.is_empty() && manifest.lib_sha256 != lib_sha256 {
            return Err(StepsError::bundle(format!(
                "lib/bb.sh: expected SHA-256 {}, found {lib_sha256}",
                manifest.lib_sha256
            )));
        }
        manifest.lib_sha256 = lib_sha256;
        manifest.check()?;
        let hash = sha256(&manifest.canonical());
        if !manifest.content_hash.is_empty() && manifest.content_hash != hash {
            return Err(StepsError::bundle(format!(
                "manifest.json: contentHash {}, but its steps hash to {hash}",
                manifest.content_hash
            )));
        }
        manifest.content_hash = hash;
        let bundle = Bundle {
            manifest,
            lib,
            steps,
            signature: self.signature,
            signed_text,
        };
        bundle.check_text()?;
        Ok(bundle)
    }
}

fn empty_manifest(renderer: &str) -> Manifest {
    Manifest {
        schema: SCHEMA,
        renderer: Renderer {
            name: renderer.to_owned(),
            version: String::new(),
        },
        node_group: String::new(),
        created_at: String::new(),
        content_hash: String::new(),
        inputs_hash: String::new(),
        epoch: String::new(),
        external_checksum: String::new(),
        lib_sha256: String::new(),
        steps: Vec::new(),
    }
}

/// The manifest's entry for a step file.
///
/// # Errors
/// A wrong attribute in its head.
pub fn entry(name: &str, data: &[u8]) -> Result<StepEntry> {
    let text = String::from_utf8_lossy(data);
    Ok(StepEntry {
        name: name.to_owned(),
        source: "system".to_owned(),
        sha256: sha256(data),
        bytes: data.len() as u64,
        attributes: Attributes::from_step(name, &text)?,
    })
}

impl Bundle {
    /// UTF-8, no NUL, and no call of a helper that does not exist.
    fn check_text(&self) -> Result<()> {
        let own = library::defined(&String::from_utf8_lossy(&self.lib));
        let ours = sha256(library::TEXT.as_bytes()) == self.manifest.lib_sha256;
        let mut faults = Vec::new();
        for (entry, data) in self.manifest.steps.iter().zip(&self.steps) {
            let text = match std::str::from_utf8(data) {
                Ok(t) if !t.contains('\0') => t,
                Ok(_) => {
                    faults.push(format!("step {}: holds a zero byte", entry.name));
                    continue;
                }
                Err(e) => {
                    faults.push(format!(
                        "step {}: not UTF-8 at byte {}",
                        entry.name,
                        e.valid_up_to()
                    ));
                    continue;
                }
            };
            let known = |n: &str| if ours { library::knows(n) } else { own.contains(n) };
            for (line, name) in lint::unknown(text, known) {
                faults.push(format!(
                    "step {}, line {line}: calls {name}, which the helper library does not have",
                    entry.name
                ));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(StepsError::bundle(faults.join("; ")))
    }

    /// Steps in the order in which they run: phases one after the other, names within each.
    pub fn order(&self) -> Vec<usize> {
        order(&self.manifest)
    }
}

/// Indices of a manifest's steps in the order in which they run.
pub fn order(m: &Manifest) -> Vec<usize> {
    let mut all: Vec<usize> = (0..m.steps.len()).collect();
    let phase = |i: &usize| m.steps.get(*i).map_or(Phase::Main, |s| s.attributes.phase);
    all.sort_by_key(phase);
    all
}

/// Reads a bundle from a directory, an archive or a NodeGroupBundle file, and checks it.
///
/// # Errors
/// `BundleInvalid`; `InvalidArgument` when it is not there or may not be read.
pub fn load(path: &Utf8Path) -> Result<Bundle> {
    if path.is_dir() {
        from_dir(path)?.check(None)
    } else {
        let data = read::bounded(path)?;
        from_bytes(path.as_str(), &data)
    }
}

/// The same for bytes that were fetched from `file`: JSON, or tar in any of its compressions.
///
/// # Errors
/// `BundleInvalid`.
pub fn from_bytes(file: &str, data: &[u8]) -> Result<Bundle> {
    if data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        let (files, head) = Files::from_node_group_bundle(file, data)?;
        return files.check(Some(head));
    }
    from_tar(data)?.check(None)
}

#[cfg(test)]
mod tests;
