//! Addresses at which a node itself serves the cluster: those of the DNS server and the gateway.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use ipnet::Ipv4Net;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};

/// Address number `offset` of the service range: 10 is DNS, 11 the gateway, computed without the product.
pub fn service_address(cluster: &Cluster, offset: u32) -> Result<Ipv4Addr> {
    let range: Ipv4Net = cluster.slot().service_cidr().parse()?;
    Ok(Ipv4Addr::from_bits(range.network().to_bits() + offset))
}

/// Like [`service_address`], once the first node has it.
pub fn vip(cluster: &Cluster, offset: u32) -> Result<Ipv4Addr> {
    let (node, address) = (cluster.node(), service_address(cluster, offset)?);
    eventually("the node has the address", secs(30), || {
        let (addresses, end) = (node.net.addresses()?, format!("0 {address}/32"));
        ensure!(addresses.iter().any(|line| line.ends_with(&end)), "{addresses:?}");
        Ok(address)
    })
}
