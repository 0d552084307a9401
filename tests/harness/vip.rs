//! An address at which a node itself serves the cluster: the DNS server's or the gateway's.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use schema::keys::Key;
use schema::records::Subnet;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};

/// Number `offset` of the range of services, once the first node has it: 10 is DNS, 11 the gateway.
pub fn vip(cluster: &Cluster, offset: u32) -> Result<Ipv4Addr> {
    let node = cluster.node();
    eventually("the node has the address", secs(30), || {
        let subnet: Subnet = cluster.etcd.value(Key::Subnet(node.name.clone()))?;
        let address = Ipv4Addr::from_bits(subnet.service_cidr.network().to_bits() + offset);
        let (addresses, end) = (node.net.addresses()?, format!("0 {address}/32"));
        ensure!(addresses.iter().any(|line| line.ends_with(&end)), "{addresses:?}");
        Ok(address)
    })
}
