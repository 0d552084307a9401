//! Observes the catalog, the cluster's addresses and the current listener.

use std::sync::Arc;

use super::FunctionsLoop;
use super::plan::Observed;

impl FunctionsLoop {
    pub(super) fn look(&mut self) -> Observed {
        Observed {
            wanted: self.listen,
            listens: self.listens,
            catalog: Arc::clone(&self.catalog.borrow_and_update()),
            subnet: self.subnet.borrow_and_update().clone(),
            control: self.control.borrow_and_update().clone(),
            followed: self.followed.clone(),
            known: self.known.borrow().clone(),
        }
    }
}
