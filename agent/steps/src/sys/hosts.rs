//! Hosts by name, without the C library's name service: the shipped program is static, and what that service loads from the node
//! belongs to the node's own C library (a static program that loads it crashes).

use std::net::IpAddr;

/// Addresses of a host: /etc/hosts, then the servers of /etc/resolv.conf, both read anew each time.
///
/// # Errors
/// No server is configured, none answers, or the name does not exist.
pub async fn addresses(host: &str) -> std::io::Result<Vec<IpAddr>> {
    use hickory_resolver::TokioResolver;
    use hickory_resolver::config::LookupIpStrategy;
    if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
        return Ok(vec![ip]);
    }
    let fail = |what: &str, e: &dyn std::fmt::Display| std::io::Error::other(format!("{what}: {e}"));
    let mut b = TokioResolver::builder_tokio().map_err(|e| fail("/etc/resolv.conf", &e))?;
    b.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let r = b.build().map_err(|e| fail("/etc/resolv.conf", &e))?;
    let found = r
        .lookup_ip(host)
        .await
        .map_err(|e| fail(&format!("no address for {host}"), &e))?;
    Ok(found.iter().collect())
}

/// [`addresses`] for HTTP clients.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names;

impl reqwest::dns::Resolve for Names {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async move {
            let list = addresses(name.as_str()).await?;
            let addrs: reqwest::dns::Addrs =
                Box::new(list.into_iter().map(|ip| std::net::SocketAddr::new(ip, 0)));
            Ok(addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_server_and_hosts_come_from_the_file() {
        let v4: IpAddr = "192.0.2.7".parse().unwrap();
        assert_eq!(addresses("192.0.2.7").await.unwrap(), [v4]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(addresses("[2001:db8::1]").await.unwrap(), [v6]);
        let local = addresses("localhost").await.unwrap();
        assert!(
            local.iter().all(IpAddr::is_loopback) && !local.is_empty(),
            "{local:?}"
        );
    }
}
