//! The one way to put a slot on trial: it takes the proof that the slot was read back, and uses it up.

use crate::error::{AgentError, Result};
use crate::ports::Bootloader;
use crate::write::Installed;
use os_proto::codes::Code;
use os_proto::env_block::Env;

/// Writes `env`, which must put exactly the proven slot on trial. The slot stays exclusively open until this returns.
///
/// # Errors
/// `EnvWriteFailed`, `StateBroken`; `Internal` when `env` names another slot than the proof.
pub fn arm(installed: Installed, boot: &dyn Bootloader, env: &Env) -> Result<()> {
    if env.trial() != Some(installed.slot()) {
        return Err(AgentError::new(
            Code::Internal,
            format!(
                "slot {} was read back, but the environment would try {}",
                installed.slot(),
                env.try_slot.map_or("none", |s| s.letter())
            ),
        ));
    }
    let result = boot.write(env);
    drop(installed);
    result
}
