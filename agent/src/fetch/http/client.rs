//! One client per request: certificates are read anew, and nothing is shared between origins.

use super::attempt::Failure;
use crate::error::AgentError;
use crate::fetch::Policy;
use crate::ports::{Clock, SourceRequest};
use camino::Utf8Path;
use hyper_util::client::proxy::matcher::Matcher;
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

/// The proxy that the environment names for `url`, without its credentials.
fn proxy(url: &Url) -> Option<String> {
    if is_loopback(url) {
        return None;
    }
    through(&Matcher::from_system(), url)
}

/// PURE: the proxy of these rules for `url`, without its credentials.
fn through(rules: &Matcher, url: &Url) -> Option<String> {
    let proxy = rules.intercept(&url.as_str().parse().ok()?)?;
    let uri = proxy.uri();
    let port = uri.port_u16().map(|p| format!(":{p}")).unwrap_or_default();
    Some(format!(
        "{}://{}{port}",
        uri.scheme_str().unwrap_or("http"),
        uri.host().unwrap_or_default()
    ))
}

/// Says that a plain http answer came from a proxy, or through one: which of both refused cannot be told.
pub(super) fn asked_through(url: &Url) -> String {
    proxy(url)
        .filter(|_| url.scheme() == "http")
        .map(|p| format!(" (asked through the proxy {p})"))
        .unwrap_or_default()
}

/// A proxy answered 407.
pub(super) fn wants_credentials(url: &Url) -> AgentError {
    let proxy = proxy(url).unwrap_or_default();
    AgentError::new(
        Code::FetchFailed,
        format!(
            "the proxy {proxy} wants credentials that it was not given, or not these (407): write them into its URL in the agent's \
             environment ({}=http://USER:PASSWORD@HOST:PORT), or let NO_PROXY name {}",
            variable(url),
            super::address::host(url)
        ),
    )
}

/// Which variable names the proxy of a URL.
fn variable(url: &Url) -> &'static str {
    if url.scheme() == "http" {
        "HTTP_PROXY"
    } else {
        "HTTPS_PROXY"
    }
}

/// A connection that was to go through a proxy and did not come about. hyper-util says no more than these texts.
fn not_through(text: &str, proxy: &str, url: &Url) -> Failure {
    if text.contains("proxy authorization required") {
        return Failure::Final(wants_credentials(url));
    }
    let host = super::address::host(url);
    if text.contains("tunnel error: unsuccessful") {
        // Perhaps it is only busy: its status is not known.
        return Failure::Again(
            format!(
                "the proxy {proxy} refuses to connect to {host} (its answer to CONNECT was not 200): permit that host and port there, or \
                 let NO_PROXY name it"
            ),
            None,
        );
    }
    Failure::Again(
        format!("through the proxy {proxy} ({}): {text}", variable(url)),
        None,
    )
}

/// A failed exchange: a certificate's date makes the clock the suspect, anything else is tried again.
pub(super) fn failure(e: reqwest::Error, url: &Url, clock: &dyn Clock) -> Failure {
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
    match proxy(url).filter(|_| e.is_connect()) {
        Some(proxy) => not_through(&text, &proxy, url),
        None => Failure::Again(text, None),
    }
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
    fn a_proxy_is_named_without_its_credentials() {
        let rules = Matcher::builder()
            .https("http://user:secret@proxy.test:3128")
            .http("proxy.test")
            .no("near.test")
            .build();
        let of = |url: &str| through(&rules, &url.parse().unwrap());
        assert_eq!(
            of("https://images.test/u?sig=x").as_deref(),
            Some("http://proxy.test:3128")
        );
        assert_eq!(of("http://images.test/u").as_deref(), Some("http://proxy.test"));
        assert_eq!(of("https://near.test/u"), None);
    }

    #[test]
    fn what_a_proxy_refuses_is_told_with_what_to_do() {
        let url: Url = "https://images.test/u".parse().unwrap();
        let told = |text: &str| match not_through(text, "http://p:3128", &url) {
            Failure::Again(m, None) => (false, m),
            Failure::Final(e) => (true, e.message),
            other => panic!("{other:?}"),
        };
        let (last, m) = told("error sending request: tunnel error: unsuccessful");
        assert!(
            !last && m.contains("the proxy http://p:3128 refuses to connect to images.test"),
            "{m}"
        );
        let (last, m) = told("tunnel error: proxy authorization required");
        assert!(
            last && m.contains("wants credentials") && m.contains("HTTPS_PROXY="),
            "{m}"
        );
        let (last, m) = told("tcp connect error: Connection refused");
        assert!(
            !last && m.starts_with("through the proxy http://p:3128 (HTTPS_PROXY): tcp"),
            "{m}"
        );
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
