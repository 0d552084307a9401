//! The network loop: the bridge, the tunnel to the other nodes and the packet rules of this instance.
//!
//! Reads range, pods, other nodes, links and rules; decides in `plan.rs` and `tunnel.rs`; writes bridge, tunnel and
//! rules, and publishes the functions' pods for which rules are in place. Plans nothing before range and pods are
//! known.
//! known.

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};

mod act;
mod observe;
pub mod plan;
pub mod render;
mod state;
#[cfg(test)]
mod tests;
pub mod tunnel;

pub use act::Outcome;
pub use state::{NetworkDeps, NetworkLoop, NetworkSettings, Vxlan};

use self::plan::{NetworkPlan, Observed};

#[async_trait]
impl Loop for NetworkLoop {
    type Observed = Observed;
    type Plan = NetworkPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "network"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(subnet) = self.deps.subnet.borrow_and_update().clone() else {
            let why = "this node has no range of pod addresses yet; the nodes controller assigns one";
            return Ok(Observation::NotReady(why.to_owned()));
        };
        let Some(pods) = self.deps.pods.borrow_and_update().clone() else {
            return Ok(Observation::NotReady("the pods of this node have not been listed yet".to_owned()));
        };
        self.read_inputs(&subnet, &pods).await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, _now: Timestamp) -> NetworkPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: NetworkPlan) -> Outcome {
        self.carry_out(observed, &plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        for error in &outcome.tolerated {
            tracing::warn!(error, "network impaired");
        }
        match outcome.failed.is_empty() {
            true => Ok(self.rules.read_again().map_or(Next::Interval, Next::After)),
            false => Err(LoopError::message(outcome.failed.join("; "))),
        }
    }
}
