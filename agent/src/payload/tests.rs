#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use crate::testdisk::fake_ext4;
use bytes::Bytes;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io::Write;

/// A download from memory in pieces of given sizes.
pub(crate) struct Pieces {
    pub(crate) pieces: VecDeque<Bytes>,
    pub(crate) total: Option<u64>,
    pub(crate) fail: Option<AgentError>,
}

impl Pieces {
    pub(crate) fn of(data: &[u8], piece: usize, total: bool) -> Box<dyn Download> {
        Box::new(Pieces {
            pieces: data.chunks(piece.max(1)).map(Bytes::copy_from_slice).collect(),
            total: total.then_some(data.len() as u64),
            fail: None,
        })
    }
}

impl Download for Pieces {
    fn total(&self) -> Option<u64> {
        self.total
    }
    fn next(&mut self) -> Result<Option<Bytes>> {
        match (self.pieces.pop_front(), &self.fail) {
            (None, Some(e)) => Err(e.clone()),
            (p, _) => Ok(p),
        }
    }
    fn describe(&self) -> String {
        "http://test/image".into()
    }
}

pub(crate) fn gz(data: &[u8]) -> Vec<u8> {
    let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    w.write_all(data).unwrap();
    w.finish().unwrap()
}

pub(crate) fn zst(data: &[u8]) -> Vec<u8> {
    zstd::encode_all(data, 1).unwrap()
}

fn sha(data: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(data).into())
}

/// Reads a payload to its end.
fn unpack(file: &[u8], piece: usize, slot: u64) -> Result<(Vec<u8>, End)> {
    let mut p = open(Pieces::of(file, piece, true), slot)?;
    let mut out = Vec::new();
    let mut buf = vec![0; 70_000];
    loop {
        let n = p.fill(&mut buf)?;
        if n == 0 {
            break;
        }
        out.extend_from_slice(&buf[..n]);
    }
    Ok((out, p.finish()?))
}

#[test]
fn t12_every_packing_gives_the_image_and_the_hash_of_the_file() {
    let image = fake_ext4(300_000 / 4096 * 4096, 1);
    let (half, rest) = image.split_at(100_000);
    let skippable = [b"\x50\x2a\x4d\x18\x05\0\0\0hello".as_slice()].concat();
    let unsized_frame = {
        let mut w = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        w.write_all(&image).unwrap();
        w.finish().unwrap()
    };
    let files = [
        ("raw", image.clone()),
        ("gzip", gz(&image)),
        ("gzip, two members", [gz(half), gz(rest)].concat()),
        ("zstd", zst(&image)),
        ("zstd, two frames", [zst(half), zst(rest)].concat()),
        ("zstd, skippable first", [skippable.clone(), zst(&image)].concat()),
        (
            "zstd, skippable between",
            [zst(half), skippable.clone(), zst(rest), skippable].concat(),
        ),
        ("zstd without its size", unsized_frame),
    ];
    for (name, file) in files {
        for piece in [1 << 20, 4096, 777] {
            let (got, end) = unpack(&file, piece, 1 << 20).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(got == image, "{name}");
            assert_eq!(end.fetched, file.len() as u64, "{name}");
            assert_eq!(end.digest.unwrap_or(sha(&image)), sha(&file), "{name}");
        }
    }
}

