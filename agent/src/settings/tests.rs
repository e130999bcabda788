#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod kubeos;
mod properties;
mod texts;

use super::plan::{Facts, Plan, plan};
use super::sysctl::KernelFact;
use super::*;
use crate::error::Result;
use os_proto::v1;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One entry: key, value, operation.
type Entry<'a> = (&'a str, Value, &'a str);

fn config(model: &str, path: &str, entries: &[Entry<'_>]) -> v1::Config {
    v1::Config {
        model: model.into(),
        configpath: path.into(),
        contents: entries
            .iter()
            .map(|(k, v, op)| v1::ConfigContent {
                key: (*k).into(),
                value_json: v.to_string(),
                operation: (*op).into(),
            })
            .collect(),
    }
}

/// A node in facts: files by path, slot arguments, kernel settings.
#[derive(Clone, Default)]
struct Bench {
    files: BTreeMap<Target, Vec<u8>>,
    kernel: BTreeMap<String, String>,
    cmdline: String,
}

impl Bench {
    fn file(path: &str, text: &str) -> Bench {
        let mut b = Bench::default();
        b.files.insert(Target::File(path.into()), text.into());
        b
    }

    fn plan(&self, configs: &[v1::Config]) -> Result<Plan> {
        let items = request::items(configs, &Ok(Slot::A))?;
        let mut facts = Facts {
            cmdline: self.cmdline.clone(),
            ..Facts::default()
        };
        for i in items.iter().filter(|i| i.bad.is_none()) {
            let exists = |p: &str| {
                self.kernel
                    .keys()
                    .any(|k| k == p || k.starts_with(&format!("{p}/")))
            };
            let path = sysctl::resolve(&i.key, &exists).ok().flatten();
            let value = path.as_ref().and_then(|p| self.kernel.get(p).cloned());
            facts.kernel.insert(
                i.key.clone(),
                KernelFact {
                    path,
                    value,
                    trouble: None,
                },
            );
            facts
                .files
                .insert(i.target.clone(), Ok(self.files.get(&i.target).cloned()));
        }
        Ok(plan(&items, &facts))
    }

    /// Plans, makes the changes, and plans again: the second time nothing may change.
    #[track_caller]
    fn apply(&mut self, configs: &[v1::Config]) -> Vec<EntryResult> {
        let p = self.plan(configs).unwrap();
        assert!(p.error().is_none(), "{}", p.error().unwrap());
        for f in &p.files {
            self.files.insert(f.target.clone(), f.new.clone());
        }
        for k in &p.kernel {
            self.kernel.insert(k.path.clone(), k.new.clone());
        }
        let again = self.plan(configs).unwrap();
        assert!(
            again.files.is_empty() && again.kernel.is_empty(),
            "applied again it changes: {again:?}"
        );
        assert!(
            again.entries.iter().all(|e| e.outcome == Outcome::Unchanged),
            "{again:?}"
        );
        p.entries
    }

    /// The message of a call that is rejected; nothing is planned then.
    #[track_caller]
    fn rejected(&self, configs: &[v1::Config]) -> String {
        let p = self.plan(configs).unwrap();
        assert!(p.files.is_empty() && p.kernel.is_empty(), "{p:?}");
        p.error().expect("rejected").to_string()
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.files[&Target::File(path.into())].clone()).unwrap()
    }

    fn args(&self, slot: Slot) -> Vec<String> {
        self.files
            .get(&Target::Arguments(slot))
            .map(|b| os_proto::kernel_args::user_args(b))
            .unwrap_or_default()
    }
}

const KUBELET: &str = "/var/lib/kubelet/config.yaml";
const CONTAINERD: &str = "/etc/containerd/config.toml";
const LIMITS: &str = "/etc/security/limits.conf";
const SYSCTL: &str = "/etc/sysctl.conf";

