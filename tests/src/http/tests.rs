use super::*;

fn get(s: &Server, path: &str, extra: &str) -> (String, Vec<u8>) {
    let mut c = TcpStream::connect(s.addr).unwrap();
    write!(c, "GET {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n").unwrap();
    let mut all = Vec::new();
    c.read_to_end(&mut all).unwrap();
    let at = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    (
        String::from_utf8_lossy(&all[..at]).into_owned(),
        all[at + 4..].to_vec(),
    )
}

#[test]
fn honest_bytes_files_and_ranges() {
    let s = Server::start().unwrap();
    s.put("/b", Reply::bytes("0123456789"));
    let (head, body) = get(&s, "/b", "");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("Content-Length: 10"),
        "{head}"
    );
    assert_eq!(body, b"0123456789");
    let (head, body) = get(&s, "/b", "Range: bytes=4-\r\n");
    assert!(
        head.starts_with("HTTP/1.1 206") && head.contains("Content-Range: bytes 4-9/10"),
        "{head}"
    );
    assert_eq!(body, b"456789");
    let (head, _) = get(&s, "/b", "Range: bytes=10-\r\n");
    assert!(head.starts_with("HTTP/1.1 416"), "{head}");
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("f"), vec![7u8; 300_000]).unwrap();
    s.put("/f", Reply::file(dir.path().join("f")));
    assert_eq!(get(&s, "/f?x=1", "Range: bytes=1-\r\n").1, vec![7u8; 299_999]);
    assert_eq!(s.sent("/f"), 299_999);
    assert_eq!(s.seen().len(), 4);
    assert!(get(&s, "/none", "").0.starts_with("HTTP/1.1 404"));
}

#[test]
fn lies_and_faults() {
    let s = Server::start().unwrap();
    let data = vec![1u8; 1000];
    s.put(
        "/absent",
        Reply {
            length: Length::Absent,
            ..Reply::bytes(data.clone())
        },
    );
    assert!(!get(&s, "/absent", "").0.contains("Content-Length"));
    s.put(
        "/huge",
        Reply {
            length: Length::Claim(10 << 40),
            ..Reply::bytes(data.clone())
        },
    );
    let (head, body) = get(&s, "/huge", "");
    assert!(
        head.contains("Content-Length: 10995116277760") && body.len() == 1000,
        "{head}"
    );
    s.put(
        "/cut",
        Reply {
            cut_after: Some(100),
            faults_for: Some(1),
            ..Reply::bytes(data.clone())
        },
    );
    assert_eq!(get(&s, "/cut", "").1.len(), 100);
    assert_eq!(get(&s, "/cut", "").1.len(), 1000);
    s.put(
        "/whole",
        Reply {
            ranges: Ranges::Ignore,
            ..Reply::bytes(data.clone())
        },
    );
    assert!(
        get(&s, "/whole", "Range: bytes=5-\r\n")
            .0
            .starts_with("HTTP/1.1 200")
    );
    s.put(
        "/no",
        Reply {
            ranges: Ranges::Refuse,
            ..Reply::bytes(data)
        },
    );
    assert!(
        get(&s, "/no", "Range: bytes=5-\r\n")
            .0
            .starts_with("HTTP/1.1 416")
    );
    s.put("/r", Reply::redirect(302, "/cut"));
    assert!(get(&s, "/r", "").0.contains("Location: /cut"));
}

#[test]
fn a_stalled_connection_ends_with_the_server() {
    let mut s = Server::start().unwrap();
    s.put(
        "/stall",
        Reply {
            stall_after: Some(10),
            ..Reply::bytes(vec![0u8; 100])
        },
    );
    let mut c = TcpStream::connect(s.addr).unwrap();
    write!(c, "GET /stall HTTP/1.1\r\n\r\n").unwrap();
    c.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut all = Vec::new();
    assert!(c.read_to_end(&mut all).is_err());
    s.stop();
    c.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    c.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(&[0; 10]) && !all.ends_with(&[0; 11]));
    assert!(TcpStream::connect(s.addr).is_err());
}