#[test]
fn what_is_no_slot_image_is_refused_by_name() {
    let at = |offset: usize, magic: &[u8]| {
        let mut v = vec![0u8; 70_000];
        v[offset..offset + magic.len()].copy_from_slice(magic);
        v
    };
    let noise = fake_ext4(100_000, 5)[4096..].to_vec();
    let html = b"\xef\xbb\xbf\n  <!DOCTYPE html><html><body>Please log in</body></html>".to_vec();
    let cases: Vec<(Vec<u8>, Code, &str)> = vec![
        (vec![], Code::NotAPayload, "empty"),
        (noise.clone(), Code::NotAPayload, "no known kind"),
        (vec![0; 100_000], Code::NotAPayload, "no known kind"),
        (html.clone(), Code::NotAPayload, "HTML page"),
        (
            b"<?xml version='1.0'?><Error/>".to_vec(),
            Code::NotAPayload,
            "XML",
        ),
        (b"404 page not found\n".to_vec(), Code::NotAPayload, "text"),
        (
            at(512, b"EFI PART"),
            Code::NotAPayload,
            "update.img, not system.img",
        ),
        (at(4096, b"EFI PART"), Code::NotAPayload, "GUID partition table"),
        (
            {
                let mut ext2 = fake_ext4(102_400, 5);
                ext2[1024 + 0x60] = 0x02;
                ext2
            },
            Code::NotAPayload,
            "an ext2 or ext3 file system (no extents; a slot is mounted as ext4",
        ),
        (
            {
                let mut mounted = fake_ext4(102_400, 5);
                mounted[1024 + 0x60] |= 0x04;
                mounted
            },
            Code::NotAPayload,
            "copied while it was mounted",
        ),
        (at(0, b"QFI\xfb"), Code::NotAPayload, "qcow2"),
        (at(0, b"\xfd7zXZ\0"), Code::NotAPayload, "xz"),
        (at(0, b"\x89SLIPWAY"), Code::UnsupportedFormat, "Slipway update"),
        (
            gz(&html),
            Code::NotAPayload,
            "HTML page (a login portal or an error page?) after unpacking",
        ),
        (zst(&noise), Code::NotAPayload, "after unpacking"),
        (zst(&at(512, b"EFI PART")), Code::NotAPayload, "update.img"),
        (
            zst(&gz(&fake_ext4(1 << 17, 1))),
            Code::UnsupportedFormat,
            "second time",
        ),
    ];
    for (file, code, says) in cases {
        let e = unpack(&file, 5000, 1 << 30).unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.message.contains(says), "{e} / {says}");
    }
}

#[test]
fn t12_a_cut_or_damaged_stream_is_corrupt_and_trailing_bytes_are_noticed() {
    let image = fake_ext4(1 << 18, 3);
    for file in [gz(&image), zst(&image)] {
        for cut in [file.len() - 1, file.len() / 2] {
            let e = unpack(&file[..cut], 4096, 1 << 20).unwrap_err();
            assert_eq!(e.code, Code::PayloadCorrupt, "{e}");
        }
        let mut extra = file.clone();
        extra.extend_from_slice(b"garbage garbage");
        assert_eq!(
            unpack(&extra, 4096, 1 << 20).unwrap_err().code,
            Code::PayloadCorrupt
        );
    }
    let mut bad = gz(&image);
    let mid = bad.len() - 5;
    bad[mid] ^= 1;
    assert_eq!(
        unpack(&bad, 4096, 1 << 20).unwrap_err().code,
        Code::PayloadCorrupt
    );
}

#[test]
fn t13_sizes_are_refused_before_anything_is_written() {
    let image = fake_ext4(1 << 20, 3);
    let slot = (1 << 20) - 1;
    for file in [image.clone(), gz(&image), zst(&image)] {
        let e = open(Pieces::of(&file, 4096, false), slot).err().unwrap();
        assert_eq!(e.code, Code::SlotTooSmall, "{e}");
    }
    // A longer file around a file system that fits: raw is known by its length, zstd by its header.
    let mut long = fake_ext4(1 << 20, 3);
    long[1024 + 4..1024 + 8].copy_from_slice(&1u32.to_le_bytes());
    assert_eq!(
        open(Pieces::of(&long, 4096, true), slot).err().unwrap().code,
        Code::SlotTooSmall
    );
    let mut sized = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    sized.set_pledged_src_size(Some(long.len() as u64)).unwrap();
    sized.include_contentsize(true).unwrap();
    sized.write_all(&long).unwrap();
    let sized = sized.finish().unwrap();
    assert_eq!(
        open(Pieces::of(&sized, 4096, true), slot).err().unwrap().code,
        Code::SlotTooSmall
    );
}

#[test]
fn a_window_above_8_mib_is_refused() {
    let image = fake_ext4(1 << 20, 3);
    for (log, fits) in [(23, true), (24, false), (27, false)] {
        let mut w = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        w.window_log(log).unwrap();
        w.write_all(&image).unwrap();
        let r = unpack(&w.finish().unwrap(), 4096, 1 << 20);
        match r {
            Ok(_) => assert!(fits, "{log}"),
            Err(e) => {
                assert!(!fits, "{log}: {e}");
                assert_eq!(e.code, Code::UnsupportedFormat, "{e}");
            }
        }
    }
}

