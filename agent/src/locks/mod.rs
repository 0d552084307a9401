//! Locks on files: one agent per machine and per state directory.

pub mod instance_lock;
pub mod state_lock;
