//! Bundles that change a whole machine, in a root that is thrown away: the standard bundle, and steps from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

mod throwaway;

use camino::Utf8Path;
use std::fmt::Write as _;
use throwaway::Throwaway;

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
}

fn context(users: &str, servers: &str, packages: &str, more: &str) -> String {
    let ca = include_str!("../src/fetch/http/tls_testdata/ca.pem");
    format!(
        "nodeUsers: [{users}]\nclusterMasterKubeAPIEndpoints: [{servers}]\nnormal:\n  clusterDNSAddress: 10.96.0.10\n  kubernetesCA: |\n{}\
         packages:\n  dir: /run/w/packages\n  install: {{{packages}}}\nregistry: {{hosts: {{registry.example: {{auth: {{username: u, password: p}}}}}}}}\n\
         bootstrapToken: abcdef.0123456789abcdef\n{more}",
        indent(ca)
    )
}

/// Two packages as a build makes them: a directory with `install` and `uninstall`, packed, named by its hash.
const PACKAGES: &str = r#"
mkdir -p /run/w/packages
for name in kubelet containerd; do
  mkdir -p /run/p/$name; cd /run/p/$name
  printf '#!/bin/sh\nexec sleep 1\n' >program
  printf 'set -e\nmkdir -p /opt/bin\ninstall -m 0755 program /opt/bin/%s\n' $name >install
  printf 'rm -f /opt/bin/%s\n' $name >uninstall
  tar -czf /run/p/$name.tar.gz .
  hex=$(sha256sum </run/p/$name.tar.gz | cut -d' ' -f1)
  mv /run/p/$name.tar.gz /run/w/packages/$hex.tar.gz
  sed -i "s/@$name@/sha256:$hex/" /run/w/context*.yaml
done
cd /
"#;

