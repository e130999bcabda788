//! Tokens of container registries (distribution specification, token authentication): a registry answers 401 and names who
//! gives tokens; the token is asked for there and shown to the registry alone.

use super::attempt::{self, Failure};
use super::credentials::{self, Auth};
use super::{Extra, client, shown};
use crate::error::AgentError;
use crate::fetch::Policy;
use crate::ports::{Clock, SourceRequest};
use os_proto::codes::Code;
use reqwest::{Response, Url, header};
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of a token answer.
const ANSWER_MAX: usize = 64 << 10;

/// The token of a repository, shared by all its requests.
#[derive(Clone)]
pub(in crate::fetch) struct Tokens {
    scope: String,
    current: Arc<Mutex<Option<String>>>,
}

impl Tokens {
    /// For pulling from `repository`.
    pub(in crate::fetch) fn new(repository: &str) -> Tokens {
        Tokens {
            scope: format!("repository:{repository}:pull"),
            current: Arc::default(),
        }
    }

    pub(super) fn current(&self) -> Option<Auth> {
        let t = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        t.clone().map(Auth::Bearer)
    }

    fn keep(&self, token: String) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }
}

/// A `WWW-Authenticate: Bearer` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    realm: String,
    service: Option<String>,
}

/// PURE: reads a challenge (RFC 6750, 3).
pub(super) fn challenge(value: &str) -> Option<Challenge> {
    let rest = value.trim();
    let (scheme, mut rest) = rest.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, None);
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        match name.as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            _ => {}
        }
        rest = after;
    }
    Some(Challenge {
        realm: realm?,
        service,
    })
}

/// The challenge of a 401, if it asks for a token.
pub(super) fn asked_for(response: &Response) -> Option<Challenge> {
    response
        .headers()
        .get_all(header::WWW_AUTHENTICATE)
        .iter()
        .find_map(|v| challenge(v.to_str().ok()?))
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Gets a token and keeps it.
pub(super) async fn renew(
    registry: &Url,
    asked: &Challenge,
    extra: &Extra,
    request: &SourceRequest,
    policy: &Policy,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let Some(tokens) = &extra.tokens else {
        return Err(fail("a token is asked for, but this is no registry"));
    };
    let mut realm = Url::parse(&asked.realm)
        .map_err(|e| fail(&format!("the registry names no place that gives tokens ({e})")))?;
    let _ = realm.set_username("");
    let _ = realm.set_password(None);
    attempt::allowed(registry, &realm, request.allow_http)?;
    {
        let mut q = realm.query_pairs_mut();
        if let Some(s) = &asked.service {
            q.append_pair("service", s);
        }
        q.append_pair("scope", &tokens.scope);
    }
    let same = realm.origin() == registry.origin();
    let mut r = client::build(&realm, same, request, policy)?.get(realm.clone());
    // A registry does not choose who sees the credentials that were meant for it.
    let auth = match &policy.credentials_dir {
        Some(dir) => credentials::look_up(dir, &realm).map_err(Failure::Final)?,
        None => None,
    };
    if let Some(a) = auth.or_else(|| extra.userinfo.clone().filter(|_| same)) {
        r = attempt::with_auth(r, &a);
    }
    let limit = policy.connect_timeout + policy.first_byte_timeout;
    let answer = tokio::time::timeout(limit, async {
        let mut response = r.send().await.map_err(|e| client::failure(e, &realm, clock))?;
        let status = response.status();
        if !status.is_success() {
            let cause = format!("status {status} from {} for a token", shown(&realm));
            return Err(match status.as_u16() {
                408 | 425 | 429 | 500..=599 => Failure::Again(cause, None),
                _ => fail(&cause),
            });
        }
        let mut body = Vec::new();
        while let Some(b) = response
            .chunk()
            .await
            .map_err(|e| client::failure(e, &realm, clock))?
        {
            body.extend_from_slice(&b);
            if body.len() > ANSWER_MAX {
                return Err(fail("the answer with the token is larger than 64 KiB"));
            }
        }
        Ok(body)
    })
    .await
    .map_err(|_| {
        Failure::Again(
            format!("no token from {} within {} s", shown(&realm), limit.as_secs()),
            None,
        )
    })??;
    let token = serde_json::from_slice::<Answer>(&answer)
        .ok()
        .and_then(|a| a.token.or(a.access_token))
        .ok_or_else(|| fail(&format!("{} answered without a token", shown(&realm))))?;
    tokens.keep(token);
    Ok(())
}

fn fail(message: &str) -> Failure {
    Failure::Final(AgentError::new(Code::FetchFailed, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        let c = |realm: &str, service: Option<&str>| {
            Some(Challenge {
                realm: realm.into(),
                service: service.map(str::to_owned),
            })
        };
        assert_eq!(
            challenge(
                "Bearer realm=\"https://auth/token?x=1\",service=\"reg,istry\",scope=\"repository:a:pull\""
            ),
            c("https://auth/token?x=1", Some("reg,istry"))
        );
        assert_eq!(
            challenge("bearer service=plain, realm=\"https://a\""),
            c("https://a", Some("plain"))
        );
        for none in [
            "",
            "Basic realm=\"x\"",
            "Bearer",
            "Bearer service=\"x\"",
            "Bearer realm=\"open",
        ] {
            assert_eq!(challenge(none), None, "{none}");
        }
    }
}
