//! Container images from a registry, by the digest of their manifest; no container engine takes part.
//!
//! The tag of a reference is for people: the manifest is asked for by digest and compared, so a moved tag changes nothing.

pub mod manifest;
pub mod reference;

use super::http::{Extra, HttpSource, Tokens};
use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Download, Object, Report, SourceRequest};
use bytes::Bytes;
use manifest::{Next, Pointer};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Arch;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Documents between the pinned digest and the layer: an index and a manifest.
const DOCUMENTS: usize = 2;

/// Opens the one layer of an image whose manifest or index has the SHA-256 `pin`.
///
/// # Errors
/// `InvalidArgument`, `ChecksumMismatch`, `UnsupportedFormat`, and those of downloads.
pub(super) fn open(
    http: &HttpSource,
    reference: &str,
    pin: Sha256Digest,
    arch: Arch,
    request: &SourceRequest,
    cancel: &Cancel,
    report: Arc<dyn Report>,
) -> Result<Box<dyn Download>> {
    let r = reference::parse(reference).map_err(|e| AgentError::new(Code::InvalidArgument, e))?;
    let at = |scheme: &str, tries| Place {
        http,
        base: format!("{scheme}://{}/v2/{}", r.registry, r.repository),
        tokens: Tokens::new(&r.repository),
        tries,
        request,
        cancel,
        report: Arc::clone(&report),
    };
    if request.allow_http {
        // Permitted is not wished for: a registry that speaks https is asked that way.
        let secure = at("https", Some(1));
        match secure.documents(pin, arch) {
            Err(e) if e.code == Code::FetchFailed => tracing::info!(%e, "trying plain http"),
            found => return found.and_then(|(d, l)| secure.layer(d, l)),
        }
    }
    let place = at(if request.allow_http { "http" } else { "https" }, None);
    let (documents, layer) = place.documents(pin, arch)?;
    place.layer(documents, layer)
}

/// A repository.
struct Place<'a> {
    http: &'a HttpSource,
    base: String,
    tokens: Tokens,
    tries: Option<u32>,
    request: &'a SourceRequest,
    cancel: &'a Cancel,
    report: Arc<dyn Report>,
}

impl Place<'_> {
    fn get(
        &self,
        path: &str,
        accept: Option<&'static str>,
        request: &SourceRequest,
    ) -> Result<Box<dyn Download>> {
        let extra = Extra {
            accept,
            tokens: Some(self.tokens.clone()),
            tries: self.tries,
            ..Extra::default()
        };
        let url = format!("{}/{path}", self.base);
        self.http
            .open_with(&url, request, extra, self.cancel, Arc::clone(&self.report))
    }

    /// The documents that lead from `pin` to the layer, each compared with the digest that named it.
    fn documents(&self, pin: Sha256Digest, arch: Arch) -> Result<(Vec<Vec<u8>>, Pointer)> {
        let small = SourceRequest {
            max_bytes: manifest::MAX,
            known: None,
            ..self.request.clone()
        };
        let mut documents = Vec::new();
        let mut wanted = pin;
        loop {
            let mut d = self.get(
                &format!("manifests/sha256:{wanted}"),
                Some(manifest::ACCEPT),
                &small,
            )?;
            let mut document = Vec::new();
            while let Some(b) = d.next()? {
                document.extend_from_slice(&b);
            }
            let name = d.describe();
            let refuse = |why: &str| AgentError::new(Code::UnsupportedFormat, format!("{name}: {why}"));
            let got = Sha256Digest(Sha256::digest(&document).into());
            if got != wanted {
                return Err(AgentError::new(
                    Code::ChecksumMismatch,
                    format!("{name}: got SHA-256 {got}, wanted {wanted}"),
                ));
            }
            let next = manifest::next(&document, arch).map_err(|e| refuse(&e))?;
            documents.push(document);
            match next {
                Next::Manifest(p) if documents.len() < DOCUMENTS => wanted = p.digest,
                Next::Manifest(_) => return Err(refuse("is an index inside an index")),
                Next::Layer(layer) => return Ok((documents, layer)),
            }
        }
    }

    fn layer(&self, documents: Vec<Vec<u8>>, layer: Pointer) -> Result<Box<dyn Download>> {
        let path = format!("blobs/sha256:{}", layer.digest);
        Layer::open(self.get(&path, None, self.request)?, documents, layer)
    }
}

/// A layer, with the documents that lead to it from the pinned digest.
struct Layer {
    inner: Box<dyn Download>,
    documents: Vec<Vec<u8>>,
}

impl Layer {
    fn open(inner: Box<dyn Download>, documents: Vec<Vec<u8>>, layer: Pointer) -> Result<Box<dyn Download>> {
        if let Some(total) = inner.total().filter(|t| *t != layer.size) {
            return Err(AgentError::new(
                Code::SizeMismatch,
                format!(
                    "{}: the registry sends {total} bytes, the manifest says {}",
                    inner.describe(),
                    layer.size
                ),
            ));
        }
        Ok(Box::new(Layer { inner, documents }))
    }
}

impl Download for Layer {
    fn total(&self) -> Option<u64> {
        self.inner.total()
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        self.inner.next()
    }

    fn skip(&mut self, n: u64) -> Result<u64> {
        self.inner.skip(n)
    }

    fn object(&self) -> Option<Object> {
        self.inner.object()
    }

    fn documents(&self) -> Option<&[Vec<u8>]> {
        Some(&self.documents)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests;