#[test]
fn kf_c1_one_bad_entry_among_three_fails_the_call_and_names_itself() {
    let mut b = Bench::file(SYSCTL, "a.b=1\n");
    let three = [config(
        "kernel.sysctl.persist",
        "",
        &[
            ("a.b", json!(2), ""),
            ("no good", json!(1), ""),
            ("c.d", json!(3), ""),
        ],
    )];
    let why = b.rejected(&three);
    assert!(
        why.contains("configs[0].contents[1] (kernel.sysctl.persist \"no good\")"),
        "{why}"
    );
    assert!(
        why.contains("nothing was changed") && !why.contains("contents[0]"),
        "{why}"
    );
    // All that are wrong are named at once.
    let why = b.rejected(&[config(
        "kernel.sysctl.persist",
        "",
        &[("x y", json!(2), ""), ("a.b", json!([1]), "")],
    )]);
    assert!(
        why.contains("contents[0]") && why.contains("contents[1]"),
        "{why}"
    );
    // A result per entry, and drift is found: the file is edited by hand and the same call sets it right.
    let good = [config(
        "kernel.sysctl.persist",
        "",
        &[("a.b", json!(2), ""), ("c.d", json!(3), "")],
    )];
    let r = b.apply(&good);
    assert!(r.iter().all(|e| e.outcome == Outcome::Changed));
    b.files
        .insert(Target::File(SYSCTL.into()), b"a.b=7\nc.d=3\n".to_vec());
    let r = b.apply(&good);
    assert_eq!(
        r.iter().map(|e| e.outcome).collect::<Vec<_>>(),
        [Outcome::Changed, Outcome::Unchanged]
    );
    assert_eq!(b.text(SYSCTL), "a.b=2\nc.d=3\n");
    // An unknown model fails the request as a whole.
    let e = b.plan(&[config("kernel.sysctl.perist", "", &[])]).unwrap_err();
    assert!(e.message.contains("kernel.sysctl.persist"), "{e}");
}

#[test]
fn kf_c2_lists_do_not_grow() {
    let mut b = Bench::file(
        KUBELET,
        "clusterDNS:\n  - 10.0.0.10 # first\nclusterDomain: cluster.local\n",
    );
    let entry = config(
        "kubernetes.kubelet",
        "",
        &[("clusterDNS", json!(["10.0.0.10", "10.0.0.11"]), "")],
    );
    let retry = [entry.clone(), config("no.such.model", "", &[("a", json!(1), "")])];
    for _ in 0..10 {
        assert!(b.plan(&retry).is_err());
        b.apply(std::slice::from_ref(&entry));
    }
    assert_eq!(
        b.text(KUBELET),
        "clusterDNS:\n  - 10.0.0.10 # first\n  - \"10.0.0.11\"\nclusterDomain: cluster.local\n"
    );
    let mut b = Bench::file(CONTAINERD, "imports = [\n  \"/etc/a.toml\", # ours\n]\n");
    let entry = [config(
        "container.containerd",
        "",
        &[("imports", json!(["/etc/a.toml", "/etc/b.toml"]), "")],
    )];
    for _ in 0..10 {
        b.apply(&entry);
    }
    assert_eq!(b.text(CONTAINERD).matches("b.toml").count(), 1);
    assert!(b.text(CONTAINERD).contains("# ours"), "{}", b.text(CONTAINERD));
}

#[test]
fn kf_c3_delete_hits_only_the_key_that_was_named() {
    let yaml = "clusterDNS: [10.0.0.10]\nfoo:\n  clusterDNS: x\n";
    let b = Bench::file(KUBELET, yaml);
    for key in ["nosuch.clusterDNS", "foo.nosuch.clusterDNS", "clusterDNS.foo"] {
        let p = b
            .plan(&[config("kubernetes.kubelet", "", &[(key, json!(null), "delete")])])
            .unwrap();
        assert!(p.files.is_empty(), "{key}");
        assert_eq!(p.entries[0].outcome, Outcome::Unchanged);
        assert!(
            p.entries[0].message.starts_with("there is no "),
            "{:?}",
            p.entries[0]
        );
    }
    let toml = "sandbox_image = \"a\"\n[plugins]\nsandbox_image = \"b\"\n";
    let mut b = Bench::file(CONTAINERD, toml);
    let del = |key: &str| {
        [config(
            "container.containerd",
            "",
            &[(key, json!(null), "delete")],
        )]
    };
    assert!(b.plan(&del("nosuch.sandbox_image")).unwrap().files.is_empty());
    b.apply(&del("plugins.sandbox_image"));
    assert_eq!(b.text(CONTAINERD), "sandbox_image = \"a\"\n[plugins]\n");
}

