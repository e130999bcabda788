//! The agent's configuration: fragments → merged → validated. PURE; the loader in `node` reads the files.
//!
//! Fragments are read in this order, a later one wins per key: `/usr/lib/os-agent/config.d/*.toml`,
//! `/etc/os-agent/config.d/*.toml`, `/etc/os-agent/config.toml`.

use camino::Utf8PathBuf;
use os_steps::settings::{Approval, Disruption, Settings};
use serde::Deserialize;

/// Directories of fragments and the last file, in reading order.
pub const FRAGMENT_DIRS: [&str; 2] = ["/usr/lib/os-agent/config.d", "/etc/os-agent/config.d"];
/// Read after all fragments.
pub const LAST_FILE: &str = "/etc/os-agent/config.toml";

/// Where metrics are kept unless another place is configured; the agent's unit may write there.
pub const METRICS: &str = "/run/os-agent/os-agent.prom";

/// Why a configuration is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A fragment is not what it should be.
    #[error("{file}:{line}: {message}")]
    Fragment {
        /// Which file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong, naming the key.
        message: String,
    },
    /// A value is out of range.
    #[error("{key} = {found}: expected {expected}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fragment {
    #[serde(default)]
    trial: TrialPart,
    #[serde(default)]
    health: HealthPart,
    #[serde(default)]
    fetch: FetchPart,
    #[serde(default)]
    trust: TrustPart,
    #[serde(default)]
    watchdog: WatchdogPart,
    #[serde(default)]
    metrics: MetricsPart,
    #[serde(default)]
    steps: StepsPart,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialPart {
    deadline_secs: Option<u64>,
    settle_secs: Option<u64>,
    hook_timeout_secs: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthPart {
    kubelet: Option<Kubelet>,
}

/// Whether kubelet is a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kubelet {
    /// Where its unit is enabled.
    #[default]
    Auto,
    /// Never.
    Off,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FetchPart {
    connect_timeout_secs: Option<u64>,
    first_byte_timeout_secs: Option<u64>,
    min_rate_bytes_per_sec: Option<u64>,
    min_rate_secs: Option<u64>,
    retry_limit: Option<u32>,
    retry_first_ms: Option<u64>,
    retry_max_ms: Option<u64>,
    total_timeout_secs: Option<u64>,
    ca_file: Option<Utf8PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustPart {
    require_signature: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchdogPart {
    ping: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsPart {
    textfile: Option<Utf8PathBuf>,
}

/// `[steps]`; meanings are those of [`Settings`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepsPart {
    source: Option<String>,
    sha256: Option<String>,
    allow_http: Option<bool>,
    node_group: Option<String>,
    api_endpoints: Option<Vec<String>>,
    trust_cluster: Option<bool>,
    approval: Option<Approval>,
    disruption: Option<Disruption>,
    #[serde(default)]
    env: std::collections::BTreeMap<String, String>,
}

/// The whole configuration, valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Trials.
    pub trial: Trial,
    /// kubelet as a gate.
    pub kubelet: Kubelet,
    /// Downloads.
    pub fetch: Fetch,
    /// Payloads without a trusted signature are refused.
    pub require_signature: bool,
    /// The service manager's watchdog is pinged.
    pub watchdog_ping: bool,
    /// Where metrics are kept for a node exporter; empty = nowhere.
    pub metrics_textfile: Utf8PathBuf,
    /// The step runner.
    pub steps: Settings,
}

/// Trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Span of a trial boot, from its start, in seconds.
    pub deadline_secs: u64,
    /// How long all gates must hold without a break, in seconds.
    pub settle_secs: u64,
    /// Limit of one run of one hook, in seconds.
    pub hook_timeout_secs: u64,
}

/// Downloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Seconds.
    pub connect_timeout_secs: u64,
    /// Seconds from the request to the first byte.
    pub first_byte_timeout_secs: u64,
    /// A transfer slower than this …
    pub min_rate_bytes_per_sec: u64,
    /// … for this many seconds is broken off.
    pub min_rate_secs: u64,
    /// Tries without progress.
    pub retry_limit: u32,
    /// First wait, milliseconds; doubled each time.
    pub retry_first_ms: u64,
    /// Longest wait, milliseconds.
    pub retry_max_ms: u64,
    /// Limit on a whole download in seconds; 0 = none.
    pub total_timeout_secs: u64,
    /// Authority file that replaces the system's roots.
    pub ca_file: Option<Utf8PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            trial: Trial {
                deadline_secs: 900,
                settle_secs: 30,
                hook_timeout_secs: 60,
            },
            kubelet: Kubelet::Auto,
            fetch: Fetch {
                connect_timeout_secs: 10,
                first_byte_timeout_secs: 30,
                min_rate_bytes_per_sec: 1024,
                min_rate_secs: 60,
                retry_limit: 8,
                retry_first_ms: 1000,
                retry_max_ms: 60_000,
                total_timeout_secs: 0,
                ca_file: None,
            },
            require_signature: false,
            watchdog_ping: true,
            metrics_textfile: METRICS.into(),
            steps: Settings::default(),
        }
    }
}

