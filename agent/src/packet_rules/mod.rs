//! Packet rules as text, for every loop that has chains of its own: chains and jumps, what `iptables-save`
//! prints, what `iptables-restore` takes, and one reader of what is there.

pub mod chain;
pub mod jumps;
pub mod names;
pub mod reader;
pub mod restore;
pub mod saved;
pub mod spellings;
#[cfg(test)]
pub(crate) mod testing;
pub mod wake;
