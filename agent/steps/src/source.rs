//! Where bundles come from: a directory, an archive, http(s) with a pinned digest, the cluster's bashible API, the store.

use crate::bundle::{self, Bundle, MAX_BUNDLE_BYTES};
use crate::dirs::Dirs;
use crate::error::{Result, StepsError};
use crate::kube::Cluster;
use crate::settings::Settings;
use crate::state::State;
use crate::store;
use crate::sys::atomic;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use std::sync::Arc;

/// Downloads; the agent's own fetcher implements it.
pub trait Fetch: Send + Sync {
    /// The whole body of `url`, at most `max_bytes`.
    ///
    /// # Errors
    /// `FetchFailed`, `HttpNotAllowed` and the like.
    fn get(&self, url: &str, allow_http: bool, max_bytes: u64) -> Result<Vec<u8>>;
}

/// Checks a signature over a manifest's bytes.
pub type Verify = Arc<dyn Fn(&[u8], &[u8]) -> std::result::Result<(), String> + Send + Sync>;

/// Where a bundle comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// What was applied last stays applied.
    Applied,
    /// Directory, archive or NodeGroupBundle file.
    Path(Utf8PathBuf),
    /// An archive at http(s).
    Url {
        /// Where.
        url: String,
        /// SHA-256 of the archive.
        sha256: String,
    },
    /// The bashible API, for this group of nodes.
    Cluster(String),
    /// A stored bundle by its content hash or the beginning of it.
    Stored(String),
}

impl Source {
    /// What a person wrote: a path, a URL, a stored hash; empty = what the settings say.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL without a digest.
    pub fn parse(text: &str, s: &Settings) -> Result<Source> {
        let text = if text.is_empty() { s.source.as_str() } else { text };
        if text.is_empty() {
            return Ok(if s.node_group.is_empty() {
                Source::Applied
            } else {
                Source::Cluster(s.node_group.clone())
            });
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            let sha256: os_proto::digest::Sha256Digest = s.sha256.parse().map_err(|_| {
                StepsError::new(
                    Code::InvalidArgument,
                    format!("{text}: an archive from the network needs its SHA-256 (steps.sha256, --sha256)"),
                )
            })?;
            return Ok(Source::Url {
                url: text.to_owned(),
                sha256: sha256.to_string(),
            });
        }
        // A whole hash is one; what only begins like one may also be a file.
        if store::is_hash(text) && (text.len() == 64 || !Utf8Path::new(text).exists()) {
            return Ok(Source::Stored(text.to_lowercase()));
        }
        Ok(Source::Path(text.into()))
    }
}

/// Loads bundles and decides whether they may run here.
#[derive(Clone)]
pub struct Loader {
    /// Where.
    pub dirs: Dirs,
    /// How.
    pub settings: Settings,
    /// For http(s).
    pub fetch: Option<Arc<dyn Fetch>>,
    /// For the bashible API.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// For signatures.
    pub verify: Option<Verify>,
}

impl Loader {
    /// Loads; `None` = there is none (nothing configured, nothing applied yet).
    ///
    /// # Errors
    /// `BundleInvalid`, `FetchFailed`, `SignatureMissing` and the like.
    pub fn load(&self, source: &Source) -> Result<Option<Bundle>> {
        match source {
            Source::Applied => self.last_good(),
            Source::Stored(text) => self.stored(&store::resolve(&self.dirs, text)?).map(Some),
            Source::Path(_) | Source::Url { .. } | Source::Cluster(_) => match self.import(source)? {
                Some(b) => Ok(Some(b)),
                None => self.last_good(),
            },
        }
    }

    /// From outside; `None` = the cluster says that its last answer still holds, or the source is the store itself.
    fn import(&self, source: &Source) -> Result<Option<Bundle>> {
        let b = match source {
            Source::Applied | Source::Stored(_) => return Ok(None),
            Source::Path(p) => bundle::load(p)?,
            Source::Url { url, sha256 } => self.archive(url, sha256)?,
            Source::Cluster(group) => {
                let c = self.cluster.as_ref().ok_or_else(|| {
                    StepsError::new(
                        Code::InvalidArgument,
                        "no cluster is known: steps.node_group and steps.api_endpoints",
                    )
                })?;
                match c.bundle(group)? {
                    Some(text) => bundle::from_bytes(&format!("nodegroupbundles/{group}"), &text)?,
                    None => return Ok(None),
                }
            }
        };
        self.trust(&b, source)?;
        Ok(Some(b))
    }

    /// A stored bundle; one that was damaged is taken from the configured source where that still gives the same content.
    fn stored(&self, hash: &str) -> Result<Bundle> {
        let damaged = match store::load(&self.dirs, hash) {
            Ok(b) => return Ok(b),
            Err(e) => e,
        };
        if let Some(c) = &self.cluster {
            c.forget();
        }
        match Source::parse("", &self.settings).and_then(|s| self.import(&s)) {
            Ok(Some(b)) if b.manifest.content_hash == hash => Ok(b),
            Ok(_) => Err(damaged),
            Err(e) => Err(StepsError::new(
                damaged.code,
                format!(
                    "{}; the configured source does not help: {}",
                    damaged.message, e.message
                ),
            )),
        }
    }

