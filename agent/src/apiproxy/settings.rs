//! The proxy's file. PURE.

use camino::Utf8PathBuf;
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Most servers.
const MOST: usize = 64;

/// One API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upstream {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Upstream {
    /// `host:port`, `[v6]:port`, with or without `https://`.
    fn parse(text: &str) -> Option<Upstream> {
        let bare = text.strip_prefix("https://").unwrap_or(text);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let (host, port) = bare.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(v6) => v6
                .strip_suffix(']')
                .filter(|h| h.parse::<std::net::Ipv6Addr>().is_ok())?,
            None => host,
        };
        let port = port.parse().ok().filter(|p| *p > 0)?;
        let good = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
        (!host.is_empty() && host.chars().all(good) && (!host.contains(':') || bare.starts_with('['))).then(
            || Upstream {
                host: host.to_owned(),
                port,
            },
        )
    }
}

/// Everything that the proxy is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the kubelet connects.
    pub listen: SocketAddr,
    /// Where the state is told over plain HTTP; `None` = nowhere.
    pub health: Option<SocketAddr>,
    /// The servers, each once.
    pub upstreams: Vec<Upstream>,
    /// Authority of the servers' certificates.
    pub ca_file: Utf8PathBuf,
    /// The name in those certificates; `None` = the host of each server.
    pub server_name: Option<String>,
    /// From one probe to the next.
    pub probe: Duration,
    /// Limit of a probe, and of one attempt to connect.
    pub timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<SocketAddr>,
    health: Option<String>,
    upstreams: Vec<String>,
    ca_file: Utf8PathBuf,
    server_name: Option<String>,
    probe_secs: Option<u64>,
    timeout_ms: Option<u64>,
}

impl Settings {
    /// Reads the file's text.
    ///
    /// # Errors
    /// What is wrong, naming the key. An empty list of servers is refused: it would cut the node off.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let f: File = toml::from_str(text).map_err(|e| {
            let line = e
                .span()
                .and_then(|s| text.get(..s.start))
                .map_or(1, |t| t.matches('\n').count() + 1);
            format!("line {line}: {}", e.message())
        })?;
        let listen = f
            .listen
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 6445)));
        let health = match f.health.as_deref() {
            None => Some(SocketAddr::from(([127, 0, 0, 1], 6480))),
            Some("") => None,
            Some(t) => Some(
                t.parse()
                    .map_err(|_| format!("health = {t:?}: expected address:port, or \"\" for none"))?,
            ),
        };
        let mut upstreams = Vec::new();
        for text in &f.upstreams {
            let u = Upstream::parse(text).ok_or_else(|| {
                format!("upstreams: {text:?}: expected host:port, for instance 10.0.0.1:6443")
            })?;
            if u.to_string() == listen.to_string() {
                return Err(format!("upstreams: {text:?} is the proxy itself"));
            }
            if !upstreams.contains(&u) {
                upstreams.push(u);
            }
        }
        if upstreams.is_empty() || upstreams.len() > MOST {
            return Err(format!(
                "upstreams: expected 1 to {MOST} servers, found {}",
                upstreams.len()
            ));
        }
        let (probe, timeout) = (f.probe_secs.unwrap_or(5), f.timeout_ms.unwrap_or(2000));
        if !(1..=300).contains(&probe) {
            return Err(format!("probe_secs = {probe}: expected 1 to 300"));
        }
        if !(50..=60_000).contains(&timeout) {
            return Err(format!("timeout_ms = {timeout}: expected 50 to 60000"));
        }
        Ok(Settings {
            listen,
            health,
            upstreams,
            ca_file: f.ca_file,
            server_name: f.server_name.filter(|n| !n.is_empty()),
            probe: Duration::from_secs(probe),
            timeout: Duration::from_millis(timeout),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_every_spelling_of_a_server() {
        let s = Settings::parse(
            "ca_file = \"/ca\"\nupstreams = [\"10.0.0.1:6443\", \"https://m.example:6443/\", \"[fd00::1]:6443\", \"10.0.0.1:6443\"]\n",
        )
        .unwrap();
        assert_eq!(s.listen.to_string(), "127.0.0.1:6445");
        assert_eq!(s.health.unwrap().to_string(), "127.0.0.1:6480");
        let all: Vec<String> = s.upstreams.iter().map(ToString::to_string).collect();
        assert_eq!(all, ["10.0.0.1:6443", "m.example:6443", "[fd00::1]:6443"]);
        assert_eq!((s.probe.as_secs(), s.timeout.as_millis()), (5, 2000));
    }

    #[test]
    fn fault_16_an_empty_list_is_refused() {
        let e = Settings::parse("ca_file = \"/ca\"\nupstreams = []\n").unwrap_err();
        assert!(e.contains("expected 1 to 64 servers, found 0"), "{e}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("upstreams = [\"a:1\"]\n", "ca_file"),
            (
                "ca_file = \"/ca\"\nupstreams = [\"a\"]\n",
                "\"a\": expected host:port",
            ),
            ("ca_file = \"/ca\"\nupstreams = [\"a:0\"]\n", "a:0"),
            ("ca_file = \"/ca\"\nupstreams = [\"fd00::1:6443\"]\n", "fd00"),
            ("ca_file = \"/ca\"\nupstreams = [\"http://a:1\"]\n", "http://a:1"),
            (
                "ca_file = \"/ca\"\nupstreams = [\"127.0.0.1:6445\"]\n",
                "the proxy itself",
            ),
            (
                "ca_file = \"/ca\"\nupstreams = [\"a:1\"]\nprobe_secs = 0\n",
                "probe_secs",
            ),
            (
                "ca_file = \"/ca\"\nupstreams = [\"a:1\"]\nhealth = \"x\"\n",
                "health",
            ),
            ("ca_file = \"/ca\"\nupstreams = [\"a:1\"]\nnope = 1\n", "line 3"),
        ] {
            let e = Settings::parse(text).unwrap_err();
            assert!(e.contains(want), "{text}: {e}");
        }
    }
}
