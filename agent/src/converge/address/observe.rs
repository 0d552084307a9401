//! Reads the kernel's routes and addresses.

use std::net::Ipv4Addr;

use super::AddressLoop;
use super::plan::{AddressSeen, v4};
use crate::worlds::netlink::{NetlinkError, Tunnels};

impl AddressLoop {
    pub(super) async fn look(&self) -> Result<AddressSeen, NetlinkError> {
        let address = self.netlink.node_address().await?.and_then(v4);
        let keeps_former = match self.origin.address.filter(|former| Some(*former) != address) {
            Some(former) => self.tunnels.has_address(former).await?,
            None => true,
        };
        Ok(AddressSeen { address, is_routed: self.netlink.uplink_mtu().await?.is_some(), keeps_former })
    }
}

/// Returns the local address of the existing tunnel, if that is still an address of the node.
pub async fn address_of_tunnel(tunnels: &dyn Tunnels, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError> {
    let Some(there) = tunnels.tunnel_origin(name).await? else { return Ok(None) };
    Ok(tunnels.has_address(there).await?.then_some(there))
}
