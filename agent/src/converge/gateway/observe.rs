//! Reads what the gateway decides on: the range of services and the catalog. It keeps what it did
//! itself, for a listener and a table live in this process only.

use std::sync::Arc;

use super::GatewayLoop;
use super::plan::Observed;

impl GatewayLoop {
    /// None before the node has a range.
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