#[test]
fn kf_c4_names_with_dots_resolve_in_both_forms() {
    let mut b = Bench::default();
    for p in [
        "net/ipv4/conf/eth0.100/rp_filter",
        "net/ipv4/conf/eth0/rp_filter",
        "net/ipv4/ip_forward",
    ] {
        b.kernel.insert(p.into(), "0".into());
    }
    for key in [
        "net.ipv4.conf.eth0.100.rp_filter",
        "net/ipv4/conf/eth0.100/rp_filter",
        "net.ipv4.conf.eth0/100.rp_filter",
    ] {
        b.kernel
            .insert("net/ipv4/conf/eth0.100/rp_filter".into(), "0".into());
        b.apply(&[config("kernel.sysctl", "", &[(key, json!(2), "")])]);
        assert_eq!(b.kernel["net/ipv4/conf/eth0.100/rp_filter"], "2", "{key}");
        assert_eq!(b.kernel["net/ipv4/conf/eth0/rp_filter"], "0");
        // In the file it stands in the one form that sysctl(8) understands at boot.
        let mut f = Bench {
            files: BTreeMap::new(),
            ..b.clone()
        };
        f.apply(&[config("kernel.sysctl.persist", "", &[(key, json!(2), "")])]);
        assert!(
            [
                "net/ipv4/conf/eth0.100/rp_filter=2\n",
                "net.ipv4.conf.eth0/100.rp_filter=2\n"
            ]
            .contains(&f.text(SYSCTL).as_str()),
            "{}",
            f.text(SYSCTL)
        );
    }
    let why = b.rejected(&[config("kernel.sysctl", "", &[("net.ipv4.nosuch", json!(1), "")])]);
    assert!(why.contains("no setting"), "{why}");
    for bad in [
        "",
        "../../etc/passwd",
        "net/../../x",
        "/net/ipv4/ip_forward",
        "a b",
    ] {
        b.rejected(&[config("kernel.sysctl", "", &[(bad, json!(1), "")])]);
    }
    b.rejected(&[config(
        "kernel.sysctl",
        "",
        &[("net.ipv4.ip_forward", json!(1), "delete")],
    )]);
    b.rejected(&[config(
        "kernel.sysctl",
        "",
        &[("net.ipv4.ip_forward", json!(null), "")],
    )]);
}

#[test]
fn kf_c5_limits_match_domain_type_and_item() {
    let old = "# limits\n*  soft core 0\n*\thard\tnofile\t1024\n@ops - nproc 10 # ops\n# End of file\n";
    let mut b = Bench::file(LIMITS, old);
    let set = |k: &str, v: &str, op: &'static str| [config("pam.limits", "/ignored", &[(k, json!(v), op)])];
    b.apply(&set("*", "hard.nofile.65536", ""));
    let now = old.replace("1024", "65536");
    assert_eq!(b.text(LIMITS), now);
    b.apply(&set("@ops", "soft.nofile.65535", ""));
    assert_eq!(b.text(LIMITS), format!("{now}@ops soft nofile 65535\n"));
    // "_" keeps what is there, and cannot make a line.
    b.apply(&set("@ops", "_.nproc.20", ""));
    assert!(b.text(LIMITS).contains("@ops - nproc 20 # ops\n"));
    assert!(b.rejected(&set("nobody", "_.nproc.20", "")).contains("\"_\""));
    // Deleting needs the value that is there.
    assert!(
        b.rejected(&set("@ops", "soft.nofile.1", "delete"))
            .contains("65535")
    );
    b.apply(&set("@ops", "soft.nofile.65535", "delete"));
    b.apply(&set("@ops", "_.nproc.10", ""));
    assert_eq!(b.text(LIMITS), now);
    for bad in [
        "hard.nofile",
        "firm.nofile.1",
        "hard.files.1",
        "hard.nofile.many",
        "",
    ] {
        b.rejected(&set("*", bad, ""));
    }
    b.rejected(&set("two words", "hard.nofile.1", ""));
    assert!(
        Bench::default()
            .rejected(&set("*", "hard.nofile.1", ""))
            .contains("does not exist")
    );
}

