//! The network loop: the bridge, the tunnel to the other nodes and the rules of this instance.
//!
//! Reads range, pods, the other nodes, links and rules; decides in `plan.rs` and `tunnel.rs`; writes bridge,
//! tunnel and rules, and publishes the node's address and for which functions' pods the rules stand. Plans nothing before range and pods are known.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use tokio::time::Instant;

mod act;
mod checksums;
pub mod mtu;
mod observe;
pub mod plan;
pub mod render;
mod state;
#[cfg(test)]
mod tests;
pub mod tunnel;

pub use act::Outcome;
pub use observe::address_of_tunnel;
pub use state::{NetworkDeps, NetworkLoop, NetworkSettings, Vxlan};

use self::plan::{NetworkPlan, Observed};

/// While the tunnel is about to move it is not looked at more often, whatever fails meanwhile.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(100);

#[async_trait]
impl Loop for NetworkLoop {
    type Observed = Observed;
    type Plan = NetworkPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "network"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        // First: the node's record needs its address even without a range.
        let local = self.follow_address().await;
        let Some(subnet) = self.deps.subnet.borrow_and_update().clone() else {
            let why = "this node has no range of pod addresses yet; the nodes controller assigns one";
            return Ok(Observation::NotReady(why.to_owned()));
        };
        let Some(pods) = self.deps.pods.borrow_and_update().clone() else {
            return Ok(Observation::NotReady("the pods of this node have not been listed yet".to_owned()));
        };
        self.look(&subnet, &pods, local).await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, _now: Timestamp) -> NetworkPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: NetworkPlan) -> Outcome {
        self.carry_out(observed, &plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        for sentence in &outcome.done {
            tracing::info!("network: {sentence}");
        }
        for sentence in &outcome.tolerated {
            tracing::warn!("network: {sentence}");
        }
        match outcome.failed.is_empty() {
            true => {
                let moves = self.origin.held_back(Instant::now()).map(|(_, left)| left.max(LOOK_AGAIN_MIN));
                let soonest = moves.into_iter().chain(self.rules.read_again()).min();
                Ok(soonest.map_or(Next::Interval, Next::After))
            }
            false => Err(LoopError::message(outcome.failed.join("; "))),
        }
    }
}
