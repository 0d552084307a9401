//! The node loop: this node's record, and its heartbeat.
//!
//! Reads the machine and the node's own keys; decides in `plan.rs`; writes `nodes/<node>` when it changes and
//! `heartbeats/<node>` on a lease. With etcd gone it retries, and nothing else waits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::{Subnet, Vtep};
use schema::store::{LeaseId, SharedStore};
use schema::trust::TrustReader;
use tokio::sync::watch;
use tokio::time::Instant;

mod act;
mod observe;
pub mod plan;
#[cfg(test)]
mod tests;

pub use act::NodeOutcome;

use self::plan::{NodePlan, Observed};
use crate::node_address::NodeAddress;
use crate::worlds::host::{Machine, MachineFacts};

/// Time for which a node counts as alive after its last heartbeat.
pub const HEARTBEAT_TTL: Duration = Duration::from_secs(15);

/// Interval between heartbeats: two may be lost.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Dependencies of the loop.
pub struct NodeDeps {
    pub node: String,
    pub listen: SocketAddr,
    pub functions_listen: SocketAddr,
    pub address: NodeAddress,
    pub age_recipient: Option<String>,
    /// Recipient of the cluster's identity, once that is here.
    pub cluster_recipient: watch::Receiver<Option<String>>,
    pub store: SharedStore,
    pub machine: Arc<dyn Machine>,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub vtep: watch::Receiver<Option<Vtep>>,
    /// True once etcd has the statuses of all pods that run here.
    pub reported: watch::Receiver<bool>,
    /// Credentials of this node, which name the authorities that it trusts.
    pub trust: TrustReader,
    /// Time from which this process sends heartbeats.
    pub since: Timestamp,
}

pub struct NodeLoop {
    deps: NodeDeps,
    facts: Option<MachineFacts>,
    lease: Option<LeaseId>,
    /// Time since when the node would register, but for the statuses of its pods.
    unreported_since: Option<Instant>,
    /// Set once a rival is logged, which would otherwise happen every 5 s.
    rival_logged: bool,
}

impl NodeLoop {
    /// Creates a loop that has observed nothing yet.
    pub fn new(deps: NodeDeps) -> Self {
        Self { deps, facts: None, lease: None, unreported_since: None, rival_logged: false }
    }
}

#[async_trait]
impl Loop for NodeLoop {
    type Observed = Observed;
    type Plan = NodePlan;
    type Outcome = NodeOutcome;

    fn name(&self) -> &'static str {
        "node"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.gather().await
    }

    fn plan(observed: &Observed, now: Timestamp) -> NodePlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, _observed: &Observed, plan: NodePlan) -> NodeOutcome {
        self.carry_out(plan).await
    }

    async fn report(&mut self, observed: Observed, outcome: NodeOutcome) -> Result<Next, LoopError> {
        if outcome.registered {
            tracing::info!(node = self.deps.node, addresses = ?observed.facts.addresses, "node registered");
        }
        if let Some(why) = &outcome.beat_anew {
            tracing::info!(node = self.deps.node, %why, "heartbeat moved to a new lease");
        }
        if outcome.rival && !self.rival_logged {
            tracing::warn!(
                node = self.deps.node,
                "another agent sends heartbeats under this node's name; give one of them another --node"
            );
        }
        self.rival_logged = outcome.rival;
        outcome.failure.map_or(Ok(Next::Interval), Err)
    }
}
