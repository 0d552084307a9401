//! The kernel's packet rules, through the programs that everyone else on the node uses, too.
//!
//! [`RealIptables`] runs `iptables-save`, `iptables-restore`, `conntrack` and `nft`; `FakeIptables` keeps text in
//! memory. Nothing here knows the meaning of the rules.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use async_trait::async_trait;

#[cfg(test)]
mod fake;
mod ledger;
mod real;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use fake::FakeIptables;
pub use ledger::loud_steps;
pub use real::RealIptables;

/// UDP connections that the kernel still sends to a target that rules no longer name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleUdp {
    /// Node port that clients use.
    pub port: u16,
    /// The former target of the connections; `None` for connections that no rule redirected.
    pub former_target: Option<Ipv4Addr>,
}

/// UDP connections in the kernel's table that share both ends on the service's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UdpFlow {
    /// Destination of the clients' packets.
    pub to: SocketAddrV4,
    /// Source of the replies; the same as `to` if no rule redirected the connections.
    pub from: SocketAddrV4,
}

/// Failure to read or write the rules. The variant names the act.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// `package` is its name on Debian and Ubuntu.
    #[error("{program} is not installed; install the package `{package}`")]
    NotInstalled { program: String, package: &'static str },
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: std::io::Error },
    #[error("{program} failed: {message}")]
    Refused { program: String, message: String, lines: Vec<usize> },
    #[error("{program} did not end within {after:?}")]
    Timeout { program: String, after: Duration },
}

/// The kernel's packet rules (IPv4). Every act has a time limit.
#[async_trait]
pub trait Iptables: Send + Sync + 'static {
    /// Returns all rules of all tables, as printed by `iptables-save`.
    async fn save(&self) -> Result<String, IptablesError>;
    /// Applies `input` as `iptables-restore --noflush` does: each part up to a `COMMIT` as a whole or not at all,
    /// and nothing after a refused part.
    async fn restore(&self, input: &str) -> Result<(), IptablesError>;
    /// True if `MASQUERADE` supports `--random-fully`.
    async fn has_random_fully(&self) -> Result<bool, IptablesError>;
    /// Makes the kernel forget these UDP connections, so that their next packet meets the rules again. Without the
    /// program `conntrack` this is an error and nothing else suffers.
    async fn forget_udp(&self, stale: &StaleUdp) -> Result<(), IptablesError>;
    /// Returns a number that changes with each change of the rules by anyone else. Of this process's own inputs to
    /// [`Iptables::restore`] only the [`loud_steps`] count. `None` if the kernel does not count.
    async fn generation(&self) -> Option<u32>;
    /// True if frames that a bridge passes between its ports also meet the rules (`br_netfilter`). Anybody may
    /// switch this at any time.
    async fn sees_bridged_frames(&self) -> bool;
    /// Lists the UDP connections that the kernel tracks.
    async fn udp_flows(&self) -> Result<BTreeSet<UdpFlow>, IptablesError>;
    /// Like [`Iptables::forget_udp`], for this service and this endpoint.
    async fn forget_flow(&self, flow: &UdpFlow) -> Result<(), IptablesError>;
    /// Returns a table of rules for the frames that bridges pass, as printed by `nft`; `None` if it does not exist.
    /// iptables has no such rules.
    async fn frame_table(&self, name: &str) -> Result<Option<String>, IptablesError>;
    /// Applies `input` as `nft -f` does: as a whole or not at all.
    async fn change_frame_tables(&self, input: &str) -> Result<(), IptablesError>;
}
