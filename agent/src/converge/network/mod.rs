//! The network loop: the bridge and the rules of this instance.
//!
//! Reads the node's range of addresses, the table of pods, the kernel's links and rules; decides in
//! `plan.rs`; writes bridge and rules. It never empties what it did not make, and plans nothing
//! before range and pods are known, so a restarted agent adopts what is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::Subnet;
use tokio::sync::watch;

mod act;
mod observe;
pub mod parse;
pub mod plan;
pub mod render;
#[cfg(test)]
mod tests;

pub use act::Outcome;

use self::parse::Words;
use self::plan::{NetworkPlan, Observed};
use self::render::{ChainRef, Names};
use crate::converge::pod_table::PodTable;
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::Netlink;

/// What the loop is told once.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    /// Keeps several Minik8s on one machine apart.
    pub instance: String,
    /// Names of bridge and chains.
    pub names: Names,
    /// Largest packet of pods in bytes.
    pub pod_mtu: u32,
}

impl NetworkSettings {
    /// The settings of an instance.
    pub fn new(instance: &str, pod_mtu: u32) -> Self {
        Self { instance: instance.to_owned(), names: Names::of(instance), pod_mtu }
    }
}

/// The loop.
pub struct NetworkLoop {
    settings: NetworkSettings,
    netlink: Arc<dyn Netlink>,
    iptables: Arc<dyn Iptables>,
    subnet: watch::Receiver<Option<Subnet>>,
    pods: watch::Receiver<PodTable>,
    /// Asked once: it can't change while we run.
    random_fully: Option<bool>,
    /// Chains written in the last run, to see how iptables prints them.
    written: BTreeMap<ChainRef, Vec<String>>,
    spellings: BTreeMap<ChainRef, (Vec<Words>, Vec<Words>)>,
}

impl NetworkLoop {
    /// A loop that has seen nothing yet.
    pub fn new(
        settings: NetworkSettings,
        netlink: Arc<dyn Netlink>,
        iptables: Arc<dyn Iptables>,
        subnet: watch::Receiver<Option<Subnet>>,
        pods: watch::Receiver<PodTable>,
    ) -> Self {
        Self {
            settings,
            netlink,
            iptables,
            subnet,
            pods,
            random_fully: None,
            written: BTreeMap::new(),
            spellings: BTreeMap::new(),
        }
    }
}

#[async_trait]
impl Loop for NetworkLoop {
    type Observed = Observed;
    type Plan = NetworkPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "network"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(subnet) = self.subnet.borrow_and_update().clone() else {
            let why = "this node has no range of pod addresses yet; the nodes controller assigns one";
            return Ok(Observation::NotReady(why.to_owned()));
        };
        let Some(pods) = self.pods.borrow_and_update().clone() else {
            return Ok(Observation::NotReady("the pods of this node have not been listed yet".to_owned()));
        };
        self.look(&subnet, &pods).await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, _now: Timestamp) -> NetworkPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, _observed: &Observed, plan: NetworkPlan) -> Outcome {
        self.carry_out(&plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        for sentence in &outcome.done {
            tracing::info!("network: {sentence}");
        }
        for sentence in &outcome.tolerated {
            tracing::warn!("network: {sentence}");
        }
        match outcome.failed.is_empty() {
            true => Ok(Next::Interval),
            false => Err(LoopError::message(outcome.failed.join("; "))),
        }
    }
}
