#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use proptest::prelude::*;

/// Writes archives for tests.
#[derive(Default)]
pub(crate) struct Maker {
    pub(crate) out: Vec<u8>,
}

pub(crate) struct Member<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) link: &'a str,
    pub(crate) data: &'a [u8],
    pub(crate) device: (u32, u32),
}

pub(crate) fn member(name: &str, kind: u8) -> Member<'_> {
    Member {
        name,
        kind,
        mode: if kind == b'5' { 0o755 } else { 0o644 },
        owner: (0, 0),
        link: "",
        data: b"",
        device: (0, 0),
    }
}

impl Maker {
    pub(crate) fn add(&mut self, m: &Member<'_>) -> &mut Self {
        let mut h = [0u8; 512];
        let mut put = |at: usize, b: &[u8]| h[at..at + b.len()].copy_from_slice(b);
        put(0, m.name.as_bytes());
        put(100, format!("{:07o}\0", m.mode).as_bytes());
        put(108, format!("{:07o}\0", m.owner.0).as_bytes());
        put(116, format!("{:07o}\0", m.owner.1).as_bytes());
        put(124, format!("{:011o}\0", m.data.len()).as_bytes());
        put(136, format!("{:011o}\0", 1_700_000_000).as_bytes());
        put(156, &[m.kind]);
        put(157, m.link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0", m.device.0).as_bytes());
        put(337, format!("{:07o}\0", m.device.1).as_bytes());
        put(148, b"        ");
        let sum: u64 = h.iter().map(|b| u64::from(*b)).sum();
        h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.extend_from_slice(&h);
        self.out.extend_from_slice(m.data);
        let pad = self.out.len().next_multiple_of(512);
        self.out.resize(pad, 0);
        self
    }

    pub(crate) fn pax(&mut self, records: &[(&str, &[u8])]) -> &mut Self {
        let mut text = Vec::new();
        for (k, v) in records {
            let body = k.len() + v.len() + 3;
            let mut len = body + 1;
            while len != body + len.to_string().len() {
                len += 1;
            }
            text.extend_from_slice(format!("{len} {k}=").as_bytes());
            text.extend_from_slice(v);
            text.push(b'\n');
        }
        self.add(&Member {
            data: &text,
            ..member("pax", b'x')
        })
    }

    pub(crate) fn file(&mut self, name: &str, data: &[u8]) -> &mut Self {
        self.add(&Member {
            data,
            ..member(name, b'0')
        })
    }

    pub(crate) fn end(&self) -> Vec<u8> {
        let mut out = self.out.clone();
        out.resize(out.len() + 1024, 0);
        out
    }
}

fn all(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut tar = Tar::new(bytes);
    let mut out = Vec::new();
    while let Some(e) = tar.next_entry()? {
        let mut data = Vec::new();
        tar.read_to_end(&mut data)?;
        out.push((e, data));
    }
    Ok(out)
}

#[test]
fn members_of_every_kind() {
    let mut m = Maker::default();
    m.add(&member("./", b'5'))
        .file("./boot/vmlinuz", &[7; 700])
        .add(&Member {
            link: "../usr/lib",
            ..member("./lib", b'2')
        })
        .add(&Member {
            link: "./boot/vmlinuz",
            ..member("./boot/again", b'1')
        })
        .add(&Member {
            device: (5, 1),
            ..member("dev/console", b'3')
        })
        .add(&Member {
            device: (259, 70_000),
            ..member("/dev/x", b'4')
        })
        .add(&member("p", b'6'));
    let got = all(&m.end()).unwrap();
    let kinds: Vec<Kind> = got.iter().map(|(e, _)| e.kind.clone()).collect();
    let boot = vec![b"boot".to_vec(), b"vmlinuz".to_vec()];
    assert_eq!(
        kinds,
        [
            Kind::Dir,
            Kind::File,
            Kind::Symlink(b"../usr/lib".to_vec()),
            Kind::Hardlink(boot.clone()),
            Kind::Char(5, 1),
            Kind::Block(259, 70_000),
            Kind::Fifo
        ]
    );
    assert!(got[0].0.path.is_empty());
    assert_eq!((got[1].0.path.clone(), got[1].1.len()), (boot, 700));
    assert_eq!(got[5].0.shown(), "/dev/x");
    assert_eq!(got[1].0.mtime, 1_700_000_000);
}

#[test]
fn access_control_lists_are_refused_and_not_lost() {
    for key in ["SCHILY.acl.access", "SCHILY.acl.default"] {
        let mut m = Maker::default();
        m.pax(&[(key, b"user::rw-,user:1000:r--,group::r--,mask::r--,other::---")])
            .file("etc/secret", b"x");
        let e = all(&m.end()).unwrap_err();
        assert!(e.to_string().contains("access control list"), "{key}: {e}");
    }
}

#[test]
fn extended_headers_and_long_names_win() {
    let long = format!("{}/x", "d".repeat(200));
    let mut m = Maker::default();
    m.pax(&[
        ("path", long.as_bytes()),
        ("uid", b"3000000"),
        ("gid", b"7"),
        ("mtime", b"1600000000.25"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02\n=\0"),
        ("RHT.security.selinux", b"system_u:object_r:bin_t:s0"),
    ])
    .file("short", b"abc");
    m.add(&Member {
        data: format!("{}\0", "n".repeat(250)).as_bytes(),
        ..member("././@LongLink", b'L')
    })
    .file("cut", b"");
    let got = all(&m.end()).unwrap();
    let e = &got[0].0;
    assert_eq!(e.path[0].len(), 200);
    assert_eq!((e.uid, e.gid, e.mtime, e.size), (3_000_000, 7, 1_600_000_000, 3));
    assert_eq!(
        e.xattrs,
        [
            (b"security.capability".to_vec(), b"\x01\0\0\x02\n=\0".to_vec()),
            (
                b"security.selinux".to_vec(),
                b"system_u:object_r:bin_t:s0\0".to_vec()
            )
        ]
    );
    assert_eq!(got[1].0.path, [vec![b'n'; 250]]);
    assert!(got[1].0.xattrs.is_empty(), "headers are for one member");
}

#[test]
fn what_is_wrong_is_refused_with_its_reason() {
    let one = |m: &Member<'_>| Maker::default().add(m).end();
    let mut sum = one(&member("x", b'0'));
    sum[0] = b'y';
    let long = "n".repeat(256);
    let many = Maker::default()
        .pax(&[("path", long.as_bytes())])
        .file("x", b"")
        .end();
    for (bytes, why) in [
        (one(&member("a/../../etc/shadow", b'0')), "leads out"),
        (
            one(&Member {
                link: "../../etc/shadow",
                ..member("a", b'1')
            }),
            "leads out",
        ),
        (one(&member("a", b'2')), "link to nothing"),
        (one(&member("a", b'S')), "sparse"),
        (sum, "checksum"),
        (many, "not a file name"),
        (Maker::default().file("x", b"data").out.clone(), "end mark"),
        (
            Maker::default()
                .pax(&[("GNU.sparse.major", b"1")])
                .file("x", b"")
                .end(),
            "sparse",
        ),
        (
            Maker::default().pax(&[("size", b"many")]).file("x", b"").end(),
            "malformed",
        ),
    ] {
        let e = all(&bytes).unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
    let cut = Maker::default().file("x", &[1; 2000]).out.clone();
    assert_eq!(
        all(&cut[..1000]).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
    // A header of four gigabytes costs nothing.
    let mut huge = one(&member("x", b'x'));
    huge[124..136].copy_from_slice(b"37777777777\0");
    huge[148..156].copy_from_slice(b"        ");
    let s: u64 = huge[..512].iter().map(|b| u64::from(*b)).sum();
    huge[148..156].copy_from_slice(format!("{s:06o}\0 ").as_bytes());
    assert!(all(&huge).unwrap_err().to_string().contains("1 MiB"));
}

#[test]
fn the_first_file_is_found_in_the_first_bytes() {
    let mut m = Maker::default();
    m.pax(&[("mtime", b"1")]).file("os.tar", &[9; 5000]);
    let (e, at) = first_file(&m.out[..2000]).unwrap();
    assert_eq!((e.shown(), e.size, at), ("/os.tar".into(), 5000, 1536));
    assert!(first_file(&m.out[..400]).is_none());
    assert!(first_file(b"").is_none());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(flips in proptest::collection::vec((0usize..4096, any::<u8>()), 0..6), cut in 0usize..4096) {
        let mut m = Maker::default();
        m.pax(&[("path", b"some/where"), ("SCHILY.xattr.user.a", b"b")]).file("x", &[1; 600]).add(&Member { link: "x", ..member("l", b'2') });
        let mut b = m.end();
        for (at, v) in flips {
            if let Some(x) = b.get_mut(at) {
                *x = v;
            }
        }
        b.truncate(cut);
        let _ = all(&b);
        let _ = first_file(&b);
    }
}
