//! `[[users]]`.

use super::User;
use super::reader::{At, Reader, Table};

/// Reads the users; names, ids, hashes and keys are checked, groups against the image only at build time.
pub(super) fn users<'t>(r: &mut Reader<'t>, top: &Table<'t>) -> Vec<User> {
    let mut out: Vec<User> = Vec::new();
    for t in r.tables(top, "users") {
        r.only(
            &t,
            &[
                "name",
                "uid",
                "groups",
                "shell",
                "home",
                "password_hash",
                "ssh_keys",
            ],
        );
        let name = name(r, &t, &out);
        let uid = uid(r, &t, name.as_deref(), &out);
        let groups = r.strings(&t, "groups", false).unwrap_or_default();
        for g in &groups {
            if !is_name(&g.value) {
                r.error(
                    "CFG011",
                    g.offset,
                    format!("{} {:?} is not a group name", g.key, g.value),
                );
            }
        }
        let shell = absolute(r, &t, "shell");
        let home = absolute(r, &t, "home");
        let password_hash = hash(r, &t);
        let keys = r.strings(&t, "ssh_keys", false).unwrap_or_default();
        for k in &keys {
            ssh_key(r, k);
        }
        if let Some(name) = name {
            out.push(User {
                name,
                uid,
                groups: groups.into_iter().map(|g| g.value).collect(),
                shell,
                home,
                password_hash,
                ssh_keys: keys.into_iter().map(|k| k.value.trim().to_owned()).collect(),
            });
        }
    }
    out
}

fn is_name(s: &str) -> bool {
    let mut chars = s.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
    first
        && s.len() <= 32
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
}

fn name<'t>(r: &mut Reader<'t>, t: &Table<'t>, seen: &[User]) -> Option<String> {
    if Reader::has(t, "name").is_none() {
        r.missing(t, "name");
        return None;
    }
    let n = r.string(t, "name")?;
    if !is_name(&n.value) {
        let m = format!(
            "{} {:?}: expected lower-case letters, digits, _ and -, at most 32",
            n.key, n.value
        );
        r.error("CFG011", n.offset, m);
    }
    if seen.iter().any(|u| u.name == n.value) {
        r.error(
            "CFG011",
            n.offset,
            format!("{} {:?} is given twice", n.key, n.value),
        );
    }
    if matches!(n.value.as_str(), "nobody" | "os-agent") {
        r.error("CFG011", n.offset, format!("{} {:?} is reserved", n.key, n.value));
    }
    Some(n.value)
}

fn uid<'t>(r: &mut Reader<'t>, t: &Table<'t>, name: Option<&str>, seen: &[User]) -> Option<u32> {
    let n = r.number(t, "uid", 0, 65_533)?;
    let uid = u32::try_from(n.value).ok()?;
    if (uid == 0) != (name == Some("root")) {
        r.error(
            "CFG011",
            n.offset,
            format!("{} {uid}: 0 belongs to root and to no other", n.key),
        );
    }
    if let Some(u) = seen.iter().find(|u| u.uid == Some(uid)) {
        r.error(
            "CFG011",
            n.offset,
            format!("{} {uid} is already that of {:?}", n.key, u.name),
        );
    }
    Some(uid)
}

fn absolute<'t>(r: &mut Reader<'t>, t: &Table<'t>, key: &str) -> Option<String> {
    let p = r.string(t, key)?;
    if !p.value.starts_with('/') || p.value.contains([':', '\n']) || p.value.split('/').any(|c| c == "..") {
        r.error(
            "CFG011",
            p.offset,
            format!("{} {:?}: expected an absolute path", p.key, p.value),
        );
        return None;
    }
    Some(p.value)
}

/// The hash itself never appears in a message.
fn hash<'t>(r: &mut Reader<'t>, t: &Table<'t>) -> Option<String> {
    let h = r.string(t, "password_hash")?;
    let fields: Vec<&str> = h.value.split('$').collect();
    let scheme = if h.value.starts_with('$') {
        fields.get(1).copied()
    } else {
        None
    };
    let clean = h.value.bytes().all(|b| b.is_ascii_graphic() && b != b':');
    let shape = fields.len() >= 4 && fields.last().is_some_and(|f| f.len() >= 22);
    match scheme {
        Some("6" | "5" | "y" | "gy" | "7" | "2a" | "2b" | "2y") if clean && shape => {}
        Some("1") if clean && shape => {
            r.warn(
                "SEC001",
                h.offset,
                format!(
                    "{}: an MD5 hash is quickly guessed; openssl passwd -6 makes a better one",
                    h.key
                ),
            );
        }
        _ => {
            let m = format!(
                "{} is not a crypt(3) hash (expected $6$…, $y$…, without \":\"); hint: openssl passwd -6",
                h.key
            );
            r.error("CFG009", h.offset, m);
        }
    }
    Some(h.value)
}

fn ssh_key(r: &mut Reader<'_>, k: &At<String>) {
    const KINDS: [&str; 4] = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"];
    let line = k.value.trim();
    let has_kind = line
        .split_whitespace()
        .any(|w| KINDS.iter().any(|p| w.starts_with(p)));
    if line.contains(char::is_control) || !has_kind {
        r.error(
            "CFG011",
            k.offset,
            format!(
                "{}: expected one line as in authorized_keys, such as \"ssh-ed25519 AAAA… me\"",
                k.key
            ),
        );
    }
    if line.contains("PRIVATE KEY") {
        r.error("CFG011", k.offset, format!("{}: this is a private key", k.key));
    }
}
