//! An address at which a node itself serves the cluster: the DNS server's or the gateway's.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use ipnet::Ipv4Net;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};

/// Number `offset` of the range of services: 10 is DNS, 11 the gateway, whatever the product says.
pub fn service_address(cluster: &Cluster, offset: u32) -> Result<Ipv4Addr> {
    let range: Ipv4Net = cluster.slot().service_cidr().parse()?;
    Ok(Ipv4Addr::from_bits(range.network().to_bits() + offset))
}

/// As [`service_address`], once the first node has it.
pub fn vip(cluster: &Cluster, offset: u32) -> Result<Ipv4Addr> {
    let (node, address) = (cluster.node(), service_address(cluster, offset)?);
    eventually("the node has the address", secs(30), || {
        let (addresses, end) = (node.net.addresses()?, format!("0 {address}/32"));
        ensure!(addresses.iter().any(|line| line.ends_with(&end)), "{addresses:?}");
        Ok(address)
    })
}
