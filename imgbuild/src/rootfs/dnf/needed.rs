//! What packages must bring so that an image can boot, told from their lists of files before they are downloaded. Pure.

use crate::boot::Platform;
use crate::error::{BuildError, Kind};
use crate::grub;
use crate::recipe::{Loader, Recipe};

/// Something that the packages must bring.
struct Need {
    what: String,
    /// Patterns without a leading `/usr`; `*` stands for one part of a name.
    files: Vec<String>,
    package: &'static str,
}

fn needs(recipe: &Recipe) -> Vec<Need> {
    let in_path = |names: &[&str]| -> Vec<String> {
        names
            .iter()
            .flat_map(|n| [format!("/bin/{n}"), format!("/sbin/{n}")])
            .collect()
    };
    let kernel = [
        "/boot/vmlinuz-*",
        "/lib/modules/*/vmlinuz",
        "/boot/Image-*",
        "/lib/modules/*/Image",
    ];
    let mut out = vec![
        Need {
            what: "a kernel (/boot/vmlinuz-VERSION)".to_owned(),
            files: kernel.map(str::to_owned).to_vec(),
            package: "kernel",
        },
        Need {
            what: "the program dracut".to_owned(),
            files: in_path(&["dracut"]),
            package: "dracut",
        },
        Need {
            what: "the program grub-mkimage or grub2-mkimage".to_owned(),
            files: in_path(&grub::TOOLS),
            package: "grub2-tools",
        },
    ];
    for platform in Platform::of(recipe.arch) {
        let dir = format!("/lib/grub/{}", platform.format());
        out.push(Need {
            what: format!("GRUB's modules in /usr{dir}"),
            files: vec![format!("{dir}/moddep.lst")],
            package: grub::package(*platform),
        });
    }
    out
}

/// The error for packages whose files cannot make the recipe's image boot; none where all is there or no loader is wanted.
/// What `[[files]]` may bring is not missed.
pub(super) fn check<'a>(recipe: &Recipe, files: impl Iterator<Item = &'a str>) -> Option<BuildError> {
    if recipe.boot.loader == Loader::None {
        return None;
    }
    let mut left = needs(recipe);
    left.retain(|n| !n.files.iter().any(|pattern| by_recipe(recipe, pattern)));
    for file in files {
        if left.is_empty() {
            break;
        }
        let file = file.strip_prefix("/usr").unwrap_or(file);
        left.retain(|n| !n.files.iter().any(|pattern| matches(pattern, file)));
    }
    if left.is_empty() {
        return None;
    }
    let list: String = left
        .iter()
        .map(|n| format!("\n  {}: usually in the package {}", n.what, n.package))
        .collect();
    let code = if left.iter().any(|n| n.package == "kernel") {
        "IMG001"
    } else {
        "IMG005"
    };
    let m = format!(
        "the packages and all that they require cannot make a bootable image; nothing was downloaded. No package brings{list}\n\
         add the packages to [rootfs] packages, or set [boot] loader = \"none\""
    );
    Some(BuildError::new(Kind::Build, code, m))
}

/// Whether an entry of `[[files]]` lies there, above or below.
fn by_recipe(recipe: &Recipe, pattern: &str) -> bool {
    let fixed = pattern.split('*').next().unwrap_or(pattern);
    recipe.files.iter().any(|f| {
        let dst = f.dst.as_str().strip_prefix("/usr").unwrap_or(f.dst.as_str());
        matches(pattern, dst)
            || camino::Utf8Path::new(fixed).starts_with(if dst.is_empty() { "/" } else { dst })
    })
}

/// Whether a path is what a pattern with at most one `*` says.
fn matches(pattern: &str, path: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == path;
    };
    path.strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after))
        .is_some_and(|middle| !middle.is_empty() && !middle.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rest: &str, files: &[&str]) -> Option<(&'static str, String)> {
        let text = format!(
            "version=\"1\"\n[rootfs]\nfrom=\"packages\"\npackages=[\"a\"]\n\
             repos=[{{id=\"x\",url=\"http://h/\",allow_unsigned=true}}]\n{rest}"
        );
        let recipe = Recipe::parse(&text, "r.toml".into()).unwrap();
        check(&recipe, files.iter().copied()).map(|e| (e.code, e.message))
    }

    const ALL: [&str; 5] = [
        "/boot/vmlinuz-6.1.0",
        "/usr/bin/dracut",
        "/usr/sbin/grub2-mkimage",
        "/usr/lib/grub/x86_64-efi/moddep.lst",
        "/usr/lib/grub/i386-pc/moddep.lst",
    ];

    #[test]
    fn what_no_package_brings_is_named_with_its_package() {
        assert_eq!(said("", &ALL), None);
        let (code, m) = said("", &ALL[..2]).unwrap();
        assert_eq!(code, "IMG005");
        for name in ["grub2-tools", "grub2-efi-x64-modules", "grub2-pc-modules"] {
            assert!(m.contains(&format!("usually in the package {name}")), "{m}");
        }
        assert!(
            !m.contains("package dracut") && !m.contains("package kernel"),
            "{m}"
        );
        let (code, m) = said("", &ALL[1..]).unwrap();
        assert_eq!(code, "IMG001");
        assert!(m.contains("package kernel") && !m.contains("grub2"), "{m}");
        assert_eq!(said("[boot]\nloader=\"none\"\n", &[]), None);
    }

    #[test]
    fn other_places_count_and_others_names_do_not() {
        let elsewhere = [
            "/lib/modules/6.1/vmlinuz",
            "/sbin/dracut",
            "/bin/grub-mkimage",
            "/lib/grub/x86_64-efi/moddep.lst",
            "/lib/grub/i386-pc/moddep.lst",
        ];
        assert_eq!(said("", &elsewhere), None);
        let mut wrong = ALL;
        wrong[0] = "/boot/vmlinuz-/x";
        assert!(said("", &wrong).is_some());
    }

    #[test]
    fn what_the_recipe_brings_itself_is_not_missed() {
        let files = "[[files]]\nsrc=\"g\"\ndst=\"/usr/lib/grub\"\n";
        assert_eq!(said(files, &ALL[..3]), None);
        let files = "[[files]]\nsrc=\"d\"\ndst=\"/usr/bin/dracut\"\n";
        assert_eq!(said(files, &[ALL[0], ALL[2], ALL[3], ALL[4]]), None);
        let files = "[[files]]\nsrc=\"d\"\ndst=\"/usr/lib/g\"\n";
        assert!(said(files, &ALL[..3]).is_some());
    }
}
