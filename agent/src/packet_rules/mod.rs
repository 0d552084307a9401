//! Packet rules as text, for every loop that has its own chains: chains and jumps, the output of `iptables-save`,
//! the input of `iptables-restore`, and one reader of existing rules.

pub mod chain;
pub mod jumps;
pub mod reader;
pub mod restore;
pub mod saved;
#[cfg(test)]
pub(crate) mod testing;