    /// The bundle that was applied or begun last: no network is needed to keep a node as it is.
    fn last_good(&self) -> Result<Option<Bundle>> {
        let state = State::load(&self.dirs.steps)?;
        let applied = state.applied.as_ref();
        let hash = if state.bundle.is_empty() {
            applied.map(|a| a.content_hash.clone())
        } else {
            Some(state.bundle.clone())
        };
        let Some(hash) = hash else { return Ok(None) };
        let mut b = self.stored(&hash).map_err(|e| match e.code {
            // Nobody named it: that it is gone is damage too.
            Code::InvalidArgument => StepsError::bundle(e.message),
            _ => e,
        })?;
        if let Some(run) = state.run.filter(|r| r.content_hash == hash) {
            b.manifest.external_checksum = run.external_checksum;
        }
        Ok(Some(b))
    }

    /// An archive by its digest: once it is in the store, the network is not asked again.
    fn archive(&self, url: &str, sha256: &str) -> Result<Bundle> {
        let known = self.dirs.steps.join("archives").join(sha256);
        if let Ok(hash) = std::fs::read_to_string(&known)
            && let Ok(b) = store::load(&self.dirs, hash.trim())
        {
            return Ok(b);
        }
        let fetch = self
            .fetch
            .as_ref()
            .ok_or_else(|| StepsError::new(Code::Unimplemented, "nothing here can download"))?;
        let data = fetch.get(url, self.settings.allow_http, MAX_BUNDLE_BYTES)?;
        let found = bundle::sha256(&data);
        if found != sha256 {
            return Err(StepsError::new(
                Code::ChecksumMismatch,
                format!("{url}: expected SHA-256 {sha256}, found {found}; nothing of it was used"),
            ));
        }
        let b = bundle::from_bytes("the archive", &data)?;
        // Only a bundle that was checked to the end is remembered.
        if store::take(&self.dirs, &b).is_ok() {
            remember(&known, &b.manifest.content_hash)?;
        }
        Ok(b)
    }

    fn trust(&self, b: &Bundle, source: &Source) -> Result<()> {
        if !self.settings.require_signature {
            return Ok(());
        }
        if matches!(source, Source::Cluster(_)) && self.settings.trust_cluster {
            return Ok(());
        }
        let Some(signature) = &b.signature else {
            return Err(StepsError::new(
                Code::SignatureMissing,
                format!(
                    "bundle {}: expected manifest.json.sig, found none; this node requires signatures \
                     (steps.trust_cluster = true lifts that for the cluster's bundles alone)",
                    crate::plan::short(&b.manifest.content_hash)
                ),
            ));
        };
        let verify = self.verify.as_ref().ok_or_else(|| {
            StepsError::new(Code::KeyUnknown, "the node requires signatures and trusts no key")
        })?;
        verify(&b.signed_text, signature)
            .map_err(|e| StepsError::new(Code::KeyUnknown, format!("manifest.json.sig: {e}")))
    }
}

