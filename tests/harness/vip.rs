//! An address at which a node itself serves the cluster: the DNS server's or the gateway's.

use std::net::Ipv4Addr;

use anyhow::Result;
use schema::keys::Key;
use schema::records::Subnet;

use crate::cluster::Cluster;
use crate::net_world::NetWorld;

/// An address of the range of services, on a link of the first node.
#[derive(Debug)]
pub struct Vip {
    /// The address.
    pub address: Ipv4Addr,
    /// Where it was put by us, as the network loop did not.
    added_in: Option<NetWorld>,
}

impl Vip {
    /// Number `offset` of the range: 10 is DNS, 11 the gateway. The node must have its range.
    pub fn of(cluster: &Cluster, offset: u32) -> Result<Self> {
        let node = cluster.node();
        let subnet: Subnet = cluster.etcd.value(Key::Subnet(node.name.clone()))?;
        let address = Ipv4Addr::from_bits(subnet.service_cidr.network().to_bits() + offset);
        let end = format!(" {address}/32");
        if node.net.addresses()?.iter().any(|line| line.ends_with(&end)) {
            return Ok(Self { address, added_in: None });
        }
        // Not on the bridge, which the network loop keeps as it wants it.
        node.net.run("ip", &["addr", "add", &format!("{address}/32"), "dev", "lo"])?;
        Ok(Self { address, added_in: Some(node.net.clone()) })
    }
}

impl Drop for Vip {
    fn drop(&mut self) {
        if let Some(net) = &self.added_in {
            let _ = net.run("ip", &["addr", "del", &format!("{}/32", self.address), "dev", "lo"]);
        }
    }
}
