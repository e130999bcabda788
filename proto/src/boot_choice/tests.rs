use super::*;
use crate::env_block::Env;
use proptest::prelude::*;

fn block(body: &str) -> Vec<u8> {
    let mut b = [SIGNATURE, body.as_bytes()].concat();
    b.resize(env_block::SIZE, b'#');
    b
}

fn facts<'a>(env1: Option<&'a [u8]>, env2: Option<&'a [u8]>) -> Facts<'a> {
    Facts {
        env1,
        env2,
        a_has_kernel: true,
        save: Save::Works,
        picked: None,
    }
}

/// Boots again and again from the same disk; what each boot started.
fn boots(env1: &[u8], n: usize) -> Vec<Line> {
    let mut env = env1.to_vec();
    (0..n)
        .map(|_| {
            let c = choose(&facts(Some(&env), None));
            env = c.env1.unwrap();
            c.line
        })
        .collect()
}

fn started(lines: &[Line]) -> String {
    lines.iter().map(|l| l.slot.letter()).collect()
}

#[test]
fn a_trial_is_three_boots_and_then_the_committed_slot() {
    let armed = Env::committed(Slot::A, 1).armed(Slot::B).encode();
    let lines = boots(&armed, 5);
    assert_eq!(started(&lines), "BBBAA");
    let trials: Vec<_> = lines.iter().map(|l| l.trial).collect();
    assert_eq!(trials, [Some(2), Some(1), Some(0), None, None]);
    assert_eq!(
        lines[0].to_string(),
        "slipway: src=env1 cur=A try=B left=2 slot=B trial=2"
    );
    assert_eq!(
        lines[3].to_string(),
        "slipway: src=env1 cur=A try=B left=0 slot=A trial=-"
    );
}

#[test]
fn the_table_of_odd_environments() {
    let a = Env::committed(Slot::A, 1).encode().to_vec();
    let b = Env::committed(Slot::B, 1).encode().to_vec();
    let armed = Env::committed(Slot::B, 1).armed(Slot::A).encode().to_vec();
    let bad_cur = block("cur=C\ntry=B\nleft=3\n");
    type Row<'a> = (&'a str, Option<&'a [u8]>, Option<&'a [u8]>, &'a str);
    let rows: [Row<'_>; 15] = [
        ("both good, env1 wins", Some(&a), Some(&b), "env1 A"),
        ("env1 unreadable", None, Some(&b), "env2 B"),
        ("env1 empty", Some(&[]), Some(&b), "env2 B"),
        ("env1 zeros", Some(&[0; 512]), Some(&b), "env2 B"),
        ("env1 header only", Some(SIGNATURE), Some(&b), "env2 B"),
        ("env1 cur=C", Some(&bad_cur), Some(&b), "env2 B"),
        ("env2 armed is no trial", Some(&bad_cur), Some(&armed), "env2 B"),
        ("both lost", None, None, "none A"),
        ("env1 armed", Some(&armed), None, "env1 A"),
        (
            "try = cur",
            Some(&block("cur=A\ntry=A\nleft=3\n")),
            None,
            "env1 A",
        ),
        ("left=9", Some(&block("cur=A\ntry=B\nleft=9\n")), None, "env1 A"),
        (
            "left empty",
            Some(&block("cur=A\ntry=B\nleft=\n")),
            None,
            "env1 A",
        ),
        ("left missing", Some(&block("cur=A\ntry=B\n")), None, "env1 A"),
        ("left=03", Some(&block("cur=A\ntry=B\nleft=03\n")), None, "env1 A"),
        (
            "comment line",
            Some(&block("# hello\ncur=A\ntry=B\nleft=1\n")),
            None,
            "env1 B",
        ),
    ];
    for (name, env1, env2, want) in rows {
        let l = choose(&facts(env1, env2)).line;
        assert_eq!(format!("{} {}", l.source.as_str(), l.slot), want, "{name}");
    }
    let no_kernel = Facts {
        a_has_kernel: false,
        ..facts(None, None)
    };
    assert_eq!(choose(&no_kernel).line.slot, Slot::B);
}

#[test]
fn a_disk_that_cannot_count_starts_no_trial() {
    let armed = Env::committed(Slot::A, 1).armed(Slot::B).encode();
    for save in [Save::Fails, Save::Lost] {
        let c = choose(&Facts {
            save,
            ..facts(Some(&armed), None)
        });
        assert_eq!((c.line.slot, c.line.trial, c.line.left), (Slot::A, None, Some(3)));
        assert_eq!(c.env1.unwrap(), armed);
    }
    // The first `left` is changed, the last one is read.
    let twice = block("cur=A\ntry=B\nleft=3\nleft=3\n");
    assert_eq!(started(&boots(&twice, 5)), "AAAAA");
    // No room for another line, or no filling at all.
    let mut full = block(&format!("x={}\ncur=A\ntry=B\nleft\0=3\n", "y".repeat(458)));
    full.truncate(512);
    assert_eq!(choose(&facts(Some(&full), None)).line.slot, Slot::A);
    let zeros = [&block("cur=A\ntry=B\nleft=3\n")[..100], &[0; 412]].concat();
    assert_eq!(choose(&facts(Some(&zeros), None)).line.slot, Slot::A);
}

