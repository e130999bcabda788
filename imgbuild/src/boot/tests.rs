use super::*;
use os_proto::kernel_args::user_env;

fn args(recipe: &[&str]) -> Result<String, BadArgs> {
    image_args(Arch::X86_64, recipe)
}

#[test]
fn default_arguments_are_in_every_image_and_the_recipe_comes_last() {
    insta::assert_snapshot!(args(&["panic=3  nomodeset", "crashkernel=256M"]).unwrap());
    assert!(
        image_args::<&str>(Arch::Aarch64, &[])
            .unwrap()
            .contains("console=ttyAMA0")
    );
}

#[test]
fn an_environment_file_gives_back_what_went_in() {
    let env = args_env(Arch::X86_64, &["a=b=c", "x"]).unwrap();
    assert_eq!(env.len() % 1024, 0);
    assert_eq!(
        env_block::value(&env, "args").unwrap(),
        args(&["a=b=c", "x"]).unwrap()
    );
    assert_eq!(env_block::value(&menu_env(false), "menu").unwrap(), "off");
    assert_eq!(env_block::value(&menu_env(true), "menu").unwrap(), "on");
    let user = user_env(&["hugepages=4"]).unwrap();
    assert_eq!(env_block::value(&user, "user_args").unwrap(), "hugepages=4");
}

#[test]
fn a_root_by_label_or_uuid_is_refused_and_the_message_says_why() {
    for a in [
        "root=LABEL=ROOT-A",
        "root=UUID=0b1c",
        "root=/dev/sda2",
        "quiet root=LABEL=x",
    ] {
        let e = args(&[a]).unwrap_err();
        assert!(matches!(e, BadArgs::Root(_)), "{a}");
        assert!(
            e.to_string().contains("both slots may carry the same label"),
            "{e}"
        );
    }
    for a in ["os.trial=3", "os.slot=B", "rw", "ro", "os.boot=2"] {
        assert!(matches!(args(&[a]), Err(BadArgs::Reserved(_))), "{a}");
    }
    assert!(args(&["systemd.unit=root.target", "rootflags=noatime", "rooted"]).is_ok());
}

#[test]
fn what_would_not_reach_the_kernel_unchanged_is_refused() {
    for a in [
        "a\nargs=b",
        "a\tb",
        "dyndbg=\"file x +p\"",
        "a\\b",
        "it's",
        "ü",
        "a\0b",
    ] {
        assert!(matches!(args(&[a]), Err(BadArgs::Character { .. })), "{a:?}");
        assert!(matches!(user_env(&[a]), Err(BadArgs::Character { .. })), "{a:?}");
    }
    assert!(matches!(
        args(&[&"x".repeat(1400)]),
        Err(BadArgs::TooLong { most: 1400, .. })
    ));
    assert!(matches!(
        user_env(&["x".repeat(501)]),
        Err(BadArgs::TooLong {
            found: 501,
            most: 500
        })
    ));
}

#[test]
fn every_command_of_grub_cfg_is_embedded() {
    // Command -> module that gives it; commands of GRUB's kernel and script language are left out.
    let home = [
        ("serial ", "serial"),
        ("terminal_input ", "terminal"),
        ("regexp ", "regexp"),
        ("load_env ", "loadenv"),
        ("save_env ", "loadenv"),
        ("if [ ", "test"),
        ("echo ", "echo"),
        ("probe ", "probe"),
        ("linux ", "linux"),
        ("initrd ", "linux"),
        ("boot\n", "boot"),
        ("reboot\n", "reboot"),
        ("sleep ", "sleep"),
        ("menuentry ", "normal"),
    ];
    for (command, module) in home {
        assert!(GRUB_CFG.contains(command), "{command} is no longer used");
        assert!(Platform::Pc.modules().contains(&module), "{module}");
    }
    for p in Platform::of(Arch::X86_64) {
        for m in ["part_gpt", "fat", "ext2"] {
            assert!(p.modules().contains(&m), "{m}");
        }
    }
}

#[test]
fn grub_cfg_finds_nothing_by_label_or_uuid() {
    assert!(!GRUB_CFG.contains("search"));
    assert!(!GRUB_CFG.contains("LABEL"));
    assert!(GRUB_CFG.contains("root=PARTUUID=$uuid ro os.slot=$slot os.boot=1 $trial_arg $args $user_args"));
    for id in ["--id slipway", "--id KubeOS-A", "--id KubeOS-B"] {
        assert!(GRUB_CFG.contains(id));
    }
}

#[test]
fn names_of_platforms_are_grubs() {
    let rows: Vec<_> = [
        Platform::Pc,
        Platform::Efi(Arch::X86_64),
        Platform::Efi(Arch::Aarch64),
    ]
    .iter()
    .map(|p| (p.format(), p.prefix(), p.removable_path()))
    .collect();
    insta::assert_debug_snapshot!(rows);
}
