//! Trees and bytes → file system images.

pub mod ext4;
pub mod fat;
pub mod usage;