#[test]
#[ignore = "changes a whole machine in a root that is thrown away: needs root; tests/run steps runs it"]
fn the_standard_bundle_makes_a_node_and_a_second_pass_changes_nothing() {
    let t = Throwaway::new();
    let both = "kubelet: '@kubelet@', containerd: '@containerd@'";
    let (ca, key) = (
        format!(
            "caCertificates:\n  corporate: |\n{}",
            indent(include_str!("../src/fetch/http/tls_testdata/other.pem"))
        ),
        "{name: ops, uid: 5001, isSudoer: true, sshPublicKeys: [ssh-ed25519 AAAA ops]}",
    );
    t.put(
        "context1.yaml",
        &context(key, "'10.0.0.1:6443', '10.0.0.2:6443'", both, &ca),
    );
    t.put(
        "context2.yaml",
        &context("", "'10.0.0.3:6443'", "kubelet: '@kubelet@'", "packages2: 0\n"),
    );
    t.put("context3.yaml", "{}\n");
    let o = t.run(&format!(
        r#"{PACKAGES}
for n in 1 2 3; do steps render --standard --context /run/w/context$n.yaml --out /run/b$n --node-group worker >/run/w/render$n; done
steps run /run/b1 >/run/w/first
listing >/run/w/listing1
cp /run/sc/log /run/w/log1
{{
  id ops; getent passwd ops; stat -c '%U %a %n' /var/home/ops /var/home/ops/.ssh /var/home/ops/.ssh/authorized_keys /etc/sudoers.d/50-slipway-ops
  cat /var/home/ops/.ssh/authorized_keys
  stat -c '%a %n' /etc/kubernetes/bootstrap-kubelet.conf /etc/containerd/registry.d/registry.example/hosts.toml
  grep -l BEGIN /opt/deckhouse/share/ca-certificates/corporate.crt
  bash -lc 'type -P kubelet'
}} >/run/w/facts 2>&1
# What the bundle wrote is what the proxy reads; it serves until it is told to stop.
timeout -s TERM 10 os-agent api-proxy 2>/run/w/proxy || echo $? >/run/w/proxy-exit
boot 2
steps run /run/b1 >/run/w/second
listing >/run/w/listing2
cp /run/sc/log /run/w/log2
# The node has joined; the user and one package are no longer listed, and there is another API server.
echo joined >/etc/kubernetes/kubelet.conf
steps run /run/b2 >/run/w/third
cp /run/sc/log /run/w/log3
{{
  getent shadow ops | cut -d: -f8; ls /var/home/ops/.ssh; ls /etc/sudoers.d
  ls /etc/kubernetes; cat /etc/os-agent/api-proxy.toml
}} >/run/w/facts3 2>&1
# An empty list of servers is refused; the old one stays.
steps run --max-attempts 1 /run/b3 >/run/w/fourth || echo $? >/run/w/exit4
cp /etc/os-agent/api-proxy.toml /run/w/proxy4
"#
    ));
    let said = format!(
        "{}\n{}\n{}",
        String::from_utf8_lossy(&o.stderr),
        t.read("first"),
        t.read("second")
    );
    assert!(o.status.success(), "{said}");
    let outcome = |name: &str| -> serde_json::Value { serde_json::from_str(&t.read(name)).unwrap() };
    let first = outcome("first");
    assert_eq!(first["outcome"], "converged", "{said}");
    println!("first pass: {first}");
    let facts = t.read("facts");
    for want in [
        "uid=5001(ops)",
        ":/var/home/ops:/bin/bash",
        "ops 755 /var/home/ops\n",
        "ops 700 /var/home/ops/.ssh\n",
        "ops 600 /var/home/ops/.ssh/authorized_keys",
        "root 440 /etc/sudoers.d/50-slipway-ops",
        "ssh-ed25519 AAAA ops\n",
        "600 /etc/kubernetes/bootstrap-kubelet.conf",
        "600 /etc/containerd/registry.d/registry.example/hosts.toml",
        "corporate.crt",
        "/opt/bin/kubelet",
    ] {
        assert!(facts.contains(want), "{want} in {facts}");
    }
    // Fault 10 of the original: one restart per change, whatever changed.
    let count = |log: &str, line: &str| t.read(log).lines().filter(|l| *l == line).count();
    for unit in ["kubelet", "containerd"] {
        assert_eq!(
            count("log1", &format!("restart {unit}.service")),
            1,
            "{}",
            t.read("log1")
        );
    }
    assert_eq!(count("log1", "start os-agent-api-proxy.service"), 1);
    assert_eq!(t.read("proxy-exit").trim(), "124", "{}", t.read("proxy"));
    assert!(t.read("proxy").contains("10.0.0.2:6443"), "{}", t.read("proxy"));

    let second = outcome("second");
    println!("second pass: {second}");
    assert_eq!(
        (
            second["outcome"].as_str(),
            second["executed"].as_u64(),
            second["detail"]["changed"].as_u64()
        ),
        (Some("converged"), Some(9), Some(0)),
        "{second}"
    );
    assert_eq!(
        t.read("listing1"),
        t.read("listing2"),
        "files changed in the second pass"
    );
    assert_eq!(t.read("log1"), t.read("log2"));

    assert_eq!(outcome("third")["outcome"], "converged", "{said}");
    let facts = t.read("facts3");
    assert!(facts.starts_with("1\n"), "the account is expired: {facts}");
    for gone in [
        "authorized_keys",
        "50-slipway-ops",
        "bootstrap-kubelet.conf",
        "10.0.0.1",
    ] {
        assert!(!facts.contains(gone), "{gone} in {facts}");
    }
    assert!(
        facts.contains("kubelet.conf") && facts.contains("10.0.0.3:6443"),
        "{facts}"
    );
    // The running proxy reads its file again; nobody restarts for that.
    assert_eq!(count("log3", "restart kubelet.service"), 1, "{}", t.read("log3"));
    assert_eq!(t.read("exit4").trim(), "1", "{}", t.read("fourth"));
    assert!(t.read("proxy4").contains("10.0.0.3:6443"));
}

/// Never run outside a virtual machine that may break.
const NEVER: [&str; 4] = [
    "004_configure_swap",
    "005_resize_partitions",
    "005_integrate_kubernetes_data_device",
    "099_reboot",
];

