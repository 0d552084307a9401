//! Observes the inputs of the gateway: the service range and the catalog. The loop remembers its own listener and
//! table, which exist in this process only.

use std::sync::Arc;

use super::GatewayLoop;
use super::plan::Observed;

impl GatewayLoop {
    /// Returns `None` before the node has a range.
    pub(super) fn look(&mut self) -> Option<Observed> {
        let service_cidr = self.subnet.borrow_and_update().as_ref()?.service_cidr;
        Some(Observed {
            node: self.node.clone(),
            service_cidr,
            port: self.port,
            listens: self.listens,
            catalog: Arc::clone(&self.catalog.borrow_and_update()),
            routed: self.routed.clone(),
        })
    }
}
