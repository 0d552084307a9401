//! The kernel's packet rules, through the programs that everyone else on the node uses too.
//!
//! [`RealIptables`] runs `iptables-save`, `iptables-restore` and `conntrack`; `FakeIptables` keeps
//! text in memory. Nothing here knows what the rules mean.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use async_trait::async_trait;

#[cfg(test)]
mod fake;
mod generation;
mod kernel_chains;
mod ledger;
mod real;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use fake::FakeIptables;
pub use ledger::loud_steps;
pub use real::RealIptables;

/// UDP connections that the kernel still sends where a rule no longer points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleUdp {
    /// The node's port that clients use.
    pub port: u16,
    /// Only those that lead to this address; none for those that no rule has led anywhere.
    pub former_target: Option<Ipv4Addr>,
}

/// UDP connections that the kernel knows: all with the same two ends on the service's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UdpFlow {
    /// What the clients send to.
    pub to: SocketAddrV4,
    /// Who answers; the same as `to` if no rule has led them anywhere.
    pub from: SocketAddrV4,
}

/// Why the rules could not be read or written. The variant names the act.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// `package`: its name on Debian and Ubuntu.
    #[error("{program} is not installed; install the package `{package}`")]
    NotInstalled { program: String, package: &'static str },
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: std::io::Error },
    #[error("{program} failed: {message}")]
    Refused { program: String, message: String, lines: Vec<usize> },
    #[error("{program} did not end within {after:?}")]
    Timeout { program: String, after: Duration },
}

/// The kernel's packet rules (IPv4). Every act is bounded in time.
#[async_trait]
pub trait Iptables: Send + Sync + 'static {
    /// All rules of all tables, as `iptables-save` prints them.
    async fn save(&self) -> Result<String, IptablesError>;
    /// Applies `input` as `iptables-restore --noflush` does: up to each `COMMIT` all of it or nothing, and
    /// nothing after one that is refused.
    async fn restore(&self, input: &str) -> Result<(), IptablesError>;
    /// `MASQUERADE` takes `--random-fully`.
    async fn has_random_fully(&self) -> Result<bool, IptablesError>;
    /// Makes the kernel forget these UDP connections, so that their next packet meets the rules
    /// anew. Without the program `conntrack` that is an error and nothing else suffers.
    async fn forget_udp(&self, stale: &StaleUdp) -> Result<(), IptablesError>;
    /// A number that is another after each change of the rules by anyone else. Of this process' own
    /// inputs of [`Iptables::restore`] only the [`loud_steps`] count. None where the kernel does not count.
    async fn generation(&self) -> Option<u32>;
    /// Frames that a bridge passes from one of its ports to another meet the rules too
    /// (`br_netfilter`). Anybody may switch it at any time.
    async fn sees_bridged_frames(&self) -> bool;
    /// The UDP connections that the kernel follows.
    async fn udp_flows(&self) -> Result<BTreeSet<UdpFlow>, IptablesError>;
    /// As [`Iptables::forget_udp`], of this service and this endpoint.
    async fn forget_flow(&self, flow: &UdpFlow) -> Result<(), IptablesError>;
}