#[test]
fn kf_c6_kernel_arguments_go_to_the_right_slot_whole() {
    let mut b = Bench {
        cmdline: "root=PARTUUID=x quiet console=ttyS0".into(),
        ..Bench::default()
    };
    let set = |model: &str, k: &str, v: Value, op: &'static str| [config(model, "", &[(k, v, op)])];
    // Slot A runs: current is A, next is B.
    b.apply(&set("grub.cmdline.current", "mitigations", json!("auto"), ""));
    b.apply(&set("grub.cmdline.next", "mitigations", json!("off"), ""));
    assert_eq!(
        (b.args(Slot::A), b.args(Slot::B)),
        (
            vec!["mitigations=auto".to_owned()],
            vec!["mitigations=off".to_owned()]
        )
    );
    // All values of a repeated argument, not the first half of them.
    let two = os_proto::kernel_args::user_env(&["console=tty0 a console=ttyS0,115200"]).unwrap();
    b.files.insert(Target::Arguments(Slot::A), two);
    b.apply(&set("grub.cmdline.current", "console", json!("ttyS1"), ""));
    assert_eq!(b.args(Slot::A), ["console=ttyS1", "a"]);
    // A value with blanks does not reach the kernel through a boot loader's list: named, not split.
    for v in ["\"file a.c +p\"", "file a.c +p", "x\ty"] {
        let why = b.rejected(&set("grub.cmdline.current", "dyndbg", json!(v), ""));
        assert!(why.contains("dyndbg"), "{why}");
    }
    // A bare argument may gain a value, not lose it; deleting needs an equal one.
    b.apply(&set("grub.cmdline.current", "a", json!(1), ""));
    assert!(
        b.rejected(&set("grub.cmdline.current", "a", json!(null), ""))
            .contains("lose")
    );
    assert!(
        b.rejected(&set("grub.cmdline.current", "a", json!(2), "delete"))
            .contains("a=1")
    );
    b.apply(&set("grub.cmdline.current", "a", json!("1"), "delete"));
    // What belongs to the image is named as such.
    let r = b.apply(&set("grub.cmdline.current", "quiet", json!(null), "delete"));
    assert!(r[0].message.contains("image"), "{r:?}");
    for (k, v) in [
        ("root", "LABEL=x"),
        ("os.slot", "B"),
        ("os.trial", "3"),
        ("ro", ""),
        ("a=b", "c"),
        ("", "x"),
    ] {
        b.rejected(&set("grub.cmdline.next", k, json!(v), ""));
    }
    let long = set("grub.cmdline.next", "x", json!("y".repeat(500)), "");
    assert!(b.rejected(&long).contains("at most 500"));
    assert_eq!(b.args(Slot::B), ["mitigations=off"]);
}

#[test]
fn kf_a13_arguments_belong_to_the_slot() {
    let mut b = Bench::default();
    b.apply(&[config("grub.cmdline.next", "", &[("hugepages", json!(4), "")])]);
    let p = b
        .plan(&[config("grub.cmdline.current", "", &[("hugepages", json!(8), "")])])
        .unwrap();
    assert_eq!(p.files[0].target, Target::Arguments(Slot::A));
    assert_eq!(b.args(Slot::B), ["hugepages=4"]);
    assert!(p.entries[0].pending);
}

#[test]
fn kf_a12_an_integer_above_the_signed_range_is_a_named_refusal() {
    let b = Bench::file(CONTAINERD, "version = 2\n");
    for v in [
        json!(9_223_372_036_854_775_808_u64),
        json!([1, 9_223_372_036_854_775_808_u64]),
    ] {
        let why = b.rejected(&[config("container.containerd", "", &[("oom_score", v, "")])]);
        assert!(
            why.contains("oom_score") && why.contains("9223372036854775807"),
            "{why}"
        );
    }
    let text = r#"{"value": 9223372036854775808}"#;
    let v: Value = serde_json::from_str::<Value>(text).unwrap()["value"].clone();
    b.rejected(&[config("container.containerd", "", &[("a", v, "")])]);
    // Not even a number: kept as its text, named.
    let mut c = config("container.containerd", "", &[("a", json!(1), "")]);
    c.contents[0].value_json = "{".into();
    assert!(b.rejected(&[c]).contains("JSON"));
}

