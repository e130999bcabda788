#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
use super::*;
use crate::sys::discover::read_table;
use crate::testdisk::Scratch;
use proptest::prelude::*;
use std::fs::File;

fn disk(sector: u32) -> (Scratch, File, u64) {
    let d = Scratch::of(sector);
    let file = d.open();
    let size = file.metadata().unwrap().len();
    (d, file, size)
}

#[test]
fn a_table_reads_as_it_was_written_at_both_sector_sizes() {
    for sector in [512, 4096] {
        let (_dir, file, size) = disk(sector);
        let (t, damage) = read_table(&file, size, sector).unwrap();
        assert_eq!(damage, None);
        let names: Vec<&str> = t.entries.iter().map(|e| e.name.as_str()).collect();
        let want: &[&str] = if sector == 512 {
            &["BOOT", "ROOT-A", "ROOT-B", "PERSIST", "bios", "os-state"]
        } else {
            &["BOOT", "ROOT-A", "ROOT-B", "PERSIST", "os-state"]
        };
        assert_eq!(names, want);
        assert!(t.entries.iter().all(|e| e.start + e.size <= size));
        assert_eq!(
            read_table(&file, size, 4608 - sector).unwrap_err(),
            BadTable::NoSignature
        );
    }
}

#[test]
fn another_implementation_reads_the_same_table() {
    let (_dir, file, size) = disk(512);
    let ours = read_table(&file, size, 512).unwrap().0;
    let theirs = gpt::GptConfig::new()
        .writable(false)
        .open_from_device(file)
        .unwrap();
    for e in &ours.entries {
        let p = &theirs.partitions()[&e.number];
        assert_eq!(
            (p.name.as_str(), p.first_lba * 512, p.part_guid),
            (e.name.as_str(), e.start, e.part_uuid)
        );
    }
}

#[test]
fn growth_moves_the_end_and_both_copies() {
    for sector in [512u32, 4096] {
        let (_dir, file, size) = disk(sector);
        let s = u64::from(sector);
        let t = read_table(&file, size, sector).unwrap().0;
        assert_eq!(t.grown(4, size).unwrap(), None, "nothing to gain");
        let larger = size + 7 * MIB + s;
        let c = t.grown(4, larger).unwrap().unwrap();
        assert_eq!(c.size, 8 * MIB);
        assert_eq!(c.backup_header.0, larger / s * s - s);
        for (at, head, array) in [
            (c.primary_header.0, &c.primary_header.1, &c.primary_entries.1),
            (c.backup_header.0, &c.backup_header.1, &c.backup_entries.1),
        ] {
            let new = table(head, at, sector, array).unwrap();
            let p = new.entries.iter().find(|e| e.number == 4).unwrap();
            assert_eq!(p.size, 8 * MIB);
            assert!(p.start + p.size <= c.backup_entries.0);
            let same =
                |n| t.entries.iter().find(|e| e.number == n) == new.entries.iter().find(|e| e.number == n);
            assert!([1, 2, 3, 5, 6].into_iter().all(same));
            assert_eq!(new.disk_guid, t.disk_guid);
        }
        assert!(t.grown(3, larger).unwrap_err().contains("not the last"));
        assert!(t.grown(9, larger).unwrap_err().contains("does not exist"));
        assert_eq!(t.grown(4, size / 2).unwrap(), None, "never smaller");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(mut head in prop::collection::vec(any::<u8>(), 0..600), array in prop::collection::vec(any::<u8>(), 0..2000), sign: bool) {
        if sign && head.len() >= 512 {
            head[..8].copy_from_slice(b"EFI PART");
            head[12..16].copy_from_slice(&92u32.to_le_bytes());
            head[16..20].fill(0);
            let sum = crc32(&head[..92]);
            head[16..20].copy_from_slice(&sum.to_le_bytes());
        }
        let _ = header(&head, 512, 512);
        let _ = table(&head, 512, 512, &array);
    }

    #[test]
    fn one_flipped_bit_of_a_table_is_noticed(bit in 0usize..(92 + 128 * 6) * 8) {
        let (_dir, file, size) = disk(512);
        let t = read_table(&file, size, 512).unwrap().0;
        let mut head = t.header.clone();
        let mut array = t.array.clone();
        if bit < 92 * 8 {
            head[bit / 8] ^= 1 << (bit % 8);
        } else {
            array[bit / 8 - 92] ^= 1 << (bit % 8);
        }
        prop_assert!(table(&head, 512, 512, &array).is_err());
    }
}
