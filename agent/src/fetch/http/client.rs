//! One client per request: certificates are read anew, and nothing is shared between origins.

use super::attempt::Failure;
use crate::error::AgentError;
use crate::fetch::Policy;
use crate::ports::{Clock, SourceRequest};
use camino::Utf8Path;
use os_proto::codes::Code;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Url, redirect};
use std::error::Error;

/// Builds the client for one hop; the client certificate goes only to the origin that was asked for (`own`).
pub(super) fn build(
    url: &Url,
    own: bool,
    request: &SourceRequest,
    policy: &Policy,
) -> Result<Client, Failure> {
    let mut b = Client::builder()
        .user_agent(concat!("os-agent/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .referer(false)
        .http1_only()
        .pool_max_idle_per_host(0)
        .dns_resolver(os_steps::sys::hosts::Names)
        .connect_timeout(policy.connect_timeout);
    if is_loopback(url) {
        b = b.no_proxy();
    }
    if url.scheme() == "http" {
        // Roots are not needed, and a machine may have none.
        return finish(b.tls_certs_only([]));
    }
    if let Some(path) = request.cacert.as_deref().or(policy.ca_file.as_deref()) {
        let roots = Certificate::from_pem_bundle(&pem(path)?)
            .map_err(|e| setup(&format!("{path}: no certificates: {}", chain(&e))))?;
        if roots.is_empty() {
            return Err(setup(&format!("{path}: holds no certificate")));
        }
        b = b.tls_certs_only(roots);
    }
    if let (Some((cert, key)), true) = (&request.client, own) {
        let mut both = pem(cert)?;
        both.push(b'\n');
        both.extend(pem(key)?);
        let id = Identity::from_pem(&both).map_err(|e| {
            setup(&format!(
                "{cert}, {key}: not a certificate with its key: {}",
                chain(&e)
            ))
        })?;
        b = b.identity(id);
    }
    finish(b)
}

fn finish(b: ClientBuilder) -> Result<Client, Failure> {
    b.build()
        .map_err(|e| setup(&format!("TLS set-up: {}", chain(&e))))
}

fn pem(path: &Utf8Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|e| setup(&format!("{path}: {e}")))
}

fn setup(message: &str) -> Failure {
    Failure::Final(AgentError::new(Code::InvalidArgument, message))
}

/// Loopback addresses bypass every proxy.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok_and(|a| a.is_loopback())
}

/// A failed exchange: a certificate's date makes the clock the suspect, anything else is tried again.
pub(super) fn failure(e: reqwest::Error, clock: &dyn Clock) -> Failure {
    let e = e.without_url();
    let text = chain(&e);
    if let Some(date) = certificate_date(&e) {
        let now = jiff::Timestamp::from_second(clock.unix())
            .map(|t| t.to_string())
            .unwrap_or_else(|_| clock.unix().to_string());
        return Failure::Final(AgentError::new(
            Code::ClockSuspect,
            format!("the server's certificate is {date}: clock says {now}; check time synchronisation"),
        ));
    }
    use rustls::CertificateError as C;
    if let Some(C::UnknownIssuer | C::NotValidForName | C::NotValidForNameContext { .. }) = refused(&e) {
        return Failure::Final(AgentError::new(
            Code::FetchFailed,
            format!(
                "{text}: the server's certificate is not accepted; name its authority (--ca FILE, [fetch] ca_file), or use the host \
                 name that it was issued for"
            ),
        ));
    }
    Failure::Again(text, None)
}

/// Why a certificate was refused, if that is what happened.
fn refused<'e>(e: &'e (dyn Error + 'static)) -> Option<&'e rustls::CertificateError> {
    let mut next = Some(e);
    while let Some(cause) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = cause.downcast_ref::<rustls::Error>() {
            return Some(why);
        }
        // `source` of an io::Error skips what it wraps.
        next = cause
            .downcast_ref::<std::io::Error>()
            .and_then(|io| io.get_ref())
            .map(|i| i as &(dyn Error + 'static))
            .or_else(|| cause.source());
    }
    None
}

/// Whether a certificate was refused for its dates.
fn certificate_date(e: &(dyn Error + 'static)) -> Option<&'static str> {
    use rustls::CertificateError as C;
    match refused(e)? {
        C::Expired | C::ExpiredContext { .. } => Some("expired"),
        C::NotValidYet | C::NotValidYetContext { .. } => Some("not valid yet"),
        _ => None,
    }
}

/// An error with its causes, each once.
pub(super) fn chain(e: &(dyn Error + 'static)) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(c) = next {
        let text = c.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        next = c.source();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_in_every_spelling() {
        for yes in [
            "http://localhost/x",
            "http://LOCALHOST:8/",
            "https://127.0.0.9/",
            "http://[::1]:80/",
        ] {
            assert!(is_loopback(&yes.parse().unwrap()), "{yes}");
        }
        for no in [
            "http://example.com/",
            "http://10.0.0.1/",
            "http://localhost.example.com/",
        ] {
            assert!(!is_loopback(&no.parse().unwrap()), "{no}");
        }
    }

    #[test]
    fn certificate_dates_are_found_however_deep() {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidYet);
        let io = std::io::Error::new(std::io::ErrorKind::InvalidData, tls);
        let deep = std::io::Error::other(io);
        assert_eq!(certificate_date(&deep), Some("not valid yet"));
        let other = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert_eq!(certificate_date(&std::io::Error::other(other)), None);
    }
}
