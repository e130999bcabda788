//! Boot selection: what decides which slot starts next.

pub mod dual_env;
pub mod fat12;

pub use dual_env::DualEnv;
