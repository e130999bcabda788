//! Users and groups by name, without the C library's name service: the shipped program is static, and what that service loads
//! from the node belongs to the node's own C library (a static program that loads it crashes).

/// Local groups, as group(5) describes it.
const GROUPS: &str = "/etc/group";
/// Local users, as passwd(5) describes it.
const USERS: &str = "/etc/passwd";

fn read(path: &str) -> String {
    std::fs::read(path)
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default()
}

/// Number of a local group.
pub fn group(name: &str) -> Option<u32> {
    group_in(&read(GROUPS), name)
}

/// Whether a local group lists a local user as its member. Groups that a directory service alone knows are not seen.
pub fn is_member(uid: u32, gid: u32) -> bool {
    is_member_in(&read(USERS), &read(GROUPS), uid, gid)
}

fn group_in(groups: &str, name: &str) -> Option<u32> {
    let line = groups.lines().find(|l| l.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn is_member_in(users: &str, groups: &str, uid: u32, gid: u32) -> bool {
    let number = |l: &str| l.split(':').nth(2).and_then(|n| n.parse::<u32>().ok());
    let Some(user) = users
        .lines()
        .find(|l| number(l) == Some(uid))
        .and_then(|l| l.split(':').next())
    else {
        return false;
    };
    groups
        .lines()
        .filter(|l| number(l) == Some(gid))
        .filter_map(|l| l.split(':').nth(3))
        .flat_map(|members| members.split(','))
        .any(|m| m.trim() == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str =
        "root:x:0:\nbroken\nos-agent:x:990:op,ops2, op3\n+\nother:x:not-a-number:op\nempty:x:991:\n";
    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nop:x:1000:1000::/:/bin/sh\nop3:x:1003:1000::/:/bin/sh\nbad\nop4:x:1004:990::/:/bin/sh\n";

    #[test]
    fn groups_have_numbers() {
        assert_eq!(group_in(GROUP, "os-agent"), Some(990));
        for absent in ["", "os", "broken", "other", "+"] {
            assert_eq!(group_in(GROUP, absent), None, "{absent}");
        }
        assert_eq!(group_in("", "root"), None);
    }

    #[test]
    fn members_are_those_whom_the_group_lists() {
        for (uid, gid, is) in [
            (1000, 990, true),
            (1003, 990, true),
            (1000, 991, false),
            // Their own group by passwd is what the caller's credentials say.
            (1004, 990, false),
            // No such user: no name that could be listed.
            (12345, 990, false),
            (0, 990, false),
        ] {
            assert_eq!(is_member_in(PASSWD, GROUP, uid, gid), is, "{uid} in {gid}");
        }
    }
}
