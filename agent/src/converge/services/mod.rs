//! The services loop: packet rules that lead from a service's addresses and ports to its endpoints, laid out like
//! kube-proxy's. Reads the catalog, this node's range, the kernel's rules; decides in `plan.rs`; writes its own
//! chains and the jumps to them, then makes the kernel forget UDP connections that lead nowhere. A restarted agent
//! finds its rules by their names.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};

mod act;
pub mod names;
mod observe;
pub mod plan;
pub mod present;
pub mod refused;
pub mod render;
mod report;
mod state;
#[cfg(test)]
mod tests;

pub use act::Outcome;
pub use state::{ServicesDeps, ServicesLoop};

use self::plan::{Observed, ServicesPlan};
use crate::desired::KnownFrom;

#[async_trait]
impl Loop for ServicesLoop {
    type Observed = Observed;
    type Plan = ServicesPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "services"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(subnet) = self.deps.subnet.borrow_and_update().clone() else {
            let why = "this node has no range of pod addresses yet; the nodes controller assigns one";
            return Ok(Observation::NotReady(why.to_owned()));
        };
        let catalog = Arc::clone(&self.deps.catalog.borrow_and_update());
        if catalog.known_from == KnownFrom::Unknown {
            return Ok(Observation::NotReady("the services have not been listed yet".to_owned()));
        }
        self.look(&subnet, &catalog).await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, _now: Timestamp) -> ServicesPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: ServicesPlan) -> Outcome {
        self.carry_out(observed, plan).await
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        self.publish_status(&observed, &outcome)
    }
}
