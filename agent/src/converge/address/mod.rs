//! The address loop: selects the node's address for the other nodes if none is configured.
//!
//! Reads the kernel's routes and links; decides in `plan.rs`; publishes the address, with which the node's record,
//! its tunnel and its API move together.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::worlds::netlink::{Netlink, Tunnels};

mod act;
mod observe;
mod plan;
#[cfg(test)]
mod tests;

pub use observe::address_of_tunnel;

use plan::{AddressPlan, Observed, Origin, v4};

/// Minimum interval between observations while the address is about to change.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(100);

pub struct AddressLoop {
    netlink: Arc<dyn Netlink>,
    tunnels: Arc<dyn Tunnels>,
    origin: Origin,
    address: watch::Sender<Option<IpAddr>>,
}

impl AddressLoop {
    /// Creates a loop that begins with the published address.
    pub fn new(
        netlink: Arc<dyn Netlink>,
        tunnels: Arc<dyn Tunnels>,
        address: watch::Sender<Option<IpAddr>>,
    ) -> Self {
        let origin = Origin { address: address.borrow().and_then(v4), rival: None, moves_in_time: false };
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
        let seen = self.look().await;
        let seen = seen.map_err(|error| LoopError::new("cannot look at the node's addresses", error))?;
        Ok(Observation::Ready(Observed { seen, before: self.origin.clone(), at: Instant::now().into_std() }))
    }

    fn plan(observed: &Observed, _: Timestamp) -> AddressPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: AddressPlan) {
        self.carry_out(observed, plan);
    }

    async fn report(&mut self, observed: Observed, (): ()) -> Result<Next, LoopError> {
        let left = self.origin.held_back(observed.at).map(|(_, left)| left.max(LOOK_AGAIN_MIN));
        Ok(left.map_or(Next::Interval, Next::After))
    }
}
