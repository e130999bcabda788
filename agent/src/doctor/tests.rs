use super::*;
use crate::error::AgentError;
use crate::ports::EnvCopies;
use crate::state::State;
use crate::testing::{HandClock, MemDisk, MemHost, MemSource, ports};
use os_proto::codes::Code;
use os_proto::env_block::Env;

const GRUB: &str = "load_env --file $state/env1 cur\nsave_env --file $state/env1 left\nset x=os.trial=1\n";

fn facts() -> Facts {
    let env = Env::committed(Slot::A, 3);
    Facts {
        offline: false,
        disk: Ok(Disk {
            node: "/dev/vda".into(),
            running: Slot::A,
            sector_size: 512,
            slot_bytes: [MIB * 100, MIB * 100],
            warnings: Vec::new(),
            busy: None,
            image_bytes: Some(MIB * 90),
        }),
        env: Ok(EnvCopies {
            env1: Ok(env),
            env2: Ok(env),
        }),
        cmdline: "root=PARTUUID=x ro os.slot=A os.boot=1 quiet".into(),
        grub_cfg: Ok(GRUB.into()),
        persist: Persist {
            free: Some((1 << 30, 10_000)),
            ..Persist::default()
        },
        state: State::default(),
        now_unix: 1_800_000_000,
        known_unix: 1_700_000_000,
        synchronised: Some(true),
        watchdogs: vec![Watchdog {
            name: "watchdog0".into(),
            identity: "iTCO_wdt".into(),
            active: true,
            timeout_secs: Some(30),
        }],
        pstore: true,
        route: true,
        name_servers: 1,
        probe: None,
        agent: Ok("os-agent answers".into()),
    }
}

fn verdict(f: &Facts, name: &str) -> Verdict {
    let all = checks(f);
    all.iter()
        .find(|c| c.name == name)
        .unwrap_or_else(|| panic!("{all:#?}"))
        .verdict
}

#[test]
fn a_healthy_node_is_sound() {
    let all = checks(&facts());
    assert!(
        sound(&all) && all.iter().all(|c| c.verdict == Verdict::Good),
        "{all:#?}"
    );
    assert_eq!(all.len(), 9);
}

/// T49: a counter that never falls.
#[test]
fn t49_a_boot_loader_that_does_not_count_is_noticed() {
    let mut f = facts();
    f.grub_cfg = Ok(GRUB.replace("save_env", "echo"));
    assert_eq!(verdict(&f, "boot-counter"), Verdict::Bad);
    f = facts();
    f.cmdline = "root=/dev/vda2 ro".into();
    assert_eq!(verdict(&f, "boot-counter"), Verdict::Bad);
    f = facts();
    f.state.not_started = 1;
    assert_eq!(verdict(&f, "boot-counter"), Verdict::Bad);
    f = facts();
    f.grub_cfg = Err("not mounted".into());
    assert_eq!(verdict(&f, "boot-counter"), Verdict::Warn);
    f = facts();
    f.state.counted_unix = 1_750_000_000;
    let all = checks(&f);
    assert!(
        all[2].found.starts_with("proved: GRUB counted a try on 2025"),
        "{all:#?}"
    );
}

#[test]
fn the_real_grub_cfg_counts() {
    let text = include_str!("../../../imgbuild/src/boot/grub.cfg");
    let mut f = facts();
    f.grub_cfg = Ok(text.into());
    assert_eq!(verdict(&f, "boot-counter"), Verdict::Good);
}

