//! Publishes the node's address.

use std::net::IpAddr;

use super::AddressLoop;
use super::plan::{AddressPlan, Observed};

impl AddressLoop {
    pub(super) fn carry_out(&mut self, observed: &Observed, plan: AddressPlan) {
        if let (Some(former), Some((to, left))) = (observed.before.address, plan.rival) {
            tracing::info!(%former, %to, ?left, "the node's address changes if the routes still say so then");
        }
        self.origin = plan.origin;
        if let Some(address) = self.origin.address {
            let now = Some(IpAddr::V4(address));
            if self.address.send_if_modified(|there| std::mem::replace(there, now) != now) {
                tracing::info!(%address, "the node has another address");
            }
        }
    }
}
