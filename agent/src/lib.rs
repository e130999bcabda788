//! Slipway node agent.
