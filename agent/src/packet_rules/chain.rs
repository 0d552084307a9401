//! Tables, chains, and the jumps that lead into ours.

use std::fmt;

use schema::kinds::pod::Protocol;

/// A table of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// What may pass.
    Filter,
    /// Before addresses are rewritten, and before anybody lets a packet pass.
    Mangle,
    /// Which addresses are rewritten.
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
    /// A chain in its table.
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
    /// Where the rule stands.
    pub base: ChainRef,
    /// Our chain.
    pub to: String,
    /// The rule without `-A CHAIN`.
    pub rule: String,
}

impl Jump {
    /// A jump from the kernel's chain `base` of the table in which `to` is.
    pub fn new(base: &str, matches: &str, to: &ChainRef) -> Self {
        let rule = format!("{matches}-j {}", to.chain);
        Self { base: ChainRef::new(to.table, base), to: to.chain.clone(), rule }
    }
}

/// `tcp` or `udp`.
pub fn word_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}
