#![allow(clippy::unwrap_used, clippy::expect_used)]
//! Texts are those of dnf 4.14 with rpm 4.18, shortened.
use super::*;

fn log(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn explained(text: &str) -> (Kind, &'static str, String) {
    let e = explain(&log(text), "x86_64");
    (e.kind, e.code, e.message)
}

#[test]
fn progress_of_both_phases() {
    assert_eq!(
        progress("(3/180): less-590-2.x86_64.rpm          1.3 MB/s | 115 kB     00:00    "),
        Some((3, 180, "less-590-2.x86_64.rpm"))
    );
    assert_eq!(
        progress("  Installing       : libattr1-1:2.5.1-4.x86_64                            14/20 "),
        Some((14, 20, "libattr1-1:2.5.1-4.x86_64"))
    );
    for other in [
        "Installing:",
        "Installing dependencies:",
        "  Preparing        :      1/1 ",
        "",
        "(try to add",
    ] {
        assert_eq!(progress(other), None, "{other}");
    }
}

#[test]
fn repositories_from_the_table() {
    let table = transaction_table(&log("\
Dependencies resolved.
================================================================================
 Package            Architecture Version                    Repository     Size
================================================================================
Installing:
 tiny               noarch       1.0-1                      fixture       5.6 k
Installing dependencies:
 libattr1           x86_64       1:2.5.1-4                  fixture        16 k
 a-package-with-a-name-that-does-not-fit-into-the-column
                    x86_64       5.2.15-2+b13               other         708 k

Transaction Summary
================================================================================
Install  20 Packages"));
    let repo = |n: &str, a: &str| table.get(&(n.to_owned(), a.to_owned())).map(String::as_str);
    assert_eq!(repo("tiny", "noarch"), Some("fixture"));
    assert_eq!(repo("libattr1", "x86_64"), Some("fixture"));
    assert_eq!(
        repo(
            "a-package-with-a-name-that-does-not-fit-into-the-column",
            "x86_64"
        ),
        Some("other")
    );
    assert_eq!(table.len(), 3);
}

#[test]
fn an_answer_of_no_is_no_failure() {
    let text = "Transaction Summary\n====\nInstall  111 Packages\n\nTotal size: 70 M\nOperation aborted.";
    assert!(only_asked(&log(text)));
    assert_eq!(package_count(&log(text)), Some(111));
    assert_eq!(package_count(&log("Install  1 Package")), Some(1));
    assert_eq!(package_count(&log("Installing:\n x\nInstall all of it")), None);
    assert!(!only_asked(&log("Operation aborted.\nError: x")));
    assert!(!only_asked(&log("Error: Unable to find a match: x")));
}

#[test]
fn an_unknown_package() {
    let text = "No match for argument: test-packge\nNo match for argument: nosuchthing\nError: Unable to find a match: test-packge nosuchthing";
    let (kind, code, message) = explained(text);
    assert_eq!((kind, code), (Kind::Build, "RPM001"));
    assert_eq!(
        message,
        "no package matches \"test-packge\"\nno package matches \"nosuchthing\""
    );
    assert_eq!(missing_packages(&log(text)), ["test-packge", "nosuchthing"]);
}

#[test]
fn repositories_that_do_not_answer() {
    let (kind, code, message) = explained("\
other                                           0.0  B/s |   0  B     00:00
Errors during downloading metadata for repository 'other':
  - Curl error (7): Couldn't connect to server for http://127.0.0.1:1/r/repodata/repomd.xml [Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server]
Error: Failed to download metadata for repo 'other': Cannot download repomd.xml: Cannot download repodata/repomd.xml: All mirrors were tried");
    assert_eq!((kind, code), (Kind::Build, "REPO002"));
    assert_eq!(
        message,
        "repo \"other\": http://127.0.0.1:1/r/repodata/repomd.xml: Couldn't connect to server (5 tries)"
    );
    let (_, code, message) = explained("\
  - Status code: 404 for http://h/nope/repodata/repomd.xml (IP: 127.0.0.1)
Error: Failed to download metadata for repo 'other': Cannot download repomd.xml: Cannot download repodata/repomd.xml: All mirrors were tried");
    assert_eq!(code, "REPO002");
    assert_eq!(
        message,
        "repo \"other\": http://h/nope/repodata/repomd.xml: status 404 (5 tries)"
    );
    let (_, code, message) = explained(
        "\
Error: Error downloading packages:
  Status code: 404 for http://h/x86_64/a-1-1.x86_64.rpm (IP: 127.0.0.1)",
    );
    assert_eq!(code, "REPO002");
    assert_eq!(
        message,
        "cannot download a package: http://h/x86_64/a-1-1.x86_64.rpm: status 404"
    );
}

#[test]
fn the_solver_is_quoted_word_for_word() {
    let (kind, code, message) = explained("\
Error:\x20
 Problem: package bad-conflict-a-1.0-1.noarch conflicts with bad-conflict-b provided by bad-conflict-b-1.0-1.noarch
  - package bad-conflict-1.0-1.noarch requires bad-conflict-b, but none of the providers can be installed
  - conflicting requests
(try to add '--allowerasing' to command line to replace conflicting packages)");
    assert_eq!((kind, code), (Kind::Build, "RPM002"));
    assert_eq!(message, "\
the packages do not fit together:
   Problem: package bad-conflict-a-1.0-1.noarch conflicts with bad-conflict-b provided by bad-conflict-b-1.0-1.noarch
    - package bad-conflict-1.0-1.noarch requires bad-conflict-b, but none of the providers can be installed
    - conflicting requests");
}

#[test]
fn another_architecture() {
    let (kind, code, message) = explained(
        "\
Error:\x20
 Problem: conflicting requests
  - package bad-wrong-arch-1.0-1.aarch64 does not have a compatible architecture
(try to add '--skip-broken' to skip uninstallable packages)",
    );
    assert_eq!((kind, code), (Kind::Build, "RPM003"));
    assert_eq!(message, "bad-wrong-arch-1.0-1.aarch64: image is x86_64");
}

#[test]
fn signatures() {
    let (kind, code, message) =
        explained("Package bad-unsigned-1.0-1.noarch.rpm is not signed\nError: GPG check FAILED");
    assert_eq!((kind, code), (Kind::Trust, "SIG001"));
    assert_eq!(
        message,
        "bad-unsigned-1.0-1.noarch: unsigned; set allow_unsigned = true for its repository to accept"
    );
    let (kind, code, message) = explained("\
GPG key at file:///k/RPM-GPG-KEY (0x290DD5F3) is already installed
The GPG keys listed for the \"bad\" repository are already installed but they are not correct for this package.
Check that the correct key URLs are configured for this repository.. Failing package is: bad-wrong-key-1.0-1.noarch
 GPG Keys are configured as: file:///k/RPM-GPG-KEY
Error: GPG check FAILED");
    assert_eq!((kind, code), (Kind::Trust, "SIG001"));
    assert_eq!(
        message,
        "bad-wrong-key-1.0-1.noarch: signed by another key than the repository's"
    );
    let (kind, _, message) =
        explained("Problem opening package bad-tampered-1.0-1.noarch.rpm\nError: GPG check FAILED");
    assert_eq!(kind, Kind::Trust);
    assert_eq!(
        message,
        "bad-tampered-1.0-1.noarch: damaged, or its signature is not valid"
    );
    let (kind, _, message) = explained("Error: GPG check FAILED");
    assert_eq!(kind, Kind::Trust);
    assert!(message.starts_with("a signature was not accepted:"));
}

#[test]
fn a_wrong_key_is_not_told_for_each_of_a_hundred_packages() {
    let text: Vec<String> = (0..117)
        .flat_map(|n| {
            let line = format!("Public key for p{n}-1-1.noarch.rpm is not installed");
            [line.clone(), format!("Failing package is: p{n}-1-1.noarch"), line]
        })
        .collect();
    let (kind, code, message) = explained(&text.join("\n"));
    assert_eq!((kind, code), (Kind::Trust, "SIG001"));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 7, "{message}");
    assert_eq!(
        lines[4],
        "p4-1-1.noarch: signed by another key than the repository's"
    );
    assert_eq!(lines[5], "and 112 more packages");
    assert!(lines[6].contains("get its public key"), "{message}");
}

#[test]
fn failed_scriptlets() {
    let text = "\
  Installing       : bad-fail-post-1.0-1.noarch                           20/20
  Running scriptlet: bad-fail-post-1.0-1.noarch                           20/20
bad-fail-post: this scriptlet fails on purpose
warning: %post(bad-fail-post-1.0-1.noarch) scriptlet failed, exit status 1

Error in POSTIN scriptlet in rpm package bad-fail-post
Complete!";
    let e = scriptlet_failures(&log(text)).unwrap_err();
    assert_eq!((e.kind, e.code), (Kind::Build, "RPM007"));
    assert_eq!(
        e.message,
        "%post(bad-fail-post-1.0-1.noarch) failed (exit 1)\n  bad-fail-post: this scriptlet fails on purpose"
    );
    let (kind, code, message) = explained(
        "\
  Running scriptlet: bad-fail-pre-1.0-1.noarch                            20/20
bad-fail-pre: this scriptlet fails on purpose
error: %prein(bad-fail-pre-1.0-1.noarch) scriptlet failed, exit status 1

Error in PREIN scriptlet in rpm package bad-fail-pre
error: bad-fail-pre-1.0-1.noarch: install failed
Error: Transaction failed",
    );
    assert_eq!((kind, code), (Kind::Build, "RPM007"));
    assert!(
        message.starts_with("%pre(bad-fail-pre-1.0-1.noarch) failed (exit 1)\n"),
        "{message}"
    );
    let lua = failed_scriptlet("error: lua script failed: [string \"%post(x-1-1.noarch)\"]:1: oh").unwrap();
    assert_eq!(
        lua,
        "a Lua scriptlet failed: [string \"%post(x-1-1.noarch)\"]:1: oh"
    );
    assert!(
        scriptlet_failures(&log(
            "  Running scriptlet: a-1-1.noarch  1/1\nsome words\nComplete!"
        ))
        .is_ok()
    );
}

#[test]
fn owners_that_rpm_did_not_find() {
    let got = unknown_owners(&log("\
warning: user nobodyknows does not exist - using root
warning: group nobodyknows does not exist - using root
warning: something else"));
    assert_eq!(
        got.into_iter().collect::<Vec<_>>(),
        ["group nobodyknows", "user nobodyknows"]
    );
}

#[test]
fn a_full_disk_is_not_the_packages_fault() {
    for text in [
        "error: unpacking of archive failed on file /usr/x: cpio: write failed - No space left on device",
        "Error: Transaction test error:\n  installing package a needs 5MB more space needed on the / filesystem",
        "Error: Transaction test error:\n  installing package a-1-1.noarch needs 2MB more space on the / filesystem",
        "Error: Transaction test error:\n  installing package a-1-1.noarch needs 7 more inodes on the / filesystem",
        "Error: Error downloading packages:\n  Curl error (23): Failed writing received data to disk/application for \
         http://h/a.rpm [Failure writing output to destination]",
        "Errors during downloading metadata for repository 'x':\n  - Curl error (23): Failed writing received data to \
         disk/application for http://h/repodata/f.xz [x]\nError: Failed to download metadata for repo 'x': Yum repo \
         downloading error",
    ] {
        let (kind, code, message) = explained(text);
        assert_eq!((kind, code), (Kind::Space, "IO028"), "{text}");
        assert!(
            message.contains("the disk of the output directory is full"),
            "{message}"
        );
        assert!(!message.contains("the / filesystem"), "{message}");
    }
}

#[test]
fn files_of_two_packages() {
    let (kind, code, message) = explained(
        "\
Error: Transaction test error:
  file /usr/bin/x from install of b-1-1.noarch conflicts with file from package a-1-1.noarch",
    );
    assert_eq!((kind, code), (Kind::Build, "RPM004"));
    assert!(message.ends_with(
        "\n  file /usr/bin/x from install of b-1-1.noarch conflicts with file from package a-1-1.noarch"
    ));
}

#[test]
fn anything_else_keeps_its_end() {
    let (kind, code, message) = explained("one\ntwo\nError: something new");
    assert_eq!((kind, code), (Kind::Build, "RPM000"));
    assert_eq!(message, "dnf failed:\n  one\n  two\n  Error: something new");
}
