#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::os_state;
use os_proto::env_block::Env;
use os_proto::layout::{STATE_512, STATE_4096, Slot};
use os_proto::state_fs;
use proptest::prelude::*;

fn good(g: &StateGeometry) -> Vec<u8> {
    os_state(g, &Env::committed(Slot::A, 1))
}

#[test]
fn both_geometries_are_found() {
    for g in [STATE_512, STATE_4096] {
        let at = locate(&good(&g), &g).unwrap();
        assert_eq!((at.env1, at.env2), (g.env1, g.env2));
    }
    assert!(
        locate(&good(&STATE_4096), &STATE_512)
            .unwrap_err()
            .contains("bytes per sector")
    );
}

#[test]
fn anything_else_is_named() {
    let g = STATE_512;
    let dir = (12 + 4) * 512;
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let cases: Vec<(Change, &str)> = vec![
        (Box::new(|p| p[510] = 0), "no FAT"),
        (Box::new(|p| p[14] = 11), "reserved sectors"),
        (Box::new(|p| p[13] = 4), "sectors per cluster"),
        (Box::new(move |p| p[dir] = 0xe5), "env1 is missing"),
        (Box::new(move |p| p[dir + 32 + 28] = 1), "env2 has 513 bytes"),
        (Box::new(move |p| p[dir + 26] = 4), "not exactly one cluster"),
        // Both entries point at the other's cluster.
        (
            Box::new(move |p| {
                p[dir + 26] = 3;
                p[dir + 32 + 26] = 2;
            }),
            "env1 lies at byte 16384",
        ),
        (Box::new(|p| p[12 * 512 + 3] = 0x05), "not exactly one cluster"),
        (
            Box::new(move |p| {
                let e: Vec<u8> = p[dir..dir + 32].to_vec();
                p[dir + 64..dir + 96].copy_from_slice(&e);
            }),
            "exists twice",
        ),
        (Box::new(|p| p.truncate(100)), "no FAT"),
        (Box::new(|p| p.truncate(9000)), "outside"),
    ];
    for (change, says) in cases {
        let mut p = good(&g);
        change(&mut p);
        let e = locate(&p, &g).unwrap_err();
        assert!(e.contains(says), "{e} / {says}");
    }
}

#[test]
fn a_deleted_file_and_a_label_are_skipped() {
    let g = STATE_512;
    let dir = (12 + 4) * 512;
    let mut p = good(&g);
    p.copy_within(dir..dir + 64, dir + 64);
    p[dir] = 0xe5;
    p[dir + 32..dir + 43].copy_from_slice(b"ENV1       ");
    p[dir + 32 + 11] = 0x08;
    assert!(locate(&p, &g).is_ok());
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(flips in prop::collection::vec((0usize..16384, any::<u8>()), 0..40)) {
        let mut p = good(&STATE_512);
        for (at, v) in flips { p[at] = v; }
        let _ = locate(&p, &STATE_512);
    }
}

#[test]
fn what_is_made_is_found_where_the_layout_says() {
    for g in [STATE_512, STATE_4096] {
        let env = Env::committed(Slot::B, 7);
        let p = state_fs::head(&g, state_fs::NO_VOLUME_ID, &env);
        let at = locate(&p, &g).unwrap();
        assert_eq!((at.env1, at.env2), (g.env1, g.env2));
        // Without a label and a type fsck.fat complains.
        assert_eq!((p[38], &p[43..62]), (0x29, &b"NO NAME    FAT12   "[..]));
        for at in [at.env1, at.env2] {
            let at = at as usize;
            assert_eq!(Env::decode(&p[at..at + 512]), Ok(env));
        }
    }
}
