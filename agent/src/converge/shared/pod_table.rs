//! Pods that run or are about to, for the network loop: published after every complete listing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use schema::kinds::pod::HostPortStatus;
use schema::meta::NamespacedName;

/// Network of one pod that has its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    pub pod: NamespacedName,
    pub uid: String,
    pub address: Ipv4Addr,
    /// True for a replica of a function.
    pub is_function: bool,
    /// Ports of the node that lead to the pod.
    pub ports: Vec<HostPortStatus>,
}

/// Addresses of function pods whose rules are in place, which keep them from the control plane. Their containers
/// start only then.
pub type SandboxedPods = Arc<BTreeSet<Ipv4Addr>>;

/// Running pods by uid, and function pods that are about to run; `None` until Docker has been listed once, so that
/// no rules are removed before.
pub type PodTable = Option<Arc<BTreeMap<String, PodNet>>>;