#[test]
fn kf_s2_paths_are_confined() {
    let b = Bench::default();
    for (model, path) in [
        ("kernel.sysctl.persist", "/etc/cron.d/x"),
        ("kernel.sysctl.persist", "/etc/sysctl.d/../cron.d/x.conf"),
        ("kernel.sysctl.persist", "/etc/sysctl.d/x"),
        ("kernel.sysctl.persist", "etc/sysctl.conf"),
        ("kernel.sysctl.persist", "/etc/sysctl.d/.x.conf"),
        ("kernel.sysctl.persist", "/etc/sysctl.d/a/b.conf"),
        ("kernel.sysctl.persist", "/etc/sysctl.d/a\n.conf"),
        ("kubernetes.kubelet", "/etc/shadow"),
        ("kubernetes.kubelet", "../../shadow"),
        ("kubernetes.kubelet", "/etc/kubernetes/manifests/pod.yaml"),
        ("kubernetes.kubelet", "/etc/kubernetes/admin.conf"),
        ("container.containerd", "/etc/sysctl.conf"),
        ("container.containerd", "/etc/systemd/system/x.toml"),
    ] {
        let why = b.rejected(&[config(model, path, &[("a", json!(1), "")])]);
        assert!(why.contains("configpath"), "{path}: {why}");
    }
    for (model, path) in [
        (Model::SysctlPersist, "/etc/sysctl.d/50-blue.conf"),
        (Model::SysctlPersist, "/etc//sysctl.conf"),
        (Model::Kubelet, "/etc/kubernetes/kubelet-config.yaml"),
        (Model::Containerd, "/etc/containerd/conf.d/registry.toml"),
        (Model::Limits, LIMITS),
    ] {
        assert!(confine::allowed(model, path).is_ok(), "{path}");
    }
}

#[test]
fn the_last_of_several_entries_about_one_setting_wins_and_order_is_kept() {
    let mut b = Bench::file(KUBELET, "a: 1\n");
    let r = b.apply(&[
        config(
            "kubernetes.kubelet",
            "",
            &[
                ("x.z", json!(1), ""),
                ("b", json!(2), ""),
                ("x.'z'", json!(3), ""),
            ],
        ),
        config("kubernetes.kubelet", "", &[("b", json!(4), "")]),
    ]);
    assert_eq!(b.text(KUBELET), "a: 1\nx:\n  z: 3\nb: 4\n");
    assert!(r[0].message.contains("configs[0].contents[2]"), "{r:?}");
    assert!(r[1].message.contains("configs[1].contents[0]"), "{r:?}");
    // Deleted and set again in one call: what was there stays where it was.
    let mut b = Bench::file(SYSCTL, "k=v\nz=1\n");
    b.apply(&[config(
        "kernel.sysctl.persist",
        "",
        &[("k", json!("v"), "delete"), ("k", json!("v"), "")],
    )]);
    assert_eq!(b.text(SYSCTL), "k=v\nz=1\n");
}

#[test]
fn odd_words_of_users_are_read_with_a_note() {
    let mut b = Bench::file(KUBELET, "a: 1\n");
    let r = b.apply(&[config("kuberntes.kubelet", "", &[("a", json!(2), "updte")])]);
    assert!(r[0].message.contains("read as kubernetes.kubelet"), "{r:?}");
    assert!(r[0].message.contains("\"updte\""), "{r:?}");
    assert!(
        b.plan(&[config("pam.limits", "", &[])])
            .unwrap()
            .entries
            .is_empty()
    );
    let e = request::items(
        &[config("grub.cmdline.next", "", &[("a", json!(1), "")])],
        &Err(crate::error::AgentError::new(
            os_proto::codes::Code::DiskUnsupported,
            "no slots here",
        )),
    )
    .unwrap();
    assert!(e[0].bad.as_ref().unwrap().contains("no slots here"));
    let many = v1::Config {
        contents: vec![v1::ConfigContent::default(); 5000],
        ..config("kernel.sysctl", "", &[])
    };
    assert!(b.plan(&[many]).is_err());
}

