use super::*;

/// The names of the specification's table that are written out there.
const TABLE: &str = "bb-sync-file bb-log-info bb-log-warning bb-log-error bb-log-debug bb-log-warn bb-log-deprecated \
bb-log-stream-dhctl bb-event-on bb-event-off bb-event-fire bb-event-delay bb-flag-set bb-flag-unset bb-flag? bb-d8-node-name \
bb-d8-node-ip bb-d8-machine-name bb-curl-kube bb-curl-kube-healthz bb-curl-helper-patch-node-metadata bb-set-proxy \
bb-unset-proxy bb-rpp-wait-fetched bb-package-install bb-package-remove bb-package-fetch bb-package-module-install \
bb-deckhouse-get-disruptive-update-approval bb-event-create bb-is-bundle bb-is-family bb-pkg-mgr bb-is-distro-like? \
bb-is-ubuntu-version? bb-dnf-install bb-dnf-package? bb-apt-install bb-apt-rpm-install bb-yum-install bb-zypper-install bb-pkg \
bb-tmp-file bb-tmp-dir bb-ctrd-v1-has-registry-fields bb-ctrd-v2-has-registry-fields bb-dvp-nesting-level \
bb-label-node-bashible-first-run-finished bb-node-has-bashible-uninitialized-taint bb-error? bb-exit bb-exit-on-error bb-exe? \
bb-wait bb-assert bb-var bb-sync-dir bb-curl-helper-extract-admin-certs bb-curl-helper-extract-super-admin-certs bb-kubectl \
bb-kubectl-exec bb-waiting-approval-x bb-disruption-approval-x bb-bashible-ready-x";

#[test]
fn every_name_of_the_table_is_answered() {
    for name in TABLE.split_whitespace() {
        assert!(knows(name), "{name}");
    }
    assert!(!knows("bb-flga-set") && !knows("bb-"));
}

/// docs/steps.md lists every function that steps may call, and no other.
#[test]
fn the_documentation_lists_the_library() {
    let doc = include_str!("../../../../docs/steps.md");
    let table = doc.split("## Helper functions").nth(1).unwrap();
    // Without the first column's neighbours: they name events and flags too.
    let listed: BTreeSet<String> = table
        .lines()
        .filter_map(|l| l.strip_prefix("| ")?.rsplit_once(" | "))
        .flat_map(|(first, _)| {
            first
                .split('`')
                .filter(|w| w.starts_with("bb-"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let families = FAMILIES.iter().map(|f| format!("{f}*"));
    let offered: BTreeSet<String> = defined(TEXT)
        .into_iter()
        .filter(|n| n.starts_with("bb-"))
        .chain(families)
        .collect();
    let missing: Vec<_> = offered.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&offered).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "docs/steps.md lacks {missing:?} and invents {unknown:?}"
    );
}

#[test]
fn the_library_calls_nothing_that_it_lacks() {
    assert_eq!(crate::lint::unknown(TEXT, knows), []);
}

#[test]
fn definitions_in_every_spelling() {
    let d = defined("a() {\n}\nfunction b {\nfunction c()\n  d () {\necho e()\nf\n");
    let d: Vec<&str> = d.iter().map(String::as_str).collect();
    assert_eq!(d, ["a", "b", "c", "d"]);
}
