//! File locks: one agent per instance of a machine and per state directory.

pub mod instance_lock;
pub mod state_lock;
