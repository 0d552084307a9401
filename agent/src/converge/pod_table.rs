//! What the network loop must know of the pods that run: published after every complete listing.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use schema::kinds::pod::HostPortStatus;
use schema::meta::NamespacedName;

/// The network of one running pod with an address of its own.
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

/// Running pods by uid; none until Docker has been listed once, so that no rules go before.
pub type PodTable = Option<Arc<BTreeMap<String, PodNet>>>;
