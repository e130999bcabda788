//! SWUpdate as Debian ships it, installing the same raw image from the same server into a file, streaming ("installed-directly").
//!
//! Its build wants signed images, so the description is signed (CMS) and checked; the image is checked by the SHA-256 in the
//! description. It does not read back what it wrote; the second figure adds a `sha256sum` of it, which os-agent's time contains.

use super::{Bed, content, measure};
use anyhow::{Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use os_e2e::disk::PlainDisk;
use os_e2e::http::{Reply, Server};
use os_e2e::proc;
use os_e2e::product::sha256;
use std::process::Stdio;
use std::time::Instant;

/// Why this part cannot run here, if it cannot.
pub(crate) fn missing() -> Option<&'static str> {
    let all = ["swupdate", "cpio", "openssl"].iter().all(|p| proc::exists(p));
    (!all).then_some("swupdate is not installed (apt-get install swupdate cpio)")
}

pub(crate) fn run(bed: &Bed) -> Result<()> {
    if let Some(why) = missing() {
        println!("swupdate: not run: {why}");
        return Ok(());
    }
    let (old, image) = (bed.dir.join("1.img"), bed.dir.join("2.img"));
    let target = bed.dir.join("swupdate.img");
    content::running(&old)?;
    content::mixed(&image, "2", bed.args.mib)?;
    let disk = PlainDisk::make(&bed.dir.join("disk.img"), bed.args.mib, &old)?;
    let sum = sha256(&image)?;
    let container = container(&bed.dir.join("swu"), &image, &target, &sum)?;
    let server = Server::start()?;
    server.put("/image", Reply::file(&image));
    server.put("/u.swu", Reply::file(&container.file));
    println!(
        "swupdate: {} MiB over HTTP from 127.0.0.1 into an allocated file, {}",
        bed.args.mib,
        version()?
    );
    let (mut peak, mut theirs_peak) = (0.0_f64, 0.0_f64);
    let mut ratios = [Vec::new(), Vec::new()];
    for i in 1..=bed.args.runs {
        measure::scramble(&disk, &target, bed.args.mib << 20)?;
        measure::settle();
        let ours = measure::stage(&bed.product.agent, &disk, &server.url("/image"), &sum)?;
        peak = peak.max(ours.peak_mib());
        measure::settle();
        let start = Instant::now();
        let theirs = install(&container, &server.url("/u.swu"))?;
        let alone = start.elapsed().as_secs_f64();
        if sha256sum(&target)? != sum {
            bail!("swupdate wrote something else to {target}");
        }
        let read = start.elapsed().as_secs_f64();
        theirs_peak = theirs_peak.max(theirs);
        println!(
            "run {i}: os-agent {:.2} s, swupdate {alone:.2} s, with sha256sum of what it wrote {read:.2} s",
            ours.secs()
        );
        ratios[0].push(ours.secs() / alone);
        ratios[1].push(ours.secs() / read);
    }
    println!(
        "swupdate: os-agent takes {:.2} of its time, {:.2} of its time with a read-back (medians)",
        measure::median(&ratios[0]),
        measure::median(&ratios[1])
    );
    println!(
        "swupdate: peak memory os-agent {peak:.1} MiB, swupdate's processes together {theirs_peak:.1} MiB"
    );
    Ok(())
}

fn version() -> Result<String> {
    let text = proc::sh(&["dpkg-query", "-W", "-f", "${Package} ${Version}", "swupdate"]);
    Ok(text.unwrap_or_else(|_| "swupdate".into()).trim().to_owned())
}

fn sha256sum(file: &Utf8Path) -> Result<String> {
    let out = proc::sh(&["sha256sum", file.as_str()])?;
    Ok(out.split(' ').next().unwrap_or_default().to_owned())
}

/// An update in SWUpdate's format and what checks it.
struct Container {
    file: Utf8PathBuf,
    cert: Utf8PathBuf,
}

/// A cpio archive (format crc) of sw-description, its signature and the image: SWUpdate's documentation, "SWUpdate: syntax and
/// tags" and "Update images from verified source".
fn container(dir: &Utf8Path, image: &Utf8Path, target: &Utf8Path, sum: &str) -> Result<Container> {
    fs_err::create_dir_all(dir)?;
    let (key, cert) = (dir.join("key.pem"), dir.join("cert.pem"));
    proc::sh(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=bench",
        "-keyout",
        key.as_str(),
        "-out",
        cert.as_str(),
        "-addext",
        "extendedKeyUsage=emailProtection",
        "-addext",
        "keyUsage=digitalSignature,keyCertSign",
    ])?;
    let text = format!(
        "software =\n{{\n  version = \"1.0\";\n  hardware-compatibility: [ \"1.0\" ];\n  images: ( {{ filename = \"image\"; \
         type = \"raw\"; device = \"{target}\"; installed-directly = true; sha256 = \"{sum}\"; }} );\n}}\n"
    );
    fs_err::write(dir.join("sw-description"), text)?;
    fs_err::hard_link(image, dir.join("image"))?;
    let script = "set -e; cd \"$1\"; openssl cms -sign -in sw-description -out sw-description.sig -signer cert.pem \
                  -inkey key.pem -outform DER -nosmimecap -binary; \
                  printf '%s\\n' sw-description sw-description.sig image | cpio --quiet -o -H crc >u.swu";
    proc::sh(&["sh", "-c", script, "sh", dir.as_str()])?;
    Ok(Container {
        file: dir.join("u.swu"),
        cert,
    })
}

/// One installation; the peak memory of its processes together, in MiB.
fn install(c: &Container, url: &str) -> Result<f64> {
    let log = fs_err::File::create(c.file.with_extension("log"))?;
    let mut child = proc::command("swupdate")
        .args([
            "-l",
            "2",
            "-H",
            "bench:1.0",
            "-M",
            "-m",
            "-k",
            c.cert.as_str(),
            "-d",
            &format!("-u {url}"),
        ])
        .stdout(Stdio::null())
        .stderr(log.into_file())
        .spawn()?;
    let (ended, peak_kib) = measure::watch(&mut child)?;
    if !ended.success() {
        let told = fs_err::read_to_string(c.file.with_extension("log"))?;
        bail!("swupdate: {ended}: {}", proc::tail(&told, 10));
    }
    Ok(peak_kib as f64 / 1024.0)
}
