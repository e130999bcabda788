//! The text outputs: checksums, package list, the ready-made OS resource, the summary for scripts.

use crate::plan::Partition;
use crate::rootfs::dnf::Package;
use os_proto::digest::Sha256Digest;
use serde::Serialize;
use std::fmt::Write as _;

/// Where nodes find the image, until someone says it.
pub const URL_PLACEHOLDER: &str = "https://REPLACE-ME.invalid/update.img";

/// `packages.txt`: one line per package, sorted; columns separated by tabs.
pub fn packages(list: &[Package]) -> String {
    let mut sorted: Vec<&Package> = list.iter().collect();
    sorted.sort();
    let mut out = String::from("# name\tepoch:version-release\tarch\trepository\tsha256\tsigner\n");
    if list.is_empty() {
        out.push_str("# built from a directory: no packages known\n");
    }
    for p in sorted {
        let or_dash = |s: &Option<String>| s.clone().unwrap_or_else(|| "-".to_owned());
        let _ = writeln!(
            out,
            "{}\t{}:{}-{}\t{}\t{}\t{}\t{}",
            p.name,
            p.epoch,
            p.version,
            p.release,
            p.arch,
            p.repo,
            or_dash(&p.sha256),
            or_dash(&p.signer)
        );
    }
    out
}

/// `SHA256SUMS`, as sha256sum writes and reads it.
pub fn sums(list: &[(String, Sha256Digest)]) -> String {
    let mut sorted: Vec<&(String, Sha256Digest)> = list.iter().collect();
    sorted.sort();
    sorted.iter().fold(String::new(), |mut out, (name, digest)| {
        let _ = writeln!(out, "{digest}  {name}");
        out
    })
}

/// Reads `SHA256SUMS`.
///
/// # Errors
/// A message that names the line.
pub fn parse_sums(text: &str) -> Result<Vec<(String, Sha256Digest)>, String> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let bad = |what: &str| format!("line {}: {what}", i + 1);
        let (digest, name) = line
            .split_once(' ')
            .ok_or_else(|| bad("expected a checksum, a blank and a name"))?;
        let name = name.strip_prefix([' ', '*']).unwrap_or(name);
        if name.is_empty() || name.contains('/') || name == ".." {
            return Err(bad(&format!("{name:?} is not the name of a file here")));
        }
        out.push((name.to_owned(), digest.parse().map_err(|e| bad(&format!("{e}")))?));
    }
    if out.is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(out)
}

/// `os.yaml`: the resource that rolls this image out. `url` as given, else a placeholder that cannot be overlooked.
pub fn os_resource(os_id: &str, pretty_name: &str, checksum: &Sha256Digest, url: Option<&str>) -> String {
    let plain_http = url.is_some_and(|u| u.starts_with("http://"));
    let note = match url {
        None => {
            "# EDIT imageurl: put update.img on a web server that the nodes reach, and give its address here.\n"
        }
        Some(_) if plain_http => {
            "# imageurl is plain http: flagSafe accepts that, the checksum still protects the content.\n"
        }
        Some(_) => "",
    };
    format!(
        "# Rolls {pretty_name} out to the worker nodes: kubectl apply -f os.yaml\n\
         {note}apiVersion: upgrade.openeuler.org/v1alpha1\n\
         kind: OS\n\
         metadata:\n\
         \x20 name: {name}\n\
         spec:\n\
         \x20 imagetype: disk\n\
         \x20 opstype: upgrade\n\
         \x20 osversion: {version}\n\
         \x20 imageurl: {url}\n\
         \x20 checksum: {checksum}\n\
         \x20 flagSafe: {plain_http}\n\
         \x20 mtls: false\n\
         \x20 containerimage: \"\"\n\
         \x20 evictpodforce: true\n\
         \x20 maxunavailable: 1\n",
        name = object_name(os_id),
        version = quoted(pretty_name),
        url = quoted(url.unwrap_or(URL_PLACEHOLDER)),
    )
}

/// A name that the API server accepts (RFC 1123 subdomain of one label).
fn object_name(os_id: &str) -> String {
    let dashed: String = os_id
        .chars()
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .take(50)
        .collect();
    let name = dashed.trim_matches('-');
    if name.is_empty() {
        "slipway".to_owned()
    } else {
        name.to_owned()
    }
}

/// A double-quoted YAML string.
fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

/// `build.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Build {
    /// Version of this format.
    pub schema: u32,
    /// PRETTY_NAME of the image.
    pub pretty_name: String,
    /// VERSION_ID of the image.
    pub version: String,
    /// Architecture.
    pub arch: String,
    /// Time stamp of everything, Unix seconds.
    pub source_date_epoch: u64,
    /// Version of the builder.
    pub builder: String,
    /// Size of the update image in bytes.
    pub image_size: u64,
    /// SHA-256 of the update image: the `checksum` of a roll-out.
    pub image_sha256: Sha256Digest,
    /// How full a slot is, percent.
    pub slot_fill_percent: u64,
    /// Number of packages.
    pub packages: usize,
    /// Repositories whose packages were not verified.
    pub unverified_repositories: Vec<String>,
    /// Output files but this one and the list of checksums.
    pub files: Vec<OutputFile>,
    /// Partition table in physical order.
    pub partitions: Vec<Partition>,
}

/// One output file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputFile {
    /// Name.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256.
    pub sha256: Sha256Digest,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u8) -> Sha256Digest {
        Sha256Digest([n; 32])
    }

    #[test]
    fn the_resource_says_what_must_be_edited() {
        insta::assert_snapshot!(os_resource("acme-os", "Acme OS 1.0", &digest(1), None));
    }

    #[test]
    fn the_resource_with_an_address_is_ready() {
        insta::assert_snapshot!(os_resource(
            "x.y_z",
            "X \"1\"",
            &digest(2),
            Some("http://h/update.img")
        ));
    }

    #[test]
    fn object_names_are_valid() {
        assert_eq!(object_name("acme.os_"), "acme-os");
        assert_eq!(object_name("---"), "slipway");
    }

    #[test]
    fn checksums_go_round() {
        let list = vec![("b".to_owned(), digest(2)), ("a".to_owned(), digest(1))];
        let text = sums(&list);
        assert!(text.starts_with(&format!("{}  a\n", digest(1))));
        let mut sorted = list;
        sorted.sort();
        assert_eq!(parse_sums(&text).unwrap(), sorted);
        assert_eq!(parse_sums(&text.replace("  ", " *")).unwrap(), sorted);
        for bad in ["", "x  y\n", "nothing\n", &format!("{}  ../a\n", digest(1))] {
            assert!(parse_sums(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn packages_are_sorted() {
        let p = |name: &str| Package {
            name: name.into(),
            epoch: 0,
            version: "1".into(),
            release: "2".into(),
            arch: "noarch".into(),
            repo: "r".into(),
            sha256: None,
            signer: None,
        };
        let text = packages(&[p("b"), p("a")]);
        assert_eq!(text.lines().nth(1), Some("a\t0:1-2\tnoarch\tr\t-\t-"));
        assert!(packages(&[]).contains("no packages known"));
    }
}
