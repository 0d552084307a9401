//! Callers allowed to call non-public functions: pods, nodes and reconcilers, by their addresses in etcd and in the
//! agent's configuration. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use schema::records::Subnet;

use crate::catalog::Catalog;
use crate::converge::control_plane::ControlPlane;

/// Addresses of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterAddresses {
    pods: Vec<Ipv4Net>,
    /// Addresses of nodes and reconcilers.
    nodes: BTreeSet<Ipv4Addr>,
}

impl ClusterAddresses {
    pub(super) fn of(catalog: &Catalog, own: Option<&Subnet>, control: &ControlPlane) -> Self {
        let pods =
            own.map(|subnet| subnet.cidr).into_iter().chain(catalog.peers.values().map(|peer| peer.cidr));
        let nodes =
            catalog.own_address.into_iter().chain(catalog.peers.values().filter_map(|peer| peer.address));
        let reconcilers = control.reconcilers.iter().map(|at| *at.ip());
        Self { pods: pods.collect(), nodes: nodes.chain(reconcilers).collect() }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        self.nodes.contains(&address) || self.pods.iter().any(|range| range.contains(&address))
    }

    /// True if the address belongs to a node or a reconciler, not to a pod.
    pub(super) fn has_node(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.nodes.contains(&address))
    }
}
