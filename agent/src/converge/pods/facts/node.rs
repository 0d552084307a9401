//! Facts about the node that its pods depend on.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::converge::node_dns::NodeDns;
use crate::worlds::docker::LogLimits;

/// Node facts: constant while the agent runs, except address and name servers, which are as last observed.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub node: String,
    /// Node address, for `status.hostIP` and for pods on the host's network.
    pub node_ip: IpAddr,
    pub instance: String,
    pub state_dir: PathBuf,
    pub pause_image: String,
    pub mtu: u32,
    pub container_limits: ContainerLimits,
    pub dns: NodeDns,
}

/// Limits of every container, regardless of its manifest. Changes apply to new containers only: none is replaced
/// because of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Maximum number of processes and threads; 0 means no limit.
    pub pids: i64,
    pub log: LogLimits,
}

/// Default maximum number of processes and threads of a container: contains a fork bomb, and no server comes near.
pub const DEFAULT_PIDS: i64 = 4096;

impl Default for ContainerLimits {
    fn default() -> Self {
        Self { pids: DEFAULT_PIDS, log: LogLimits::default() }
    }
}
