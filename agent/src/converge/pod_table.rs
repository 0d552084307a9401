//! What the network loop must know of the pods that run or are about to: published after every complete listing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use schema::kinds::pod::HostPortStatus;
use schema::meta::NamespacedName;

/// The network of one pod with an address of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    pub pod: NamespacedName,
    pub uid: String,
    pub address: Ipv4Addr,
    /// It is a replica of a function.
    pub is_function: bool,
    /// Ports of the node that lead to it.
    pub ports: Vec<HostPortStatus>,
}

/// Addresses of functions' pods for which the rules stand that keep them from what governs the cluster. Their containers
/// start only then.
pub type SandboxedPods = Arc<BTreeSet<Ipv4Addr>>;

/// Running pods by uid, and functions' pods that are about to run; none until Docker has been listed once, so that no rules go before.
pub type PodTable = Option<Arc<BTreeMap<String, PodNet>>>;
