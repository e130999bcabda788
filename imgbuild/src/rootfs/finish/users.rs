//! `[[users]]`: accounts written straight into the tree's own files. No program sees a password hash.

use super::super::{accounts, io_error, write_new};
use super::{bad_owner, give, in_root, owner};
use crate::epoch::source_date_epoch;
use crate::error::Result;
use crate::recipe::{Recipe, User};
use camino::Utf8Path;

/// First number for people.
const FIRST_ID: u32 = 1000;

/// passwd, group and their shadows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tables {
    passwd: String,
    group: String,
    shadow: String,
    gshadow: String,
}

/// Adds and changes users.
pub(super) fn apply(recipe: &Recipe, root: &Utf8Path) -> Result<()> {
    if recipe.users.is_empty() {
        return Ok(());
    }
    let mut tables = Tables {
        passwd: accounts::read(root, "passwd"),
        group: accounts::read(root, "group"),
        shadow: accounts::read(root, "shadow"),
        gshadow: accounts::read(root, "gshadow"),
    };
    let today = source_date_epoch() / 86_400;
    for (i, user) in recipe.users.iter().enumerate() {
        add(&mut tables, user, today)
            .map_err(|why| bad_owner(&format!("users[{i}] {:?}", user.name), &why))?;
    }
    let secret = fs_err::metadata(root.join("etc/shadow")).map_or(0o600, |m| {
        std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o7777
    });
    // What an ordinary user has unpacked has his group, which becomes root's.
    let secret_group = fs_err::metadata(root.join("etc/shadow"))
        .ok()
        .filter(|_| rustix::process::geteuid().is_root())
        .map_or(0, |m| std::os::unix::fs::MetadataExt::gid(&m));
    for (name, text, mode, gid) in [
        ("passwd", &tables.passwd, 0o644, 0),
        ("group", &tables.group, 0o644, 0),
        ("shadow", &tables.shadow, secret, secret_group),
        ("gshadow", &tables.gshadow, secret, secret_group),
    ] {
        if name != "gshadow" || !text.is_empty() {
            let at = in_root(root, &format!("etc/{name}"))?;
            write_new(&at, text.as_bytes(), mode)?;
            give(&at, 0, gid)?;
        }
    }
    recipe.users.iter().try_for_each(|user| home(root, user, &tables))
}

/// One user into the tables.
fn add(t: &mut Tables, user: &User, today: u64) -> std::result::Result<(), String> {
    let old: Vec<String> = accounts::line_of(&t.passwd, &user.name)
        .unwrap_or_default()
        .split(':')
        .map(str::to_owned)
        .collect();
    let old = |i: usize| old.get(i).filter(|s| !s.is_empty()).cloned();
    let is_root = user.name == "root";
    let uid = match (user.uid, old(2).and_then(|s| s.parse().ok())) {
        _ if is_root => 0,
        (Some(uid), _) => uid,
        (None, Some(uid)) => uid,
        (None, None) => accounts::free_id(&[&t.passwd, &t.group], FIRST_ID),
    };
    if let Some(other) = accounts::names(&t.passwd)
        .into_iter()
        .find(|n| *n != user.name && accounts::id_of(&t.passwd, n) == Some(uid))
    {
        return Err(format!("uid {uid} belongs to {other:?} already; choose another"));
    }
    let gid = match (
        old(3).and_then(|s| s.parse().ok()),
        accounts::id_of(&t.group, &user.name),
    ) {
        (Some(gid), _) => gid,
        (None, Some(gid)) => gid,
        (None, None) => {
            let taken = accounts::names(&t.group)
                .iter()
                .any(|n| accounts::id_of(&t.group, n) == Some(uid));
            let gid = if taken {
                accounts::free_id(&[&t.passwd, &t.group], FIRST_ID)
            } else {
                uid
            };
            t.group = accounts::set_line(&t.group, &user.name, &format!("{}:x:{gid}:", user.name));
            if !t.gshadow.is_empty() {
                t.gshadow = accounts::set_line(&t.gshadow, &user.name, &format!("{}:!::", user.name));
            }
            gid
        }
    };
    let home = home_of(user, old(5));
    let shell = user
        .shell
        .clone()
        .or_else(|| old(6))
        .unwrap_or_else(|| "/bin/bash".to_owned());
    let comment = old(4).unwrap_or_default();
    let line = format!("{}:x:{uid}:{gid}:{comment}:{home}:{shell}", user.name);
    t.passwd = accounts::set_line(&t.passwd, &user.name, &line);
    if user.password_hash.is_some() || accounts::line_of(&t.shadow, &user.name).is_none() {
        // `*`: no password will do, but the account is not locked, so that keys work.
        let hash = user.password_hash.as_deref().unwrap_or("*");
        let line = format!("{}:{hash}:{today}:0:99999:7:::", user.name);
        t.shadow = accounts::set_line(&t.shadow, &user.name, &line);
    }
    for group in &user.groups {
        t.group = accounts::add_member(&t.group, group, &user.name)
            .ok_or_else(|| format!("group {group:?} not provided by any package"))?;
        if let Some(gshadow) = accounts::add_member(&t.gshadow, group, &user.name) {
            t.gshadow = gshadow;
        }
    }
    Ok(())
}

