//! The acceptance ladder (steps.md, section 12): a step of our own in the shape of each row; two passes, of which the second
//! changes nothing. Row 14 needs a cluster and is with the cluster's tests.

use super::*;

/// Runs a step twice (the second time in another boot); it must succeed both times and change nothing the second time.
fn twice(w: &World, step: &str) {
    let steps = [("000_step.sh", step)];
    let first = converged(&w.run(&steps));
    assert!(first <= 1);
    w.reboot("boot-2");
    let e = w.tick(&steps);
    assert_eq!(e.executed, 1);
    assert_eq!(converged(&e), 0, "the second pass changed something");
}

fn stub(w: &World, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = w.place.dirs.opt.join("bin").join(name);
    std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn row_01_plain_bash() {
    let w = World::new();
    twice(
        &w,
        "for d in a b c; do\n  if [[ ! -d $T/mnt/$d ]]; then mkdir -p $T/mnt/$d; fi\ndone\n",
    );
    assert!(w.place.root.join("mnt/c").is_dir());
}

#[test]
fn row_02_directories_and_modes() {
    use std::os::unix::fs::PermissionsExt;
    let w = World::new();
    twice(
        &w,
        "mkdir -p $T/kube/{pki,manifests}\nchmod 0700 $T/kube/pki\nmkdir -p $T/kubelet\n",
    );
    let mode = w
        .place
        .root
        .join("kube/pki")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn row_03_exit_half_way() {
    let w = World::new();
    twice(
        &w,
        "if ! bb-is-bundle ubuntu-lts debian; then exit 0; fi\nbb-sync-file $T/apt.conf - <<EOF\nTimeout 5;\nEOF\n",
    );
}

#[test]
fn row_04_node_name_and_the_failure_path() {
    let w = World::new();
    let step = "# agent: retries=1\nname=$(bb-d8-node-name)\nif [[ ! $name =~ ^[a-z0-9.-]+$ ]]; then\n  \
                bb-log-error \"host name $name is not valid\"\n  exit 1\nfi\n";
    twice(&w, step);
    std::fs::write(w.place.dirs.base.join("discovered-node-name"), "Bad_Name").unwrap();
    let changed = format!("{step}#\n");
    let e = w.run(&[("000_step.sh", &changed)]);
    assert_eq!(
        failure(&e).output,
        "bashible ERROR host name Bad_Name is not valid\n"
    );
}

#[test]
fn row_05_an_event_at_once_on_a_changed_file() {
    let w = World::new();
    stub(&w, "systemctl", "echo \"$*\" >>$T/systemctl");
    twice(
        &w,
        "bb-event-on 'bb-sync-file-changed' '_on_changed'\n_on_changed() { systemctl restart sysctl-filter.service; }\n\
         bb-sync-file $T/filter.conf - <<'EOF'\nnet.ipv4.conf.*.rp_filter = 0\nEOF\n",
    );
    assert_eq!(w.read("systemctl"), "restart sysctl-filter.service\n");
}

#[test]
fn row_06_a_flag_and_a_return_at_the_top() {
    let w = World::with(Settings::default());
    twice(
        &w,
        "if [[ -e $T/blacklist ]]; then return 0; fi\necho blacklist floppy >$T/blacklist\nbb-flag-set kubelet-need-restart\nreturn 0\nfalse\n",
    );
    assert!(w.place.dirs.flags().join("kubelet-need-restart").exists());
}

#[test]
fn row_07_a_file_from_standard_input() {
    let w = World::new();
    twice(
        &w,
        "bb-sync-file $T/modules/br.conf - << END\noverlay\nbr_netfilter\nEND\n",
    );
    assert_eq!(w.read("modules/br.conf"), "overlay\nbr_netfilter\n");
}

#[test]
fn row_08_the_os_table() {
    let w = World::new();
    std::fs::create_dir_all(&w.place.dirs.etc).unwrap();
    std::fs::write(
        w.place.dirs.etc.join("os-release"),
        "ID=rocky\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\n",
    )
    .unwrap();
    twice(
        &w,
        "# agent: retries=1\nbb-is-bundle centos; ! bb-is-bundle ubuntu-lts debian; bb-is-distro-like? rhel\n\
         bb-is-centos-version? 9; ! bb-is-centos-version? 8; bb-is-family redhat\n\
         if bb-is-bundle centos; then bb-sync-file $T/path.sh - <<< 'export PATH=/opt/deckhouse/bin:$PATH'; fi\n",
    );
    assert_eq!(w.read("path.sh"), "export PATH=/opt/deckhouse/bin:$PATH\n");
}

#[test]
fn row_09_a_delayed_event_fires_once_at_the_end() {
    let w = World::new();
    stub(&w, "systemctl", "echo \"$*\" >>$T/systemctl");
    twice(
        &w,
        "bb-event-on 'timer-changed' '_enable'\n_enable() { systemctl daemon-reload; systemctl restart x.timer; }\n\
         bb-sync-file $T/x.timer - timer-changed <<EOF\n[Timer]\nEOF\nbb-sync-file $T/x.service - timer-changed <<EOF\n[Service]\nEOF\n\
         [ ! -e $T/systemctl ] || [ $(wc -l <$T/systemctl) = 2 ]\n",
    );
    assert_eq!(w.read("systemctl"), "daemon-reload\nrestart x.timer\n");
}

#[test]
fn row_10_lists_of_endpoints_and_an_empty_list_refused() {
    let w = World::new();
    let step = |list: &str| {
        format!(
            "# agent: retries=1\nupstreams='{list}'\nif [[ $upstreams == '[]' ]]; then bb-log-error 'empty list of servers'; exit 1; fi\n\
             bb-sync-file $T/upstreams.json - <<< \"$upstreams\"\n"
        )
    };
    twice(&w, &step(r#"["10.0.0.1:6443","10.0.0.2:6443"]"#));
    // Fault 16: the old list stays.
    let e = w.run(&[("000_step.sh", &step("[]"))]);
    assert_eq!(failure(&e).output, "bashible ERROR empty list of servers\n");
    assert_eq!(
        w.read("upstreams.json"),
        "[\"10.0.0.1:6443\",\"10.0.0.2:6443\"]\n"
    );
}

#[test]
fn row_11_settings_of_the_kernel() {
    let w = World::new();
    stub(&w, "sysctl", "echo \"$*\" >>$T/sysctl");
    twice(
        &w,
        "bb-event-on changed 'sysctl -q -p \"$T/tuner.conf\"'\nbb-sync-file $T/tuner.conf - changed <<EOF\nvm.max_map_count = 262144\nEOF\n",
    );
    assert_eq!(w.lines("sysctl"), 1);
}

#[test]
fn row_12_a_tree_of_registries() {
    let w = World::new();
    twice(
        &w,
        "new=$(bb-tmp-dir)\nfor h in a.example b.example; do mkdir -p $new/$h; echo \"server = \\\"https://$h\\\"\" >$new/$h/hosts.toml; done\n\
         bb-sync-dir $T/registry.d $new containerd-changed\n",
    );
    assert_eq!(
        w.read("registry.d/b.example/hosts.toml"),
        "server = \"https://b.example\"\n"
    );
}

#[test]
fn row_13_a_long_configuration() {
    let w = World::new();
    let body: String = (0..400).map(|i| format!("key{i}: value{i}\n")).collect();
    twice(
        &w,
        &format!("bb-sync-file $T/kubelet/config.yaml - kubelet-changed <<'EOF'\n{body}EOF\n"),
    );
    assert_eq!(w.read("kubelet/config.yaml"), body);
}

#[test]
fn row_15_flags_across_steps() {
    let w = World::new();
    stub(&w, "systemctl", "echo \"$*\" >>$T/systemctl");
    let steps = [
        (
            "030_conf.sh",
            "bb-event-on conf '_c'\n_c() { bb-flag-set kubelet-need-restart; }\necho 1 | bb-sync-file $T/k.conf - conf\n",
        ),
        (
            "069_start.sh",
            "if bb-flag? kubelet-need-restart; then systemctl restart kubelet.service; sleep 0.1; bb-flag-unset kubelet-need-restart; fi\n",
        ),
    ];
    converged(&w.run(&steps));
    assert_eq!(w.read("systemctl"), "restart kubelet.service\n");
    w.reboot("boot-2");
    converged(&w.tick(&steps));
    assert_eq!(w.lines("systemctl"), 1);
}
