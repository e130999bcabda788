//! Files as users of KubeOS have them.

use super::*;
use document::{Part, parse};

const OS: &str = r#"
apiVersion: upgrade.openeuler.org/v1alpha1
kind: OS
metadata: {name: pool-blue}
spec:
  imagetype: disk
  opstype: upgrade
  osversion: KubeOS 7.3
  flagSafe: false
  maxunavailable: 3
  upgradeconfigs:
    version: pre-7.3
    configs:
      - model: kernel.sysctl.persist
        configpath: /etc/sysctl.d/50-blue.conf
        contents: [{key: vm.max_map_count, value: 262144}]
  sysconfigs:
    version: post-7.3
    configs:
      - model: grub.cmdline.next
        contents:
          - {key: mitigations, value: auto}
          - {key: quiet, operation: delete}
      - model: kubernetes.kubelet
        contents: [{key: 'evictionHard."memory.available"', value: 300Mi}]
      - model: container.containerd
        contents: [{key: 'plugins."io.containerd.grpc.v1.cri".sandbox_image', value: "reg.lab.example/pause:3.9"}]
      - model: pam.limits
        contents: [{key: "@ops", value: soft.nofile.65535}]
"#;

#[test]
fn a_whole_os_resource_is_applied_as_it_is() {
    let mut b = Bench::file(KUBELET, "kind: KubeletConfiguration\n");
    b.files
        .insert(Target::File(LIMITS.into()), b"# limits\n".to_vec());
    let configs = parse(OS, None).unwrap();
    let r = b.apply(&configs);
    assert_eq!(r.len(), 6);
    assert_eq!(b.text("/etc/sysctl.d/50-blue.conf"), "vm.max_map_count=262144\n");
    assert_eq!(b.args(Slot::B), ["mitigations=auto"]);
    assert_eq!(
        b.text(KUBELET),
        "kind: KubeletConfiguration\nevictionHard:\n  memory.available: \"300Mi\"\n"
    );
    assert_eq!(
        b.text(CONTAINERD),
        "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"reg.lab.example/pause:3.9\"\n"
    );
    assert_eq!(b.text(LIMITS), "# limits\n@ops soft nofile 65535\n");
    // Which part: by name, or by the kind of operation.
    let models = |t: &str, p| -> Vec<String> { parse(t, p).unwrap().into_iter().map(|c| c.model).collect() };
    assert_eq!(models(OS, Some(Part::Upgradeconfigs)), ["kernel.sysctl.persist"]);
    assert_eq!(models(OS, Some(Part::Sysconfigs)).len(), 4);
    assert_eq!(
        models(&OS.replace("opstype: upgrade", "opstype: config"), None).len(),
        4
    );
    assert_eq!("sysconfigs".parse::<Part>(), Ok(Part::Sysconfigs));
    assert!("both".parse::<Part>().is_err());
}

#[test]
fn every_form_of_the_array_reads_alike() {
    let want = parse(
        "- model: kernel.sysctl\n  contents:\n  - {key: vm.swappiness, value: 10}\n",
        None,
    )
    .unwrap();
    assert_eq!(want[0].contents[0].value_json, "10");
    for text in [
        "configs:\n- model: kernel.sysctl\n  contents:\n  - key: vm.swappiness\n    value: 10\n    operation: ''\n",
        "version: v1\nconfigs: [{model: kernel.sysctl, configpath: '', contents: [{key: vm.swappiness, value: 10, operation: null}]}]",
        r#"[{"model":"kernel.sysctl","contents":[{"key":"vm.swappiness","value":10}]}]"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"configure","params":[{"configs":[{"model":"kernel.sysctl","config_path":"","contents":{"vm.swappiness":{"value":10,"operation":""}}}]}]}"#,
        "model: kernel.sysctl\ncontents:\n- {key: vm.swappiness, value: 10}\n",
        "---\nmodel: kernel.sysctl\ncontents:\n- {key: vm.swappiness, value: 10}\n---\n",
    ] {
        assert_eq!(parse(text, None).unwrap(), want, "{text}");
    }
    let configs = [want[0].clone()];
    let mut b = Bench::default();
    b.kernel.insert("vm/swappiness".into(), "60".into());
    b.apply(&configs);
    assert_eq!(b.kernel["vm/swappiness"], "10");
}

#[test]
fn scalars_of_any_type_and_absent_values_are_taken() {
    let text = "- model: kernel.sysctl.persist\n  contents:\n  - {key: a, value: 1}\n  - {key: b, value: '1'}\n  - {key: c, value: true}\n  - {key: d, value: 4096 131072}\n- model: grub.cmdline.current\n  contents:\n  - key: nosmt\n  - key: 5\n    value: 1.5\n";
    let mut b = Bench::default();
    b.apply(&parse(text, None).unwrap());
    assert_eq!(b.text(SYSCTL), "a=1\nb=1\nc=true\nd=4096 131072\n");
    assert_eq!(b.args(Slot::A), ["nosmt", "5=1.5"]);
}

#[test]
fn what_is_no_such_file_says_where_it_is_wrong() {
    for (text, says) in [
        ("", "no configs"),
        ("a: 1", "configs"),
        ("kind: Pod\n", "kind \"Pod\""),
        ("kind: OS\n", "no spec"),
        ("kind: OS\nspec: {opstype: upgrade}\n", "no configs"),
        ("configs: 5", "expected a list"),
        ("- model: nosuch\n", "configs[0]: model \"nosuch\""),
        (
            "- {model: kernel.sysctl, content: []}",
            "configs[0]: key \"content\"",
        ),
        (
            "- {model: kernel.sysctl, contents: [{kye: a}]}",
            "configs[0].contents[0]: key \"kye\"",
        ),
        ("- {model: kernel.sysctl, contents: 7}", "configs[0].contents"),
        ("a: [", "YAML"),
        ("{\"configs\": [}", "JSON"),
    ] {
        let e = parse(text, None).unwrap_err();
        assert!(e.contains(says), "{text:?}: {e}");
    }
    assert!(parse(&"#".repeat(2 << 20), None).unwrap_err().contains("at most"));
}