#[test]
fn a_hand_picked_slot_uses_no_try() {
    let armed = Env::committed(Slot::A, 1).armed(Slot::B).encode();
    let c = choose(&Facts {
        picked: Some(Slot::B),
        ..facts(Some(&armed), None)
    });
    assert_eq!(
        c.line.to_string(),
        "slipway: src=hand cur=- try=- left=- slot=B trial=-"
    );
    assert_eq!(c.env1.unwrap(), armed);
}

#[test]
fn a_line_is_found_in_serial_output() {
    let l: Line = "\u{1b}[0mslipway: src=env2 cur=B try=- left=- slot=B trial=- "
        .parse()
        .unwrap();
    assert_eq!((l.source, l.cur, l.slot), (Source::Env2, Some(Slot::B), Slot::B));
    for bad in [
        "",
        "slipway: src=",
        "slipway: src=env3 cur=A",
        "slipway: src=env1 cur=A try=- left=- slot=- trial=-",
    ] {
        assert!(bad.parse::<Line>().is_err(), "{bad}");
    }
}

/// Blocks as an agent, a careless tool or a dying disk leaves them.
fn any_block() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just("A"),
        Just("B"),
        Just(""),
        Just("3"),
        Just("2"),
        Just("1"),
        Just("0"),
        Just("9"),
        Just("C"),
        Just("\\3"),
        Just("3\\\n"),
        Just("A\0x"),
        Just("3\r"),
        Just("\\A"),
        Just("33"),
    ];
    let key = prop_oneof![
        4 => Just("cur="), 4 => Just("try="), 6 => Just("left="), 1 => Just("gen="), 1 => Just("left\0="),
        1 => Just("# left="), 1 => Just("junk\n"), 1 => Just("\n"), 1 => Just("x=\\\\\n"), 1 => Just("x=\\\n"),
    ];
    let lines = proptest::collection::vec((key, value), 0..9);
    let odd = (lines, 0..3u8, 60..600usize).prop_map(|(lines, fill, size)| {
        let mut b = SIGNATURE.to_vec();
        for (k, v) in lines {
            b.extend(format!("{k}{v}\n").bytes());
        }
        match fill {
            0 => b.resize(size, b'#'),
            1 => b.resize(env_block::SIZE, b'#'),
            _ => b.resize(env_block::SIZE, 0),
        }
        b
    });
    let agent = (
        any::<bool>(),
        0..3u8,
        0..=4u8,
        proptest::option::of((0..512usize, any::<u8>())),
    )
        .prop_map(|(cur, t, left, flip)| {
            let s = |b| if b { Slot::A } else { Slot::B };
            let mut b = Env {
                cur: s(cur),
                try_slot: (t < 2).then(|| s(t == 0)),
                left: (left < 4).then_some(left),
                gen_: 7,
            }
            .encode()
            .to_vec();
            if let Some((at, with)) = flip {
                b[at] = with;
            }
            b
        });
    prop_oneof![4 => odd, 3 => agent, 1 => proptest::collection::vec(any::<u8>(), 0..600)]
}

fn maybe_block() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![1 => Just(None), 6 => any_block().prop_map(Some)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_block_gives_more_than_three_tries(b in any_block()) {
        let trials: Vec<u8> = boots(&b, 8).iter().filter_map(|l| l.trial).collect();
        prop_assert!(trials.len() <= usize::from(env_block::TRIES), "{trials:?}");
        prop_assert!(trials.windows(2).all(|w| w[0] > w[1]), "{trials:?}");
    }

    #[test]
    fn only_env1_starts_a_trial_and_only_a_trial_leaves_the_committed_slot(
        env1 in maybe_block(), env2 in maybe_block(), a_has_kernel: bool, how in 0..3u8
    ) {
        let save = [Save::Works, Save::Fails, Save::Lost][usize::from(how)];
        let c = choose(&Facts { env1: env1.as_deref(), env2: env2.as_deref(), a_has_kernel, save, picked: None });
        if c.is_trial() {
            prop_assert_eq!(c.line.source, Source::Env1);
            prop_assert_eq!(save, Save::Works);
            prop_assert_eq!(Some(c.line.slot), c.line.try_slot);
            prop_assert_ne!(Some(c.line.slot), c.line.cur);
            prop_assert_eq!(c.line.left, c.line.trial);
        } else {
            prop_assert_eq!(Some(c.line.slot), c.line.cur);
        }
        if save != Save::Works {
            prop_assert_eq!(&c.env1, &env1);
        }
        prop_assert_eq!(c.line.to_string().parse::<Line>().unwrap(), c.line);
    }

    #[test]
    fn a_boot_without_a_trial_of_an_agents_block_writes_nothing_and_a_counted_one_one_byte(cur: bool, armed: bool, left in 0..=3u8) {
        let cur = if cur { Slot::A } else { Slot::B };
        let mut env = Env::committed(cur, 3);
        if armed {
            env = Env { left: Some(left), ..env.armed(cur.other()) };
        }
        let before = env.encode();
        let c = choose(&facts(Some(&before), None));
        let after = c.env1.clone().unwrap();
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        prop_assert_eq!(changed, usize::from(c.is_trial()));
        prop_assert_eq!(c.is_trial(), armed && left > 0);
        // The agent still accepts what GRUB wrote.
        prop_assert!(Env::decode(&after).is_ok());
    }

    #[test]
    fn saving_keeps_the_size(b in any_block(), v in 0..=3u8) {
        if let Some(after) = set_left(&b, v) {
            prop_assert_eq!(after.len(), b.len());
        }
    }
}
