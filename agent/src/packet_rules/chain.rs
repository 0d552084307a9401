//! Tables, chains, and the jumps that lead into ours.

use std::fmt;

use schema::kinds::pod::Protocol;

/// A table of packet rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Rules that accept or drop packets.
    Filter,
    /// Rules that apply before address translation, and before any program accepts a packet.
    Mangle,
    /// Rules for address translation.
    Nat,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Table::Filter => "filter",
            Table::Mangle => "mangle",
            Table::Nat => "nat",
        })
    }
}

/// A chain in its table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainRef {
    pub table: Table,
    pub chain: String,
}

impl ChainRef {
    /// Creates a reference to the chain.
    pub fn new(table: Table, chain: impl Into<String>) -> Self {
        Self { table, chain: chain.into() }
    }
}

impl fmt::Display for ChainRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table, self.chain)
    }
}

/// A rule in a chain of the kernel that leads into one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// Chain that contains the rule.
    pub base: ChainRef,
    /// Our chain.
    pub to: String,
    /// Rule without `-A CHAIN`.
    pub rule: String,
}

impl Jump {
    /// Creates a jump from the kernel's chain `base`, in the table of `to`.
    pub fn new(base: &str, matches: &str, to: &ChainRef) -> Self {
        let rule = format!("{matches}-j {}", to.chain);
        Self { base: ChainRef::new(to.table, base), to: to.chain.clone(), rule }
    }
}

/// Returns `tcp` or `udp`.
pub fn word_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}
