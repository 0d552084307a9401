//! Who may call functions that are not public: pods and nodes, by the addresses that etcd has of them. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use schema::records::Subnet;

use crate::catalog::Catalog;

/// Addresses of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pods: Vec<Ipv4Net>,
    nodes: BTreeSet<Ipv4Addr>,
}

impl Known {
    pub(super) fn of(catalog: &Catalog, own: Option<&Subnet>) -> Self {
        let pods =
            own.map(|subnet| subnet.cidr).into_iter().chain(catalog.peers.values().map(|peer| peer.cidr));
        let nodes =
            catalog.own_address.into_iter().chain(catalog.peers.values().filter_map(|peer| peer.address));
        Self { pods: pods.collect(), nodes: nodes.collect() }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        self.nodes.contains(&address) || self.pods.iter().any(|range| range.contains(&address))
    }
}
