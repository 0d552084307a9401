//! The address loop: selects the node's address for the other nodes if none is configured.
//!
//! Reads the kernel's routes and links; decides in `plan.rs`; publishes the address, with which the node's record,
//! its tunnel and its API move together.

mod plan;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::worlds::netlink::{Netlink, NetlinkError, Tunnels};
use plan::{AddressFacts, AddressPlan, AddressState, Observed, v4};

/// Minimum interval between observations while the address is about to change.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(100);

pub struct AddressLoop {
    netlink: Arc<dyn Netlink>,
    tunnels: Arc<dyn Tunnels>,
    origin: AddressState,
    address: watch::Sender<Option<IpAddr>>,
}

impl AddressLoop {
    /// Creates a loop that begins with the published address.
    pub fn new(
        netlink: Arc<dyn Netlink>,
        tunnels: Arc<dyn Tunnels>,
        address: watch::Sender<Option<IpAddr>>,
    ) -> Self {
        let origin = AddressState { address: address.borrow().and_then(v4), rival: None, will_move: false };
        Self { netlink, tunnels, origin, address }
    }
}

#[async_trait]
impl Loop for AddressLoop {
    type Observed = Observed;
    type Plan = AddressPlan;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "address"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let seen = self.gather().await;
        let seen = seen.map_err(|error| LoopError::new("cannot read the node's addresses", error))?;
        Ok(Observation::Ready(Observed { seen, before: self.origin.clone(), at: Instant::now().into_std() }))
    }

    fn plan(observed: &Observed, _: Timestamp) -> AddressPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: AddressPlan) {
        self.carry_out(observed, plan);
    }

    async fn report(&mut self, observed: Observed, (): ()) -> Result<Next, LoopError> {
        let left = self.origin.pending_move(observed.at).map(|(_, left)| left.max(LOOK_AGAIN_MIN));
        Ok(left.map_or(Next::Interval, Next::After))
    }
}

// Publishes the node's address.

impl AddressLoop {
    fn carry_out(&mut self, observed: &Observed, plan: AddressPlan) {
        if let (Some(former), Some((to, left))) = (observed.before.address, plan.rival) {
            tracing::info!(%former, %to, change_in = ?left, "node address about to change");
        }
        self.origin = plan.origin;
        if let Some(address) = self.origin.address {
            let now = Some(IpAddr::V4(address));
            if self.address.send_if_modified(|there| std::mem::replace(there, now) != now) {
                tracing::info!(%address, "node address changed");
            }
        }
    }
}

// Reads the kernel's routes and addresses.

impl AddressLoop {
    async fn gather(&self) -> Result<AddressFacts, NetlinkError> {
        let address = self.netlink.node_address().await?.and_then(v4);
        let keeps_former = match self.origin.address.filter(|former| Some(*former) != address) {
            Some(former) => self.tunnels.has_address(former).await?,
            None => true,
        };
        Ok(AddressFacts { address, is_routed: self.netlink.uplink_mtu().await?.is_some(), keeps_former })
    }
}

/// Returns the local address of the existing tunnel, if that is still an address of the node.
pub async fn tunnel_address(tunnels: &dyn Tunnels, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError> {
    let Some(there) = tunnels.tunnel_origin(name).await? else { return Ok(None) };
    Ok(tunnels.has_address(there).await?.then_some(there))
}
