//! `/etc/passwd`, `/etc/group` and their shadows as text. Pure but for [`read`].

use camino::Utf8Path;

/// A file of `/etc` in a tree; empty where it is missing.
pub fn read(root: &Utf8Path, name: &str) -> String {
    fs_err::read(root.join("etc").join(name))
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default()
}

/// The names in a colon-separated file.
pub fn names(text: &str) -> Vec<&str> {
    fields(text).map(|f| f[0]).collect()
}

/// Numeric id of a name in passwd or group (the third field).
pub fn id_of(text: &str, name: &str) -> Option<u32> {
    fields(text).find(|f| f[0] == name)?.get(2)?.parse().ok()
}

/// Primary group of a user in passwd.
pub fn primary_group(passwd: &str, name: &str) -> Option<u32> {
    fields(passwd).find(|f| f[0] == name)?.get(3)?.parse().ok()
}

/// The lowest id from `from` on that no line uses.
pub fn free_id(texts: &[&str], from: u32) -> u32 {
    let used: std::collections::BTreeSet<u32> = texts
        .iter()
        .flat_map(|t| fields(t))
        .filter_map(|f| f.get(2)?.parse().ok())
        .collect();
    (from..).find(|id| !used.contains(id)).unwrap_or(from)
}

/// Replaces the line of `name`, or adds it at the end.
pub fn set_line(text: &str, name: &str, line: &str) -> String {
    let mut out = String::new();
    let mut done = false;
    for old in text.lines() {
        if old.split(':').next() == Some(name) {
            if !done {
                out.push_str(line);
                out.push('\n');
            }
            done = true;
        } else {
            out.push_str(old);
            out.push('\n');
        }
    }
    if !done {
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// The line of a name.
pub fn line_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find(|l| l.split(':').next() == Some(name))
}

/// Adds `user` to the members of `group`; `None` where the group is missing.
pub fn add_member(group_text: &str, group: &str, user: &str) -> Option<String> {
    let line = line_of(group_text, group)?;
    let (head, members) = line.rsplit_once(':')?;
    if members.split(',').any(|m| m == user) {
        return Some(group_text.to_owned());
    }
    let members = if members.is_empty() {
        user.to_owned()
    } else {
        format!("{members},{user}")
    };
    Some(set_line(group_text, group, &format!("{head}:{members}")))
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
        .map(|l| l.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1::/bin:/sbin/nologin\nann:x:1000:1001::/home/ann:/bin/sh\n";

    #[test]
    fn lookups() {
        assert_eq!(names(PASSWD), ["root", "bin", "ann"]);
        assert_eq!(id_of(PASSWD, "ann"), Some(1000));
        assert_eq!(primary_group(PASSWD, "ann"), Some(1001));
        assert_eq!(id_of(PASSWD, "an"), None);
        assert_eq!(free_id(&[PASSWD, "g:x:1001:\n"], 1000), 1002);
    }

    #[test]
    fn lines_are_replaced_or_added() {
        assert_eq!(set_line("a:1\nb:2\n", "a", "a:3"), "a:3\nb:2\n");
        assert_eq!(set_line("a:1\n", "c", "c:3"), "a:1\nc:3\n");
        assert_eq!(set_line("a:1", "c", "c:3"), "a:1\nc:3\n");
    }

    #[test]
    fn members() {
        assert_eq!(
            add_member("wheel:x:10:\n", "wheel", "ann").as_deref(),
            Some("wheel:x:10:ann\n")
        );
        assert_eq!(
            add_member("wheel:x:10:bob\n", "wheel", "ann").as_deref(),
            Some("wheel:x:10:bob,ann\n")
        );
        assert_eq!(
            add_member("wheel:x:10:ann\n", "wheel", "ann").as_deref(),
            Some("wheel:x:10:ann\n")
        );
        assert_eq!(add_member("wheel:x:10:\n", "docker", "ann"), None);
    }
}