/// Steps from outside: every `*.sh.tpl` and `*.sh` of `SLIPWAY_OUTSIDE_STEPS`, rendered over `SLIPWAY_OUTSIDE_CONTEXT` (YAML or
/// JSON; else the context of the conformance cases) and run twice, each as a bundle of its own. Reports and judges nothing but
/// the runner: every run ends in time with a documented exit code. Without the variable the standard bundle's templates do.
#[test]
#[ignore = "runs steps in a root that is thrown away: needs root, and SLIPWAY_OUTSIDE_STEPS=DIR for steps from outside"]
fn steps_from_outside_are_run_twice_and_reported() {
    let own = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir =
        std::env::var("SLIPWAY_OUTSIDE_STEPS").map_or_else(|_| own.join("steps/assets/standard"), Into::into);
    let context = std::env::var("SLIPWAY_OUTSIDE_CONTEXT")
        .map_or_else(|_| own.join("../tests/conformance/context.json"), Into::into);
    let t = Throwaway::new();
    t.put("context.yaml", &std::fs::read_to_string(&context).unwrap());
    let mut names: Vec<String> = dir
        .read_dir_utf8()
        .unwrap()
        .map(|e| e.unwrap().file_name().to_owned())
        .filter(|n| n.ends_with(".sh") || n.ends_with(".sh.tpl"))
        .filter(|n| !NEVER.iter().any(|x| n.starts_with(x)))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{dir} holds no steps");
    for n in &names {
        let text = std::fs::read_to_string(dir.join(n)).unwrap();
        let limit = if text.contains("# agent: timeoutSec") {
            ""
        } else {
            "# agent: timeoutSec=60\n"
        };
        std::fs::create_dir_all(t.dir.join("tpl").join(n)).unwrap();
        t.put(&format!("tpl/{n}/{n}"), &format!("{limit}{text}"));
    }
    let o = t.run(
        r#"
set +e
: >/run/w/report
for d in /run/w/tpl/*; do
  n=${d##*/}
  steps render "$d" --context /run/w/context.yaml --out "/run/b/$n" >/dev/null 2>"/run/w/tpl/$n.render" || { echo "$n render $?" >>/run/w/report; continue; }
  mkdir -p /run/b
  for pass in 1 2; do
    boot "$n-$pass"
    [ $pass = 1 ] || listing >/run/before
    start=$(date +%s%3N)
    steps run --max-attempts 1 "/run/b/$n" >"/run/w/tpl/$n.$pass" 2>&1
    code=$?
    took=$(($(date +%s%3N) - start))
    changed=0
    if [ $pass = 2 ]; then listing >/run/after; changed=$(diff /run/before /run/after | grep -c '^>'); fi
    echo "$n $pass $code $changed $took" >>/run/w/report
  done
done
exit 0
"#,
    );
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    let report = t.read("report");
    let (mut table, mut good, mut bad) = (String::new(), 0, 0);
    for n in &names {
        let lines: Vec<Vec<&str>> = report
            .lines()
            .map(|l| l.split(' ').collect::<Vec<_>>())
            .filter(|l| l.first() == Some(&n.as_str()))
            .collect();
        match lines.as_slice() {
            [l] => {
                bad += 1;
                let why = t.read(&format!("tpl/{n}.render"));
                writeln!(
                    table,
                    "{n}: not rendered, exit {}: {}",
                    l[2],
                    why.lines().next().unwrap_or("")
                )
                .unwrap();
            }
            [a, b] => {
                for l in [a, b] {
                    // 0 done, 1 a step failed, 4 refused as a bundle, 5 waits.
                    assert!(
                        ["0", "1", "4", "5"].contains(&l[2]),
                        "{n}: exit {}: {}",
                        l[2],
                        t.read(&format!("tpl/{n}.{}", l[1]))
                    );
                }
                if a[2] == "0" && b[2] == "0" {
                    good += 1
                } else {
                    bad += 1
                }
                writeln!(
                    table,
                    "{n}: exit {} then {}, {} files changed by the second pass, {} and {} ms",
                    a[2], b[2], b[3], a[4], b[4]
                )
                .unwrap();
                if a[2] != "0" {
                    let text = t.read(&format!("tpl/{n}.1"));
                    let why = text.lines().find(|l| l.contains("message")).unwrap_or("").trim();
                    writeln!(table, "    {}", why.chars().take(200).collect::<String>()).unwrap();
                }
            }
            other => panic!("{n}: {other:?} in {report}"),
        }
    }
    println!(
        "{table}{good} of {} steps ended with 0 twice, {bad} did not",
        names.len()
    );
}