impl Config {
    /// Merges fragments, given as (file name, text) in reading order, over the defaults.
    ///
    /// # Errors
    /// An unknown key or a wrong type, naming key, file and line; a value out of range.
    pub fn merge<'a>(fragments: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Config, ConfigError> {
        let mut c = Config::default();
        for (file, text) in fragments {
            let part: Fragment = toml::from_str(text).map_err(|e| ConfigError::Fragment {
                file: file.to_owned(),
                line: e
                    .span()
                    .and_then(|s| text.get(..s.start))
                    .map_or(1, |t| t.matches('\n').count() + 1),
                message: e.message().to_owned(),
            })?;
            c.apply(part);
        }
        c.check()?;
        Ok(c)
    }

    fn apply(&mut self, p: Fragment) {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(v) = from {
                *to = v;
            }
        }
        set(&mut self.trial.deadline_secs, p.trial.deadline_secs);
        set(&mut self.trial.settle_secs, p.trial.settle_secs);
        set(&mut self.trial.hook_timeout_secs, p.trial.hook_timeout_secs);
        set(&mut self.kubelet, p.health.kubelet);
        let f = &mut self.fetch;
        set(&mut f.connect_timeout_secs, p.fetch.connect_timeout_secs);
        set(&mut f.first_byte_timeout_secs, p.fetch.first_byte_timeout_secs);
        set(&mut f.min_rate_bytes_per_sec, p.fetch.min_rate_bytes_per_sec);
        set(&mut f.min_rate_secs, p.fetch.min_rate_secs);
        set(&mut f.retry_limit, p.fetch.retry_limit);
        set(&mut f.retry_first_ms, p.fetch.retry_first_ms);
        set(&mut f.retry_max_ms, p.fetch.retry_max_ms);
        set(&mut f.total_timeout_secs, p.fetch.total_timeout_secs);
        if p.fetch.ca_file.is_some() {
            f.ca_file = p.fetch.ca_file;
        }
        set(&mut self.require_signature, p.trust.require_signature);
        set(&mut self.watchdog_ping, p.watchdog.ping);
        set(&mut self.metrics_textfile, p.metrics.textfile);
        let s = &mut self.steps;
        set(&mut s.source, p.steps.source);
        set(&mut s.sha256, p.steps.sha256);
        set(&mut s.allow_http, p.steps.allow_http);
        set(&mut s.node_group, p.steps.node_group);
        set(&mut s.api_endpoints, p.steps.api_endpoints);
        set(&mut s.trust_cluster, p.steps.trust_cluster);
        set(&mut s.approval, p.steps.approval);
        set(&mut s.disruption, p.steps.disruption);
        s.env.extend(p.steps.env);
    }

    fn check(&self) -> Result<(), ConfigError> {
        let range = |key, v: u64, lo: u64, hi: u64, expected| {
            if (lo..=hi).contains(&v) {
                Ok(())
            } else {
                Err(ConfigError::Value {
                    key,
                    found: v.to_string(),
                    expected,
                })
            }
        };
        let day = 86_400;
        range(
            "trial.deadline_secs",
            self.trial.deadline_secs,
            10,
            day,
            "10 to 86400",
        )?;
        range(
            "trial.settle_secs",
            self.trial.settle_secs,
            0,
            self.trial.deadline_secs.saturating_sub(1),
            "less than trial.deadline_secs",
        )?;
        range(
            "trial.hook_timeout_secs",
            self.trial.hook_timeout_secs,
            1,
            day,
            "1 to 86400",
        )?;
        range(
            "fetch.connect_timeout_secs",
            self.fetch.connect_timeout_secs,
            1,
            3600,
            "1 to 3600",
        )?;
        range(
            "fetch.first_byte_timeout_secs",
            self.fetch.first_byte_timeout_secs,
            1,
            3600,
            "1 to 3600",
        )?;
        range(
            "fetch.min_rate_secs",
            self.fetch.min_rate_secs,
            1,
            3600,
            "1 to 3600",
        )?;
        range(
            "fetch.retry_limit",
            u64::from(self.fetch.retry_limit),
            1,
            100,
            "1 to 100",
        )?;
        range(
            "fetch.retry_first_ms",
            self.fetch.retry_first_ms,
            1,
            3_600_000,
            "1 to 3600000",
        )?;
        range(
            "fetch.retry_max_ms",
            self.fetch.retry_max_ms,
            self.fetch.retry_first_ms,
            3_600_000,
            "at least fetch.retry_first_ms, at most 3600000",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_fragments_win_key_by_key() {
        let c = Config::merge([
            ("a.toml", "[trial]\ndeadline_secs = 60\nsettle_secs = 5\n[health]\nkubelet = \"off\"\n"),
            ("b.toml", "[trial]\ndeadline_secs = 90\n[fetch]\nca_file = \"/etc/ca.pem\"\n[trust]\nrequire_signature = true\n"),
        ])
        .unwrap();
        assert_eq!((c.trial.deadline_secs, c.trial.settle_secs), (90, 5));
        assert_eq!(c.kubelet, Kubelet::Off);
        assert_eq!(c.fetch.ca_file.unwrap(), "/etc/ca.pem");
        assert!(c.require_signature);
        assert_eq!(Config::merge([]).unwrap(), Config::default());
    }

    #[test]
    fn steps_are_configured_key_by_key() {
        let c = Config::merge([
            (
                "a.toml",
                "[steps]\nsource = \"/bundle\"\napproval = \"ask\"\n[steps.env]\nA = \"1\"\nB = \"1\"\n",
            ),
            (
                "b.toml",
                "[steps]\ndisruption = \"deckhouse\"\n[steps.env]\nB = \"2\"\n",
            ),
        ])
        .unwrap();
        assert_eq!(
            (c.steps.source.as_str(), c.steps.approval),
            ("/bundle", Approval::Ask)
        );
        assert_eq!(c.steps.disruption, Disruption::Deckhouse);
        assert_eq!((c.steps.env["A"].as_str(), c.steps.env["B"].as_str()), ("1", "2"));
        let e = Config::merge([("x.toml", "[steps]\napproval = \"never\"\n")]).unwrap_err();
        assert!(e.to_string().starts_with("x.toml:2: "), "{e}");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file_and_line() {
        let e = Config::merge([("x.toml", "[trial]\nsettle_secs = 1\ndeadline = 3\n")]).unwrap_err();
        let text = e.to_string();
        assert!(text.starts_with("x.toml:3: "), "{text}");
        assert!(text.contains("deadline"), "{text}");
        assert!(
            Config::merge([("x.toml", "[nope]\n")])
                .unwrap_err()
                .to_string()
                .contains("nope")
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("[trial]\ndeadline_secs = 1", "trial.deadline_secs"),
            ("[trial]\nsettle_secs = 900", "trial.settle_secs"),
            ("[fetch]\nretry_limit = 0", "fetch.retry_limit"),
            (
                "[fetch]\nretry_first_ms = 50\nretry_max_ms = 10",
                "fetch.retry_max_ms",
            ),
        ] {
            let e = Config::merge([("x", text)]).unwrap_err().to_string();
            assert!(e.contains(key), "{e}");
        }
    }
}
