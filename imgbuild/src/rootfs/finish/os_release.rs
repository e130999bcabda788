//! `/usr/lib/os-release`: which image this is. Pure.

use crate::recipe::Recipe;

/// Where it lies; `/etc/os-release` is a link to it.
pub(super) const PATH: &str = "usr/lib/os-release";

/// The text, given the base distribution's own: its identity stays visible as `ID_LIKE`.
pub(super) fn text(recipe: &Recipe, base: &str) -> String {
    let id = recipe.os_id();
    let mut like: Vec<&str> = Vec::new();
    for key in ["ID", "ID_LIKE"] {
        for word in value(base, key).unwrap_or_default().split_whitespace() {
            if word != id && !like.contains(&word) {
                like.push(word);
            }
        }
    }
    let mut out = format!(
        "NAME={}\nID={id}\nVERSION_ID={}\nVERSION={}\nPRETTY_NAME={}\n",
        quote(&recipe.name),
        quote(&recipe.version),
        quote(&recipe.version),
        quote(&recipe.pretty_name()),
    );
    if !like.is_empty() {
        out.push_str(&format!("ID_LIKE={}\n", quote(&like.join(" "))));
    }
    out
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix('='))
        .map(|v| v.trim().trim_matches(['"', '\'']))
}

/// In double quotes, as os-release(5) wants it for anything but plain words.
fn quote(text: &str) -> String {
    let escaped: String = text
        .chars()
        .flat_map(|c| {
            if "\"\\$`".contains(c) {
                vec!['\\', c]
            } else {
                vec![c]
            }
        })
        .collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;

    fn recipe(name: &str) -> Recipe {
        let text =
            format!("name = \"{name}\"\nversion = \"1.0\"\n[rootfs]\nfrom = \"tree\"\ntree = \"/t\"\n");
        Recipe::parse(&text, Utf8Path::new("r.toml")).unwrap()
    }

    #[test]
    fn the_base_stays_visible() {
        assert_eq!(
            text(
                &recipe("Slipway"),
                "PRETTY_NAME=\"Debian 12\"\nID=debian\nID_LIKE=\"a b\"\n"
            ),
            "NAME=\"Slipway\"\nID=slipway\nVERSION_ID=\"1.0\"\nVERSION=\"1.0\"\nPRETTY_NAME=\"Slipway 1.0\"\nID_LIKE=\"debian a b\"\n"
        );
    }

    #[test]
    fn a_second_run_changes_nothing() {
        let once = text(&recipe("My OS"), "ID=fedora\n");
        assert!(once.contains("NAME=\"My OS\"\nID=my-os\n"), "{once}");
        assert_eq!(text(&recipe("My OS"), &once), once);
    }
}
