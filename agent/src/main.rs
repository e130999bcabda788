//! The os-agent program: the daemon and its command line.

mod cli;

use clap::Parser;
use std::process::ExitCode;

/// Marks this file as the agent: an ELF note that imgbuild looks for before it puts a program into an image.
// The attribute places data, it runs nothing; no other item uses the section.
#[allow(unsafe_code)]
#[unsafe(link_section = ".note.slipway")]
#[used]
static MARKER: Note = Note {
    name_size: 8,
    desc_size: 20,
    kind: 1,
    name: *b"Slipway\0",
    desc: *b"slipway-os-agent-v1\0",
};

/// An ELF note (System V ABI, "Note Section"), sizes a multiple of 4.
#[repr(C)]
struct Note {
    name_size: u32,
    desc_size: u32,
    kind: u32,
    name: [u8; 8],
    desc: [u8; 20],
}

fn main() -> ExitCode {
    // Linkers drop data that nothing refers to.
    std::hint::black_box(&MARKER);
    let args = match cli::Cli::try_parse() {
        Ok(a) => a,
        Err(e) => return cli::usage(&e, std::env::args_os().any(|a| a == "--json")),
    };
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("os-agent: the TLS provider is installed twice");
        return ExitCode::from(os_proto::codes::exit::FAILED);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_stack_size(512 * 1024)
        .enable_all()
        .build();
    match runtime {
        Ok(rt) => {
            let code = rt.block_on(cli::run(args, rt.handle().clone()));
            rt.shutdown_timeout(std::time::Duration::from_secs(1));
            code
        }
        Err(e) => {
            eprintln!("os-agent: cannot start: {e}");
            ExitCode::from(os_proto::codes::exit::FAILED)
        }
    }
}
