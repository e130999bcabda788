//! Compiles agent.proto without protoc: protox parses, tonic-prost-build generates.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/os/agent/v1/agent.proto");
    let set = protox::compile(["os/agent/v1/agent.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(set)?;
    Ok(())
}
