//! Where payloads come from: http(s), registries and files.

pub mod file;
pub mod http;
pub mod oci;

use crate::error::{AgentError, Result};
use crate::ports::{Cancel, Clock, Download, Location, Report, Source, SourceRequest};
use camino::Utf8PathBuf;
use os_proto::codes::Code;
use os_proto::layout::Arch;
use std::sync::Arc;
use std::time::Duration;

/// Limits of every download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// For name resolution, TCP and TLS.
    pub connect_timeout: Duration,
    /// From the request to the first byte of the answer.
    pub first_byte_timeout: Duration,
    /// Slower than this …
    pub min_rate_bytes_per_sec: u64,
    /// … for so long ends the connection.
    pub min_rate_span: Duration,
    /// Tries without progress before the download fails.
    pub retry_limit: u32,
    /// Pause after the first failure; doubles.
    pub retry_first: Duration,
    /// Longest pause.
    pub retry_max: Duration,
    /// Authority file that replaces the system's roots, unless the request names one.
    pub ca_file: Option<Utf8PathBuf>,
    /// Limit on a whole download.
    pub total_timeout: Option<Duration>,
    /// Directory of files with credentials per origin.
    pub credentials_dir: Option<Utf8PathBuf>,
    /// Which image of an index is wanted.
    pub arch: Arch,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(30),
            min_rate_bytes_per_sec: 1024,
            min_rate_span: Duration::from_secs(60),
            retry_limit: 8,
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            ca_file: None,
            total_timeout: None,
            credentials_dir: None,
            arch: Arch::X86_64,
        }
    }
}

/// Every source that is built in.
pub struct Sources {
    http: http::HttpSource,
    arch: Arch,
}

impl Sources {
    /// `handle` must be of a multi-threaded runtime: downloads block on it from other threads.
    pub fn new(handle: tokio::runtime::Handle, clock: Arc<dyn Clock>, policy: Policy) -> Sources {
        Sources {
            arch: policy.arch,
            http: http::HttpSource::new(handle, clock, policy),
        }
    }
}

impl Source for Sources {
    fn open(
        &self,
        request: &SourceRequest,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>> {
        match &request.location {
            Location::Url(url) => self.http.open(url, request, cancel, report),
            Location::Oci { reference, pin } => {
                oci::open(&self.http, reference, *pin, self.arch, request, cancel, report)
            }
            Location::File(path) => file::open(path, request.max_bytes, cancel),
            Location::Slot(slot) => Err(AgentError::new(
                Code::InvalidArgument,
                format!("slot {slot} is not fetched: it is read back in place"),
            )),
        }
    }
}
