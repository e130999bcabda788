//! What happens to the users' texts, byte for byte.

use super::*;

const YAML: &str = "# kubelet of the blue pool
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# DNS
clusterDNS:   # two of them
- 10.0.0.10
evictionHard:
    # a whole lot
    imagefs.available: \"15%\"   # quoted
    memory.available: 100Mi
authentication: {anonymous: {enabled: false}, x509: {}}
empty:
maxPods: 110 # per node
last: |
  several
  lines
";

#[track_caller]
fn yaml(entries: &[Entry<'_>], change: impl Fn(&str) -> String) {
    let mut b = Bench::file(KUBELET, YAML);
    b.apply(&[config("kubernetes.kubelet", "", entries)]);
    assert_eq!(b.text(KUBELET), change(YAML));
}

#[test]
fn yaml_values_change_where_they_stand() {
    yaml(&[("maxPods", json!(250), "")], |t| t.replace("110 #", "250 #"));
    yaml(
        &[("evictionHard.\"memory.available\"", json!("300Mi"), "")],
        |t| t.replace("memory.available: 100Mi", "memory.available: \"300Mi\""),
    );
    yaml(&[("evictionHard.'imagefs.available'", json!("10%"), "")], |t| {
        t.replace("15%", "10%")
    });
    yaml(&[("authentication.anonymous.enabled", json!(true), "")], |t| {
        t.replace("enabled: false", "enabled: true")
    });
    yaml(&[("empty", json!("x"), "")], |t| t.replace("empty:", "empty: x"));
    yaml(&[("empty", json!(["a"]), "")], |t| {
        t.replace("empty:\n", "empty:\n- a\n")
    });
    yaml(&[("maxPods", json!(null), "")], |t| t.replace("110 #", "null #"));
    yaml(&[("last", json!("one"), "")], |t| {
        t.replace("last: |\n  several\n  lines\n", "last: one\n")
    });
    yaml(&[("maxPods", json!(["a", "b"]), "")], |t| {
        t.replace("maxPods: 110 # per node\n", "maxPods: # per node\n- a\n- b\n")
    });
}

#[test]
fn yaml_keys_are_added_behind_their_neighbours_and_missing_maps_made() {
    yaml(&[("evictionHard.\"nodefs.available\"", json!("5%"), "")], |t| {
        t.replace(
            "    memory.available: 100Mi\n",
            "    memory.available: 100Mi\n    nodefs.available: \"5%\"\n",
        )
    });
    yaml(&[("logging.format", json!("json"), "")], |t| {
        format!("{t}logging:\n  format: json\n")
    });
    yaml(&[("featureGates", json!({"A": true, "B": {}}), "")], |t| {
        format!("{t}featureGates:\n  A: true\n  B: {{}}\n")
    });
    yaml(&[("authentication.webhook.enabled", json!(true), "")], |t| {
        t.replace("x509: {}}", "x509: {}, \"webhook\": {\"enabled\": true}}")
    });
    yaml(
        &[("authentication.x509.clientCAFile", json!("/etc/ca"), "")],
        |t| t.replace("x509: {}", "x509: {\"clientCAFile\": \"/etc/ca\"}"),
    );
    yaml(&[("empty.a.b", json!(1), "")], |t| {
        t.replace("empty:\n", "empty:\n  a:\n    b: 1\n")
    });
    yaml(&[("clusterDNS", json!(["10.0.0.10", "::1"]), "")], |t| {
        t.replace("- 10.0.0.10\n", "- 10.0.0.10\n- \"::1\"\n")
    });
    // A file without its last line break, and one without anything.
    let mut b = Bench::file(KUBELET, "a: 1");
    b.apply(&[config("kubernetes.kubelet", "", &[("b", json!("on"), "")])]);
    assert_eq!(b.text(KUBELET), "a: 1\nb: \"on\"\n");
    let mut b = Bench::file(KUBELET, "# nothing yet\n");
    b.apply(&[config("kubernetes.kubelet", "", &[("b.c", json!(1.5), "")])]);
    assert_eq!(b.text(KUBELET), "# nothing yet\nb:\n  c: 1.5\n");
    let mut b = Bench::file(KUBELET, "a: 1\r\nb: 2\r\n");
    b.apply(&[config("kubernetes.kubelet", "", &[("c", json!(3), "")])]);
    assert_eq!(b.text(KUBELET), "a: 1\r\nb: 2\r\nc: 3\r\n");
}

#[test]
fn yaml_keys_go_without_the_comments_of_others() {
    yaml(&[("maxPods", json!(null), "delete")], |t| {
        t.replace("maxPods: 110 # per node\n", "")
    });
    yaml(&[("clusterDNS", json!("whatever"), "delete")], |t| {
        t.replace("clusterDNS:   # two of them\n- 10.0.0.10\n", "")
    });
    yaml(
        &[("evictionHard.'memory.available'", json!(null), "delete")],
        |t| t.replace("    memory.available: 100Mi\n", ""),
    );
    yaml(&[("empty", json!(null), "delete")], |t| t.replace("empty:\n", ""));
    yaml(&[("authentication.anonymous", json!(null), "delete")], |t| {
        t.replace("anonymous: {enabled: false}, ", "")
    });
    yaml(&[("authentication.x509", json!(null), "delete")], |t| {
        t.replace(", x509: {}", "")
    });
    yaml(&[("last", json!(null), "delete")], |t| {
        t.replace("last: |\n  several\n  lines\n", "")
    });
    // The only key of a map: an empty map is left, not null.
    let mut b = Bench::file(KUBELET, "a:\n  b: 1\nc: 2\n");
    b.apply(&[config(
        "kubernetes.kubelet",
        "",
        &[("a.b", json!(null), "delete")],
    )]);
    assert_eq!(b.text(KUBELET), "a: {}\nc: 2\n");
}

#[test]
fn yaml_that_cannot_be_changed_in_place_is_refused_untouched() {
    let why = |text: &str, entry: Entry<'_>| {
        Bench::file(KUBELET, text).rejected(&[config("kubernetes.kubelet", "", &[entry])])
    };
    assert!(why("a: &x {b: 1}\nc: *x\n", ("c.d", json!(1), "")).contains("by hand"));
    assert!(why("a: [1]\n", ("a", json!(2), "")).contains("is a list"));
    assert!(why("a: {b: 1}\n", ("a", json!(2), "")).contains("is a map"));
    assert!(why("a: 1\n", ("a.b", json!(2), "")).contains("a is a number"));
    assert!(why("a: 1\n---\nb: 2\n", ("a", json!(2), "")).contains("several"));
    assert!(why("a: [1\n", ("a", json!(2), "")).contains("valid YAML"));
    assert!(why("- a\n", ("a", json!(2), "")).contains("no map"));
    assert!(why("a: 1\n", ("a..b", json!(2), "")).contains("empty part"));
    assert!(
        Bench::default()
            .rejected(&[config("kubernetes.kubelet", "", &[("a", json!(1), "")])])
            .contains("does not exist")
    );
    // JSON is YAML.
    let mut b = Bench::file(KUBELET, "{\n  \"a\": 1,\n  \"b\": {}\n}\n");
    b.apply(&[config(
        "kubernetes.kubelet",
        "",
        &[("b.c", json!("x"), ""), ("d", json!([1]), "")],
    )]);
    let v: Value = serde_json::from_str(&b.text(KUBELET)).unwrap();
    assert_eq!(v, json!({"a": 1, "b": {"c": "x"}, "d": [1]}));
}

