//! Reads `.repo` files: where repositories are, nothing else.

/// An enabled section of a `.repo` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    /// Name in brackets.
    pub(super) id: String,
    /// Settings that say where and how to fetch, in the file's order.
    pub(super) settings: Vec<(String, String)>,
}

/// Settings that are taken over. Trust (`gpgcheck`, `gpgkey`) comes from the recipe alone.
const TAKEN: [&str; 17] = [
    "baseurl",
    "mirrorlist",
    "metalink",
    "proxy",
    "proxy_username",
    "proxy_password",
    "username",
    "password",
    "sslverify",
    "sslcacert",
    "sslclientcert",
    "sslclientkey",
    "priority",
    "cost",
    "exclude",
    "excludepkgs",
    "includepkgs",
];

/// The enabled sections that have a location, or what is wrong with the file.
pub(super) fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<(Section, bool)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(id) = trimmed.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let section = Section {
                id: id.trim().to_owned(),
                settings: Vec::new(),
            };
            sections.push((section, true));
            continue;
        }
        let Some((section, enabled)) = sections.last_mut() else {
            return Err(format!(
                "line {}: expected a section such as [name], found {trimmed:?}",
                number + 1
            ));
        };
        if line.starts_with([' ', '\t']) {
            // A continued value, e.g. a second baseurl.
            if let Some((_, value)) = section.settings.last_mut() {
                value.push(' ');
                value.push_str(trimmed);
            }
            continue;
        }
        let Some((key, value)) = trimmed.split_once('=') else {
            return Err(format!(
                "line {}: expected key=value, found {trimmed:?}",
                number + 1
            ));
        };
        let (key, value) = (key.trim(), value.trim());
        if key == "enabled" {
            *enabled = !matches!(value.to_ascii_lowercase().as_str(), "0" | "no" | "false" | "off");
        }
        // Others are kept for the moment too, so that their continued lines have a place to go.
        section.settings.push((key.to_owned(), value.to_owned()));
    }
    let found: Vec<Section> = sections
        .into_iter()
        .filter(|(s, enabled)| *enabled && s.id != "main")
        .map(|(mut s, _)| {
            s.settings.retain(|(key, _)| TAKEN.contains(&key.as_str()));
            s
        })
        .filter(|s| has_location(&s.settings))
        .collect();
    if found.is_empty() {
        return Err("no enabled repository with a baseurl, mirrorlist or metalink".to_owned());
    }
    Ok(found)
}

fn has_location(settings: &[(String, String)]) -> bool {
    settings
        .iter()
        .any(|(k, v)| matches!(k.as_str(), "baseurl" | "mirrorlist" | "metalink") && !v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_only_and_only_of_enabled_sections() {
        let text = "# c\n[main]\nx=1\n[a]\nname=A\nbaseurl = http://one/\n  http://two/\ngpgcheck=0\ngpgkey=file:///k\n\
                    [b]\nenabled=0\nbaseurl=http://b/\n[c]\nmetalink=https://m/?a=b\nsslverify=0\n";
        let got = parse(text).unwrap();
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].id, "a");
        assert_eq!(got[0].settings, [pair("baseurl", "http://one/ http://two/")]);
        assert_eq!(
            got[1].settings,
            [pair("metalink", "https://m/?a=b"), pair("sslverify", "0")]
        );
    }

    #[test]
    fn nothing_usable_is_an_error() {
        for text in ["", "[a]\nenabled=no\nbaseurl=http://a/\n", "[a]\nname=x\n"] {
            assert!(
                parse(text).unwrap_err().starts_with("no enabled repository"),
                "{text:?}"
            );
        }
        assert_eq!(
            parse("<html>").unwrap_err(),
            "line 1: expected a section such as [name], found \"<html>\""
        );
        assert_eq!(
            parse("[a]\nrubbish\n").unwrap_err(),
            "line 2: expected key=value, found \"rubbish\""
        );
    }
}
