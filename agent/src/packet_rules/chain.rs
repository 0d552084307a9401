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
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

// Names of an instance's links and of the chains of its network loop.

/// Names that an instance uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// `mk8s0`.
    pub bridge: String,
    /// `mk8s.1`.
    pub tunnel: String,
    /// `mk8s-builds`, Docker's network for builds, and its bridge `mk8s-b0`.
    pub build_network: String,
    pub build_bridge: String,
    /// `mk8s-senders`, the table of rules for the frames of pods.
    pub senders: String,
    /// `MK8S-FORWARD`.
    pub forward: ChainRef,
    /// `MK8S-INPUT`.
    pub input: ChainRef,
    /// `MK8S-SANDBOX`, for packets of functions.
    pub sandbox: ChainRef,
    /// `MK8S-BUILDS`, for packets of builds.
    pub builds: ChainRef,
    /// `MK8S-HOSTPORT`.
    pub hostport: ChainRef,
    /// `MK8S-POSTROUTING`.
    pub postrouting: ChainRef,
}

impl Names {
    /// Returns the names of `instance`.
    pub fn for_instance(instance: &str) -> Self {
        let prefix = instance.to_ascii_uppercase();
        Self {
            bridge: format!("{instance}0"),
            tunnel: format!("{instance}.1"),
            build_network: format!("{instance}-builds"),
            build_bridge: format!("{instance}-b0"),
            senders: format!("{instance}-senders"),
            forward: ChainRef::new(Table::Filter, format!("{prefix}-FORWARD")),
            input: ChainRef::new(Table::Filter, format!("{prefix}-INPUT")),
            sandbox: ChainRef::new(Table::Filter, format!("{prefix}-SANDBOX")),
            builds: ChainRef::new(Table::Mangle, format!("{prefix}-BUILDS")),
            hostport: ChainRef::new(Table::Nat, format!("{prefix}-HOSTPORT")),
            postrouting: ChainRef::new(Table::Nat, format!("{prefix}-POSTROUTING")),
        }
    }

    /// Returns all chains of this instance.
    pub fn chains(&self) -> [&ChainRef; 6] {
        [&self.forward, &self.input, &self.sandbox, &self.builds, &self.hostport, &self.postrouting]
    }

    /// Returns the jump that exists once a build needs the network: Docker's own accept rules for its bridges
    /// precede ours.
    pub fn builds_jump(&self) -> Jump {
        Jump::new("PREROUTING", &format!("-i {} ", self.build_bridge), &self.builds)
    }

    /// Returns the jumps that always lead into the chains.
    pub fn jumps(&self) -> Vec<Jump> {
        let local = "-m addrtype --dst-type LOCAL ";
        vec![
            Jump::new("FORWARD", "", &self.forward),
            Jump::new("INPUT", "", &self.input),
            Jump::new("PREROUTING", local, &self.hostport),
            Jump::new("OUTPUT", local, &self.hostport),
            Jump::new("POSTROUTING", "", &self.postrouting),
        ]
    }
}
