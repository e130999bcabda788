//! FAT images: BOOT (FAT32) and os-state (FAT12 with a fixed geometry). No time of the clock in either.

mod boot;
mod entry;

pub use boot::{FatFile, boot_image};

use crate::error::{BuildError, Kind, Result};
use fatfs::{FatType, FileSystem, FsOptions};
use os_proto::env_block::Env;
use os_proto::layout::{ENV_CLUSTER, OS_STATE_SIZE, StateGeometry};
use os_proto::state_fs;
use std::io::Read;

fn broken(what: impl std::fmt::Display) -> BuildError {
    BuildError::new(Kind::Build, "FAT001", what.to_string())
}

/// Makes os-state with `env` as `env1` and `env2`, each alone in its cluster at the place that `geometry` gives.
///
/// # Errors
/// FAT001 when the result does not hold the files where they must be (a bug).
pub fn state_image(geometry: &StateGeometry, volume_id: u32, env: &Env) -> Result<Vec<u8>> {
    let mut image = state_fs::head(geometry, volume_id, env);
    image.resize(OS_STATE_SIZE as usize, 0);
    check_state(&image, geometry, &env.encode())?;
    Ok(image)
}

/// Reads the image as a FAT reader would.
fn check_state(image: &[u8], g: &StateGeometry, env: &[u8; 512]) -> Result<()> {
    let fs = FileSystem::new(std::io::Cursor::new(image.to_vec()), FsOptions::new())
        .map_err(|e| broken(format!("os-state: {e}")))?;
    if fs.fat_type() != FatType::Fat12 || fs.cluster_size() as usize != ENV_CLUSTER {
        return Err(broken("os-state is not the FAT12 that it must be"));
    }
    for (name, at) in [("env1", g.env1), ("env2", g.env2)] {
        let mut found = Vec::new();
        fs.root_dir()
            .open_file(name)
            .and_then(|mut f| f.read_to_end(&mut found))
            .map_err(|e| broken(format!("os-state: {name}: {e}")))?;
        let at = at as usize;
        if found != env || image[at..at + 512] != env[..] {
            return Err(broken(format!("os-state: {name} is not at byte {at}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
