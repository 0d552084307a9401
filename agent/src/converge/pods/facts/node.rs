//! The node, as far as its pods depend on it.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::converge::node_dns::NodeDns;
use crate::worlds::docker::LogLimits;

/// What does not change while the agent runs, and what is as it was at the last look: address and name servers.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub node: String,
    /// Its address, for `status.hostIP`, and of pods on its own network.
    pub node_ip: IpAddr,
    pub instance: String,
    pub state_dir: PathBuf,
    pub pause_image: String,
    pub mtu: u32,
    pub container_limits: ContainerLimits,
    pub dns: NodeDns,
}

/// What every container gets, whatever its manifest says. A change is for new containers: none is
/// replaced because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Processes and threads; 0 is no limit.
    pub pids: i64,
    pub log: LogLimits,
}

/// Maximum number of processes and threads of a container: a fork bomb stays in it, and no server comes near.
pub const DEFAULT_PIDS: i64 = 4096;

impl Default for ContainerLimits {
    fn default() -> Self {
        Self { pids: DEFAULT_PIDS, log: LogLimits::default() }
    }
}