#[test]
fn each_fault_has_its_check_and_its_advice() {
    type Change = Box<dyn Fn(&mut Facts)>;
    let rows: Vec<(&str, Verdict, Change)> = vec![
        (
            "disk",
            Verdict::Bad,
            Box::new(|f| f.disk = Err(AgentError::new(Code::SlotAmbiguous, "two disks"))),
        ),
        (
            "disk",
            Verdict::Bad,
            Box::new(|f| f.disk.as_mut().unwrap().image_bytes = Some(MIB * 101)),
        ),
        (
            "disk",
            Verdict::Bad,
            Box::new(|f| f.disk.as_mut().unwrap().busy = Some("mounted at /mnt".into())),
        ),
        (
            "disk",
            Verdict::Warn,
            Box::new(|f| f.disk.as_mut().unwrap().warnings = vec!["backup table".into()]),
        ),
        (
            "environment",
            Verdict::Bad,
            Box::new(|f| f.env = Err(AgentError::new(Code::StateBroken, "no FAT"))),
        ),
        (
            "environment",
            Verdict::Warn,
            Box::new(|f| f.env.as_mut().unwrap().env2 = Err("crc".into())),
        ),
        (
            "environment",
            Verdict::Bad,
            Box::new(|f| {
                f.env = Ok(EnvCopies {
                    env1: Err("a".into()),
                    env2: Err("b".into()),
                });
            }),
        ),
        (
            "persist",
            Verdict::Bad,
            Box::new(|f| f.persist.missing = Some("not mounted".into())),
        ),
        (
            "persist",
            Verdict::Warn,
            Box::new(|f| f.persist.free = Some((1 << 30, 3))),
        ),
        (
            "persist",
            Verdict::Bad,
            Box::new(|f| {
                f.persist.read_only = true;
                f.persist.problem = Some("state.json needs an agent of state version 9".into());
            }),
        ),
        ("clock", Verdict::Bad, Box::new(|f| f.now_unix = 0)),
        ("clock", Verdict::Warn, Box::new(|f| f.synchronised = Some(false))),
        ("watchdog", Verdict::Warn, Box::new(|f| f.watchdogs.clear())),
        (
            "watchdog",
            Verdict::Warn,
            Box::new(|f| f.watchdogs[0].active = false),
        ),
        ("network", Verdict::Warn, Box::new(|f| f.route = false)),
        (
            "network",
            Verdict::Bad,
            Box::new(|f| f.probe = Some(Err(AgentError::new(Code::FetchFailed, "404")))),
        ),
        (
            "agent",
            Verdict::Bad,
            Box::new(|f| f.agent = Err("refused".into())),
        ),
    ];
    for (name, wanted, change) in rows {
        let mut f = facts();
        change(&mut f);
        let all = checks(&f);
        let c = all.iter().find(|c| c.name == name).unwrap();
        assert_eq!(c.verdict, wanted, "{c:#?}");
        assert!(!c.advice.is_empty(), "{c:#?}");
        assert_eq!(sound(&all), wanted != Verdict::Bad);
    }
}

#[test]
fn what_cannot_be_stored_has_the_advice_of_the_place() {
    let mut f = facts();
    f.persist.missing = Some("/x: Read-only file system".into());
    let advice = |f: &Facts| {
        checks(f)
            .into_iter()
            .find(|c| c.name == "persist")
            .unwrap()
            .advice
    };
    assert!(
        advice(&f).contains("trials are still committed"),
        "{}",
        advice(&f)
    );
    // Offline a commit is refused there, as the target's own lock and log lie in that directory.
    f.offline = true;
    let a = advice(&f);
    assert!(
        a.contains("--state") && a.contains("refused (StateWriteFailed), commit"),
        "{a}"
    );
}

#[test]
fn facts_come_from_the_system_below_a_root_directory() {
    #![allow(clippy::disallowed_methods)]
    let d = tempfile::tempdir().unwrap();
    let root = camino::Utf8Path::from_path(d.path()).unwrap();
    let put = |path: &str, text: &str| {
        let p = root.join(path);
        std::fs::create_dir_all(p.parent().unwrap()).unwrap();
        std::fs::write(p, text).unwrap();
    };
    put("boot/efi/grub/grub.cfg", GRUB);
    put("sys/class/watchdog/watchdog0/identity", "i6300ESB timer\n");
    put("sys/class/watchdog/watchdog0/state", "active\n");
    put("sys/class/watchdog/watchdog0/timeout", "30\n");
    put("sys/module/pstore/parameters/backend", "efi_pstore\n");
    put(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0202A8C0\t0003\t0\t0\t0\t00000000\n",
    );
    put(
        "etc/resolv.conf",
        "# x\nnameserver 10.0.0.1\nnameserver 10.0.0.2\n",
    );
    put("run/systemd/timesync/synchronized", "");
    let (disk, source, host, clock) = (
        MemDisk::new(),
        MemSource::default(),
        MemHost::default(),
        HandClock::default(),
    );
    host.set().cmdline = "ro os.slot=A os.boot=1".into();
    source.put("http://images/2", vec![0; 77]);
    let ports = ports(&disk, &source, &host, &clock);
    let options = crate::engine::Options {
        config: Default::default(),
        offline: false,
        observe: true,
        arch: None,
        limits: Default::default(),
    };
    let sight = |url: &str, allow_http| Sight {
        ports: &ports,
        options: &options,
        root: root.to_owned(),
        state_dir: root.join("persist/os-agent"),
        url: Some(url.to_owned()),
        allow_http,
        agent: Ok(String::new()),
    };
    let f = look(&sight("http://images/2", true));
    let all = checks(&f);
    assert!(sound(&all), "{all:#?}");
    assert_eq!(f.watchdogs[0].identity, "i6300ESB timer");
    assert!(f.pstore && f.route && f.name_servers == 2 && f.synchronised == Some(true));
    assert!(all.iter().any(|c| c.found.contains("77 bytes")), "{all:#?}");
    let refused = look(&sight("http://images/2", false));
    assert_eq!(refused.probe.unwrap().unwrap_err().code, Code::HttpNotAllowed);
}