const TOML: &str = "# containerd of the blue pool
version = 2
root = \"/var/lib/containerd\" # big disk

[grpc]
  # the socket
  address = \"/run/containerd/containerd.sock\"
  uid = 0

[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"pause:3.8\"
  enable = [\"a\", \"b\"] # both
  [plugins.\"io.containerd.grpc.v1.cri\".registry]
    config_path = \"\"
# end
";

#[track_caller]
fn toml(entries: &[Entry<'_>], change: impl Fn(&str) -> String) {
    let mut b = Bench::file(CONTAINERD, TOML);
    b.apply(&[config("container.containerd", "", entries)]);
    assert_eq!(b.text(CONTAINERD), change(TOML));
}

#[test]
fn toml_changes_where_it_stands_and_keeps_comments() {
    toml(
        &[(
            "plugins.\"io.containerd.grpc.v1.cri\".sandbox_image",
            json!("reg/pause:3.9"),
            "",
        )],
        |t| t.replace("pause:3.8", "reg/pause:3.9"),
    );
    toml(&[("root", json!("/data"), "")], |t| {
        t.replace("\"/var/lib/containerd\" #", "\"/data\" #")
    });
    toml(
        &[(
            "plugins.'io.containerd.grpc.v1.cri'.enable",
            json!(["b", "c"]),
            "",
        )],
        |t| t.replace("\"b\"]", "\"b\", \"c\"]"),
    );
    toml(&[("grpc.gid", json!(0), "")], |t| {
        t.replace("  uid = 0\n", "  uid = 0\n  gid = 0\n")
    });
    toml(&[("grpc.uid", json!(null), "delete")], |t| {
        t.replace("  uid = 0\n", "")
    });
    // The comment above a deleted key stays.
    toml(&[("grpc.address", json!(null), "delete")], |t| {
        t.replace("  address = \"/run/containerd/containerd.sock\"\n", "")
    });
    let mut b = Bench::file(CONTAINERD, TOML);
    b.apply(&[config(
        "container.containerd",
        "",
        &[
            ("metrics.address", json!("127.0.0.1:1338"), ""),
            ("debug.level", json!("info"), ""),
        ],
    )]);
    let now = b.text(CONTAINERD);
    assert!(
        now.contains("[metrics]\naddress = \"127.0.0.1:1338\"\n")
            && now.contains("[debug]\nlevel = \"info\"\n"),
        "{now}"
    );
    for l in TOML.lines() {
        assert!(now.contains(l), "{l}");
    }
}

#[test]
fn toml_that_cannot_be_is_refused() {
    let why = |text: &str, entry: Entry<'_>| {
        Bench::file(CONTAINERD, text).rejected(&[config("container.containerd", "", &[entry])])
    };
    assert!(why("a = 1\n", ("a", json!(null), "")).contains("null"));
    assert!(why("a = 1\n", ("b", json!({"c": 1}), "")).contains("map"));
    assert!(why("a = 1\n", ("a.b", json!(1), "")).contains("a is a number"));
    assert!(why("a = [1]\n", ("a", json!(1), "")).contains("is a list"));
    assert!(why("a = \n", ("a", json!(1), "")).contains("valid TOML"));
    assert!(why("[[a]]\nb = 1\n", ("a.c", json!(1), "")).contains("is a list"));
    let mut b = Bench::file(CONTAINERD, "a = {b = 1}\nc.d = 1\n");
    b.apply(&[config(
        "container.containerd",
        "",
        &[
            ("a.x", json!(2), ""),
            ("c.e", json!(3), ""),
            ("c.d", json!(null), "delete"),
        ],
    )]);
    assert_eq!(
        toml_tree(&b.text(CONTAINERD)),
        json!({"a": {"b": 1, "x": 2}, "c": {"e": 3}})
    );
}

#[test]
fn a_new_containerd_file_says_which_version_it_is() {
    for (key, version) in [
        ("plugins.\"io.containerd.grpc.v1.cri\".sandbox_image", json!(2)),
        ("plugins.\"io.containerd.cri.v1.images\".pinned", json!(3)),
    ] {
        let mut b = Bench::default();
        b.apply(&[config("container.containerd", "", &[(key, json!("x"), "")])]);
        assert_eq!(toml_tree(&b.text(CONTAINERD))["version"], version);
    }
}

fn toml_tree(text: &str) -> Value {
    containerd::parse(text).unwrap()
}

#[test]
fn sysctl_files_keep_comments_blanks_and_what_is_not_understood() {
    let old = "# ours\n\n; old style\n-net.ipv4.ip_forward = 0\nkernel.printk=4\t4 1 7\nnonsense\nvm/swappiness =60\nvm.swappiness = 50";
    let mut b = Bench::file(SYSCTL, old);
    b.apply(&[config(
        "kernel.sysctl.persist",
        "",
        &[
            ("net/ipv4/ip_forward", json!(1), ""),
            ("kernel.printk", json!("4 4  1 7"), ""),
            ("vm.swappiness", json!(10), ""),
            ("vm.max_map_count", json!(262_144), ""),
        ],
    )]);
    let now = old.replace("forward = 0", "forward = 1").replace("= 50", "= 10");
    assert_eq!(b.text(SYSCTL), format!("{now}\nvm.max_map_count = 262144\n"));
    let why = b.rejected(&[config(
        "kernel.sysctl.persist",
        "",
        &[("vm.swappiness", json!(10), "delete")],
    )]);
    assert!(why.contains("\"60\""), "{why}");
    b.apply(&[config(
        "kernel.sysctl.persist",
        "",
        &[("vm.max_map_count", json!("262144"), "delete")],
    )]);
    assert_eq!(b.text(SYSCTL), format!("{now}\n"));
    // A file that does not exist is made.
    let mut b = Bench::default();
    b.apply(&[config(
        "kernel.sysctl.persist",
        "/etc/sysctl.d/50-x.conf",
        &[("a.b", json!(true), "")],
    )]);
    assert_eq!(b.text("/etc/sysctl.d/50-x.conf"), "a.b=true\n");
}