#[test]
fn what_waits_for_a_restart_says_so_until_it_happened() {
    use effect::{Seen, Written, merge};
    let mut b = Bench::file(KUBELET, "a: 1\n");
    assert!(b.apply(&[config("kubernetes.kubelet", "", &[("a", json!(2), "")])])[0].pending);
    b.kernel.insert("vm/swappiness".into(), "60".into());
    b.kernel.insert("vm/max_map_count".into(), "10\t20".into());
    let r = b.apply(&[config(
        "kernel.sysctl.persist",
        "",
        &[
            ("vm.swappiness", json!(10), ""),
            ("vm.max_map_count", json!("10 20"), ""),
        ],
    )]);
    assert!(r[0].pending, "the kernel still has 60");
    let written = |unit: &str, slot, values: &[(&str, &str)]| Written {
        target: "/f".into(),
        model: "m".into(),
        previous: "/kept".into(),
        at_unix: 1,
        at_secs: 100,
        boot_id: "one".into(),
        unit: unit.into(),
        slot,
        values: values.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect(),
        unknown: Default::default(),
    };
    let seen = |boot: &str, running, started: Option<u64>| Seen {
        boot_id: boot.into(),
        running: Some(running),
        started_secs: started
            .map(|s| ("kubelet.service".to_owned(), s))
            .into_iter()
            .collect(),
        kernel: BTreeMap::from([("vm/x".to_owned(), "1\t2".to_owned())]),
    };
    let k = written("kubelet.service", None, &[]);
    for (boot, started, waits) in [
        ("one", Some(50), Some("a restart of kubelet.service")),
        ("one", Some(100), Some("a restart of kubelet.service")),
        ("one", None, Some("a start of kubelet.service")),
        ("one", Some(101), None),
        ("two", Some(5), None),
        ("two", None, Some("a start of kubelet.service")),
    ] {
        assert_eq!(
            k.waits_for(&seen(boot, Slot::A, started)).as_deref(),
            waits,
            "{boot} {started:?}"
        );
    }
    assert!(k.describe("x").contains("written, not yet in effect") && k.describe("x").contains("/kept"));
    let a = written("", Some(Slot::B), &[]);
    assert!(a.waits_for(&seen("one", Slot::B, None)).is_some());
    assert!(a.waits_for(&seen("two", Slot::A, None)).is_some());
    assert!(a.waits_for(&seen("two", Slot::B, None)).is_none());
    let s = |v: &str| written("", None, &[("vm/x", v)]).waits_for(&seen("one", Slot::A, None));
    assert!(s("1 2").is_none() && s("3").is_some());
    // Two changes before a restart: the content that was last in effect stays the one that is kept.
    let mut list = vec![written("kubelet.service", None, &[])];
    merge(
        &mut list,
        vec![Written {
            previous: "/other".into(),
            ..k.clone()
        }],
    );
    assert_eq!((list.len(), list[0].previous.as_str()), (1, "/kept"));
}

#[test]
fn kf_s2_certificate_names_are_plain() {
    let stage = |name: &str| {
        crate::wire::stage(
            &v1::StageRequest {
                source: Some(v1::Source {
                    from: Some(v1::source::From::Url("https://images.example/x".into())),
                    certificates: Some(v1::Certificates {
                        cacert: name.into(),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                checksum: "00".repeat(32),
                ..Default::default()
            },
            |_| None,
        )
    };
    for bad in ["../../shadow", "a/b.pem", "/etc/KubeOS/certs/../../shadow", ".."] {
        assert!(stage(bad).is_err(), "{bad}");
    }
    assert_eq!(
        stage("lab-ca.pem").unwrap().request.cacert.unwrap(),
        "/etc/KubeOS/certs/lab-ca.pem"
    );
}