fn home_of(user: &User, old: Option<String>) -> String {
    user.home
        .clone()
        .or(old)
        .unwrap_or_else(|| match user.name.as_str() {
            "root" => "/root".to_owned(),
            name => format!("/home/{name}"),
        })
}

/// Makes the home and puts the keys there.
fn home(root: &Utf8Path, user: &User, t: &Tables) -> Result<()> {
    let old = accounts::line_of(&t.passwd, &user.name)
        .and_then(|l| l.split(':').nth(5))
        .map(str::to_owned);
    let at = in_root(root, &home_of(user, old))?;
    let (uid, gid) = owner(root, &user.name).map_err(|why| bad_owner(&user.name, &why))?;
    if !at.exists() {
        make_dir(&at, uid, gid)?;
    }
    if user.ssh_keys.is_empty() {
        return Ok(());
    }
    let ssh = at.join(".ssh");
    make_dir(&ssh, uid, gid)?;
    let file = ssh.join("authorized_keys");
    let text: String = user.ssh_keys.iter().map(|k| format!("{k}\n")).collect();
    write_new(&file, text.as_bytes(), 0o600)?;
    give(&file, uid, gid)
}

fn make_dir(at: &Utf8Path, uid: u32, gid: u32) -> Result<()> {
    let make = || -> std::io::Result<()> {
        fs_err::create_dir_all(at)?;
        fs_err::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o700))
    };
    make().map_err(|e| io_error("cannot make a home", &e))?;
    give(at, uid, gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        Tables {
            passwd: "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1::/bin:/sbin/nologin\n".to_owned(),
            group: "root:x:0:\nbin:x:1:\nwheel:x:10:\n".to_owned(),
            shadow: "root:*:1::::::\nbin:*:1::::::\n".to_owned(),
            gshadow: "root:*::\nbin:*::\nwheel:*::\n".to_owned(),
        }
    }

    fn user(name: &str) -> User {
        User {
            name: name.to_owned(),
            uid: None,
            groups: vec![],
            shell: None,
            home: None,
            password_hash: None,
            ssh_keys: vec![],
        }
    }

    #[test]
    fn a_new_user() {
        let mut t = tables();
        let mut ann = user("ann");
        ann.groups = vec!["wheel".to_owned()];
        ann.password_hash = Some("$6$a/b$c.d".to_owned());
        add(&mut t, &ann, 19_675).unwrap();
        assert!(t.passwd.ends_with("\nann:x:1000:1000::/home/ann:/bin/bash\n"));
        assert_eq!(t.group, "root:x:0:\nbin:x:1:\nwheel:x:10:ann\nann:x:1000:\n");
        assert!(t.shadow.ends_with("\nann:$6$a/b$c.d:19675:0:99999:7:::\n"));
        assert_eq!(t.gshadow, "root:*::\nbin:*::\nwheel:*::ann\nann:!::\n");
        add(&mut t, &user("bob"), 1).unwrap();
        assert!(t.passwd.ends_with("\nbob:x:1001:1001::/home/bob:/bin/bash\n"));
        assert!(t.shadow.ends_with("\nbob:*:1:0:99999:7:::\n"));
    }

    #[test]
    fn root_keeps_what_is_not_named() {
        let mut t = tables();
        let mut root = user("root");
        root.password_hash = Some("$y$x".to_owned());
        add(&mut t, &root, 2).unwrap();
        assert_eq!(t.passwd, tables().passwd);
        assert!(t.shadow.starts_with("root:$y$x:2:0:99999:7:::\nbin:"));
    }

    #[test]
    fn refusals() {
        let mut t = tables();
        let mut ann = user("ann");
        ann.groups = vec!["docker".to_owned()];
        assert_eq!(
            add(&mut t, &ann, 1).unwrap_err(),
            "group \"docker\" not provided by any package"
        );
        let mut eve = user("eve");
        eve.uid = Some(1);
        assert_eq!(
            add(&mut t, &eve, 1).unwrap_err(),
            "uid 1 belongs to \"bin\" already; choose another"
        );
    }
}
