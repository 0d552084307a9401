//! Who may call functions that are not public: pods, nodes and reconcilers, by the addresses that etcd has of them and
//! those that the agent was given. Pure.

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
    /// And reconcilers.
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

    /// It is of a node or a reconciler: not of a pod.
    pub(super) fn has_node(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.nodes.contains(&address))
    }
}
