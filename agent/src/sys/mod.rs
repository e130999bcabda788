//! The only syscalls and the only `Command` of the agent.

pub mod accounts;
pub mod atomic;
pub mod block;
pub mod buf;
pub mod clock;
pub mod cmd;
pub mod discover;
pub mod holders;
pub mod journal;
pub mod lock;
pub mod mount;
pub mod space;
pub mod units;
