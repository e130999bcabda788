//! The cluster's own authority and the certificate of its API server.

use crate::proc;
use anyhow::Result;
use camino::Utf8Path;

/// Names in the server's certificate; 10.0.2.2 is this host for a guest in QEMU.
const SERVER_NAMES: &str = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
                            IP:127.0.0.1,IP:10.0.0.1,IP:10.0.2.2";

/// An authority of the cluster's own, and the server's certificate with it behind.
pub(super) fn make(dir: &Utf8Path) -> Result<()> {
    fs_err::create_dir_all(dir)?;
    let path = |n: &str| dir.join(n).into_string();
    let (ca, ca_key, leaf) = (path("ca.crt"), path("ca.key"), path("leaf.crt"));
    let new = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
    ];
    let of = |subject: &str, key: &str, out: &str, more: &[&str]| -> Result<()> {
        let mut argv = new.to_vec();
        argv.extend(["-subj", subject, "-keyout", key, "-out", out]);
        argv.extend(more);
        proc::sh(&argv).map(drop)
    };
    of(
        "/CN=test-cluster",
        &ca_key,
        &ca,
        &["-addext", "keyUsage=critical,keyCertSign,cRLSign"],
    )?;
    let names = format!("subjectAltName={SERVER_NAMES}");
    let usage = ["-addext", &names, "-addext", "extendedKeyUsage=serverAuth"];
    let end = [
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
    ];
    of(
        "/CN=kube-apiserver",
        &path("apiserver.key"),
        &leaf,
        &[&usage[..], &end].concat(),
    )?;
    let chain = fs_err::read_to_string(&leaf)? + &fs_err::read_to_string(&ca)?;
    fs_err::write(path("apiserver.crt"), chain)?;
    Ok(())
}
