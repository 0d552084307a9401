//! (in work)
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use schema::kinds::pod::HostPortStatus;
use schema::meta::PodRef;

/// What the network needs to know of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    /// Which pod.
    pub pod: PodRef,
    /// Which incarnation of it.
    pub uid: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Ports of the node that lead to it.
    pub ports: Vec<HostPortStatus>,
}

/// All pods of this node that have an address, by container; none before the first complete list.
pub type PodTable = Option<Arc<BTreeMap<String, PodNet>>>;
