//! Addresses that nodes will fetch an image from: absolute http and https URLs (RFC 3986). Pure.

/// Characters besides letters and digits that a URL may have; the rest is percent-encoded.
const MARKS: &str = "-._~:/?#[]@!$&'()*+,;=%";

/// Checks the address of a file.
///
/// # Errors
/// What is wrong with it, and what was expected.
pub fn check(url: &str) -> Result<(), String> {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || MARKS.contains(*c);
    if let Some(c) = url.chars().find(|c| !allowed(c)) {
        return Err(format!(
            "character {c:?} is not allowed in a URL; percent-encode it or leave it out"
        ));
    }
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or("expected an absolute URL, https://HOST/… or http://HOST/…")?;
    if url.contains('#') {
        return Err("a fragment (#…) never reaches a web server; leave it out".to_owned());
    }
    let escapes_whole = url.split('%').skip(1).all(|s| {
        s.as_bytes()
            .iter()
            .take(2)
            .filter(|b| b.is_ascii_hexdigit())
            .count()
            == 2
    });
    if !escapes_whole {
        return Err("expected two hexadecimal digits after each %".to_owned());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or("");
    host_and_port(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// Checks an address that a file name will be added to.
///
/// # Errors
/// As [`check`].
pub fn check_base(url: &str) -> Result<(), String> {
    check(url)?;
    if url.contains('?') {
        return Err(
            "expected the address of a directory; update.img is added to it, so a query (?…) cannot be kept"
                .to_owned(),
        );
    }
    Ok(())
}

fn host_and_port(text: &str) -> Result<(), String> {
    let port = match text.strip_prefix('[') {
        Some(v6) => {
            let (address, after) = v6.split_once(']').ok_or("expected ] after an IPv6 address")?;
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("{address:?} is not an IPv6 address"));
            }
            // Anything but a port after the bracket is refused as one.
            (!after.is_empty()).then(|| after.strip_prefix(':').unwrap_or(""))
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(h, p)| (h, Some(p)));
            let label =
                |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
            if !host.strip_suffix('.').unwrap_or(host).split('.').all(label) {
                return Err(format!("{host:?} is not the name or address of a host"));
            }
            port
        }
    };
    let valid = |p: &str| p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok_and(|n| n > 0);
    match port {
        Some(p) if !valid(p) => Err(format!("port {p:?}: expected a number from 1 to 65535")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_nodes_can_fetch_from() {
        for url in [
            "http://h/update.img",
            "https://images.example:8443/a/b%20c/~x/update.img",
            "https://10.0.0.1",
            "https://[fd00::1]/1",
            "https://[fd00::1]:8080/1",
            "https://user:pw@h.example./1",
            "https://h/1/",
        ] {
            assert_eq!(check_base(url), Ok(()), "{url}");
        }
        assert_eq!(check("https://h/update.img?sig=a%2Fb&x=1"), Ok(()));
        assert!(check_base("https://h/?x").unwrap_err().contains("query"));
    }

    #[test]
    fn addresses_that_are_none() {
        for (url, why) in [
            ("", "absolute URL"),
            ("nota", "absolute URL"),
            ("ftp://x", "absolute URL"),
            ("file:///x", "absolute URL"),
            ("//h/x", "absolute URL"),
            ("HTTP://h/x", "absolute URL"),
            ("http:/h", "absolute URL"),
            ("https://h/a b", "character ' '"),
            ("https://h/\u{7f}", "character '\\u{7f}'"),
            ("x\"\nfoo: bar", "character '\"'"),
            ("https://h/\nfoo", "character '\\n'"),
            ("https://h/\u{a0}", "character '\\u{a0}'"),
            ("https://bücher.example/", "character 'ü'"),
            ("https://h/<x>", "character '<'"),
            ("https://h/a\\b", "character '\\\\'"),
            ("https://", "not the name"),
            ("https:///x", "not the name"),
            ("https://:80/x", "not the name"),
            ("https://a..b/x", "not the name"),
            ("https://h%20x/", "not the name"),
            ("https://h:/x", "port"),
            ("https://h:0/x", "port"),
            ("https://h:65536/x", "port"),
            ("https://h:+8/x", "port"),
            ("https://h:80:80/x", "port"),
            ("https://[::1/x", "expected ]"),
            ("https://[x]/x", "not an IPv6"),
            ("https://[::1]80/x", "port"),
            ("https://h/%2", "hexadecimal"),
            ("https://h/%zz", "hexadecimal"),
            ("https://h/x#y", "fragment"),
        ] {
            let found = check(url).unwrap_err();
            assert!(found.contains(why), "{url:?}: {found}");
        }
    }
}