fn remember(path: &Utf8Path, hash: &str) -> Result<()> {
    if let Some(dir) = path.parent() {
        atomic::private_dir(dir)?;
    }
    atomic::replace(path, hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Place, tar};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Served(Vec<u8>, AtomicU32);

    impl Fetch for Served {
        fn get(&self, _: &str, _: bool, _: u64) -> Result<Vec<u8>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Ok(self.0.clone())
        }
    }

    fn loader(p: &Place, s: Settings, fetch: Option<Arc<dyn Fetch>>) -> Loader {
        Loader {
            dirs: p.dirs.clone(),
            settings: s,
            fetch,
            cluster: None,
            verify: None,
        }
    }

    #[test]
    fn what_people_write() {
        let s = Settings::default();
        assert_eq!(Source::parse("", &s).unwrap(), Source::Applied);
        assert_eq!(Source::parse("./x", &s).unwrap(), Source::Path("./x".into()));
        let hash = "A".repeat(64);
        assert_eq!(
            Source::parse("0123456789AB", &s).unwrap(),
            Source::Stored("0123456789ab".into())
        );
        assert_eq!(
            Source::parse("0123456789a", &s).unwrap(),
            Source::Path("0123456789a".into())
        );
        assert_eq!(Source::parse(&hash, &s).unwrap(), Source::Stored("a".repeat(64)));
        assert_eq!(
            Source::parse("https://x/y", &s).unwrap_err().code,
            Code::InvalidArgument
        );
        let s = Settings {
            node_group: "worker".into(),
            ..s
        };
        assert_eq!(Source::parse("", &s).unwrap(), Source::Cluster("worker".into()));
    }

    /// Fault 17: what is in the store needs no network.
    #[test]
    fn fault_17_a_known_archive_is_loaded_without_the_network() {
        let p = Place::new();
        let data = tar(&[("steps/000_a.sh", b":\n")]);
        let sum = bundle::sha256(&data);
        let served = Arc::new(Served(data, AtomicU32::new(0)));
        let l = loader(&p, Settings::default(), Some(served.clone()));
        let source = Source::Url {
            url: "https://x/b.tar".into(),
            sha256: sum,
        };
        let a = l.load(&source).unwrap().unwrap();
        let b = loader(&p, Settings::default(), None)
            .load(&source)
            .unwrap()
            .unwrap();
        assert_eq!(a.manifest.content_hash, b.manifest.content_hash);
        assert_eq!(served.1.load(Ordering::SeqCst), 1);
    }

    /// What the store lost comes back from where it came from, as long as that gives the same content; else the error.
    #[test]
    fn a_damaged_bundle_is_taken_from_its_source_again() {
        let p = Place::new();
        let dir = p.root.join("b");
        std::fs::create_dir_all(dir.join("steps")).unwrap();
        std::fs::write(dir.join("steps/000_a.sh"), ":\n").unwrap();
        let b = bundle::load(&dir).unwrap();
        let hash = b.manifest.content_hash.clone();
        store::take(&p.dirs, &b).unwrap();
        State {
            bundle: hash.clone(),
            ..State::default()
        }
        .save(&p.dirs.steps)
        .unwrap();
        let step = store::dir(&p.dirs, &hash).join("steps/000_a.sh");
        let with = Settings {
            source: dir.to_string(),
            ..Settings::default()
        };
        for gone in [false, true] {
            if gone {
                std::fs::remove_dir_all(store::dir(&p.dirs, &hash)).unwrap();
            } else {
                std::fs::write(&step, "false\n").unwrap();
            }
            let e = loader(&p, Settings::default(), None)
                .load(&Source::Applied)
                .unwrap_err();
            assert_eq!(e.code, Code::BundleInvalid, "{e}");
            let l = loader(&p, with.clone(), None);
            assert_eq!(l.load(&Source::Applied).unwrap().unwrap().steps, b.steps);
            if !gone {
                assert_eq!(
                    l.load(&Source::Stored(hash[..12].to_owned()))
                        .unwrap()
                        .unwrap()
                        .steps,
                    b.steps
                );
            }
        }
        // The source has other content by now.
        std::fs::write(dir.join("steps/000_a.sh"), "true\n").unwrap();
        assert!(loader(&p, with, None).load(&Source::Applied).is_err());
        let away = Settings {
            source: p.root.join("away").into_string(),
            ..Settings::default()
        };
        let e = loader(&p, away, None).load(&Source::Applied).unwrap_err();
        assert!(e.message.contains("the configured source does not help"), "{e}");
        assert!(e.message.contains("/away: no such file"), "{e}");
    }

    /// An archive whose stored bundle was damaged is fetched again, and the store is whole afterwards.
    #[test]
    fn a_damaged_archive_is_fetched_again() {
        let p = Place::new();
        let data = tar(&[("steps/000_a.sh", b":\n")]);
        let source = Source::Url {
            url: "https://x/b.tar".into(),
            sha256: bundle::sha256(&data),
        };
        let served = Arc::new(Served(data, AtomicU32::new(0)));
        let l = loader(&p, Settings::default(), Some(served.clone()));
        let hash = l.load(&source).unwrap().unwrap().manifest.content_hash;
        std::fs::write(store::dir(&p.dirs, &hash).join("steps/000_a.sh"), "false\n").unwrap();
        l.load(&source).unwrap().unwrap();
        assert_eq!(served.1.load(Ordering::SeqCst), 2);
        store::load(&p.dirs, &hash).unwrap();
    }

    #[test]
    fn another_archive_than_the_pinned_one_is_refused() {
        let p = Place::new();
        let served = Arc::new(Served(tar(&[("steps/000_a.sh", b":\n")]), AtomicU32::new(0)));
        let l = loader(&p, Settings::default(), Some(served));
        let source = Source::Url {
            url: "https://x/b.tar".into(),
            sha256: "0".repeat(64),
        };
        let e = l.load(&source).unwrap_err();
        assert_eq!(e.code, Code::ChecksumMismatch);
        assert!(!p.dirs.steps.join("archives").exists());
    }

    #[test]
    fn where_signatures_are_required_unsigned_bundles_are_refused_from_every_source() {
        let p = Place::new();
        let dir = p.root.join("b");
        std::fs::create_dir_all(dir.join("steps")).unwrap();
        std::fs::write(dir.join("steps/000_a.sh"), ":\n").unwrap();
        let s = Settings {
            require_signature: true,
            ..Settings::default()
        };
        let e = loader(&p, s.clone(), None)
            .load(&Source::Path(dir.clone()))
            .unwrap_err();
        assert_eq!(e.code, Code::SignatureMissing);
        std::fs::write(dir.join("manifest.json.sig"), "sig").unwrap();
        let e = loader(&p, s.clone(), None)
            .load(&Source::Path(dir.clone()))
            .unwrap_err();
        assert_eq!(e.code, Code::KeyUnknown);
        let mut l = loader(&p, s, None);
        l.verify = Some(Arc::new(
            |_, sig| {
                if sig == b"sig" { Ok(()) } else { Err("no".into()) }
            },
        ));
        l.load(&Source::Path(dir)).unwrap().unwrap();
    }
}
