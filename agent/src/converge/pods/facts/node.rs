//! The node, as far as its pods depend on it.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::converge::node_dns::NodeDns;
use crate::worlds::docker::LogLimits;

/// What does not change while the agent runs, and what is as it was at the last look: address and name servers.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node.
    pub node: String,
    /// Its address, for `status.hostIP`, and of pods on its own network.
    pub node_ip: IpAddr,
    /// The instance.
    pub instance: String,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Reference of the pause image.
    pub pause_image: String,
    /// MTU of the pods' links.
    pub mtu: u32,
    /// What every container gets, whatever its manifest says.
    pub container_limits: ContainerLimits,
    /// The name servers of pods.
    pub dns: NodeDns,
}

/// What every container gets, whatever its manifest says. A change is for new containers: none is
/// replaced because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Processes and threads; 0 is no limit.
    pub pids: i64,
    /// How much of what it writes is kept.
    pub log: LogLimits,
}

/// Most processes and threads of a container: a fork bomb stays in it, and no server comes near.
pub const DEFAULT_PIDS: i64 = 4096;

impl Default for ContainerLimits {
    fn default() -> Self {
        Self { pids: DEFAULT_PIDS, log: LogLimits::default() }
    }
}