#[test]
fn an_error_of_the_download_keeps_its_code_through_every_decoder() {
    let image = fake_ext4(1 << 18, 3);
    for file in [image.clone(), gz(&image), zst(&image)] {
        let half = &file[..file.len() / 2];
        let download = Box::new(Pieces {
            pieces: half.chunks(4096).map(Bytes::copy_from_slice).collect(),
            total: None,
            fail: Some(AgentError::new(Code::FetchFailed, "cut")),
        });
        let r = open(download, 1 << 20).and_then(|mut p| {
            let mut buf = vec![0; 1 << 20];
            p.fill(&mut buf)
        });
        assert_eq!(r.unwrap_err(), AgentError::new(Code::FetchFailed, "cut"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_the_sniffer_panic(head in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _ = sniff::sniff(&head);
    }

    #[test]
    fn random_bytes_are_never_a_payload(seed: u32, len in 2048usize..50_000, piece in 1usize..9000) {
        let data = fake_ext4(len + 4096, seed)[4096..].to_vec();
        prop_assume!(!matches!(sniff::sniff(&data), Kind::Gzip | Kind::Zstd | Kind::Ext4 { .. }));
        prop_assert!(unpack(&data, piece, 1 << 30).is_err());
    }

    #[test]
    fn pieces_of_any_size_give_the_same_image(seed: u32, blocks in 1usize..40, piece in 1usize..70_000, packing in 0..3) {
        let image = fake_ext4(blocks * 4096, seed);
        let file = match packing { 0 => image.clone(), 1 => gz(&image), _ => zst(&image) };
        let (got, end) = unpack(&file, piece, 1 << 20).unwrap();
        prop_assert!(got == image);
        prop_assert_eq!(end.digest.unwrap_or(sha(&image)), sha(&file));
    }
}

#[test]
fn a_cut_that_shows_by_the_length_is_refused_before_anything_is_written() {
    use crate::rootfs::tar::tests::Maker;
    let image = fake_ext4(300_000 / 4096 * 4096, 4);
    let cut = &image[..200_000];
    let wrapped = Maker::default().file("os.tar", &image).end();
    let of = |data: &[u8], total| open(Pieces::of(data, 10_000, total), 1 << 20);
    for (file, says) in [
        (cut.to_vec(), "99008 bytes missing: its file system has 299008"),
        (Maker::default().file("os.tar", cut).end(), "99008 bytes missing"),
        (
            gz(&Maker::default().file("os.tar", cut).end()),
            "99008 bytes missing",
        ),
        (
            wrapped[..200_000].to_vec(),
            "os.tar in it has 299008 bytes, the whole file only 200000",
        ),
    ] {
        let e = of(&file, true).err().unwrap();
        assert_eq!(e.code, Code::SizeMismatch, "{e}");
        assert!(
            e.message.contains(says) && e.message.ends_with("nothing was written"),
            "{e}"
        );
    }
    // Without a length, and of what is packed, only the end tells.
    assert!(of(cut, false).is_ok());
    assert!(of(&gz(cut), true).is_ok());
    assert!(of(&zst(cut), true).is_ok());
    // An image may be longer than its file system.
    assert!(of(&[&image[..], &[0; 5000]].concat(), true).is_ok());
}

#[test]
fn an_archive_and_what_a_container_image_holds_are_told_apart() {
    use crate::rootfs::tar::tests::Maker;
    let tree = Maker::default().file("./boot/vmlinuz", &[7; 3000]).end();
    let image = fake_ext4(200_000 / 4096 * 4096, 3);
    let wrap = |data: &[u8]| Maker::default().file("os.tar", data).end();
    for (file, form, content) in [
        (tree.clone(), Form::Archive, &tree),
        (zst(&tree), Form::Archive, &tree),
        (wrap(&tree), Form::Archive, &tree),
        (gz(&wrap(&tree)), Form::Archive, &tree),
        (gz(&wrap(&image)), Form::Image, &image),
        (wrap(&image), Form::Image, &image),
    ] {
        let p = open(Pieces::of(&file, 10_000, true), 1 << 20).unwrap();
        assert_eq!((p.form(), p.is_plain()), (form, false));
        let (got, end) = unpack(&file, 10_000, 1 << 20).unwrap();
        assert!(got == *content);
        assert_eq!((end.digest, end.fetched), (Some(sha(&file)), file.len() as u64));
    }
    let e = unpack(&wrap(b"<html>login</html>"), 1000, 1 << 20).unwrap_err();
    assert!(e.code == Code::NotAPayload && e.message.contains("HTML"), "{e}");
    let e = unpack(&wrap(&zst(&image)), 1000, 1 << 20).unwrap_err();
    assert!(e.message.contains("second time"), "{e}");
}
