//! The services loop: packet rules that lead from a service's addresses and ports to its endpoints, as
//! kube-proxy lays them out.
//!
//! Reads the catalog, this node's range, the kernel's rules; decides in `plan.rs`; writes chains of
//! its own and the jumps to them, then makes the kernel forget UDP connections that lead nowhere. It
//! plans nothing before services are known, empties nothing that it did not make, and a restarted
//! agent finds its rules by their names and changes none that is right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::meta::NamespacedName;
use schema::records::{RulesStatus, ServiceRecord, Subnet};
use schema::snapshot::Versioned;
use schema::store::events::EventRecorder;
use tokio::sync::watch;

mod act;
pub mod names;
mod observe;
pub mod plan;
pub mod present;
pub mod refused;
pub mod render;
mod report;
#[cfg(test)]
pub(crate) mod tests;

pub use act::Outcome;

use self::names::ServiceNames;
use self::observe::Reading;
use self::plan::{Observed, ServicesPlan, UdpSettled, Wanted};
use self::present::Fingerprint;
use self::refused::Refusals;
use self::render::{Place, ServiceRules};
use crate::catalog::Catalog;
use crate::converge::network::spellings::Spellings;
use crate::desired::Source;
use crate::node_address::NodeAddress;
use crate::worlds::iptables::Iptables;

/// What the loop stands on.
pub struct ServicesDeps {
    /// This node.
    pub node: String,
    /// Its address.
    pub address: NodeAddress,
    /// Keeps several Minik8s on one machine apart.
    pub instance: String,
    /// The kernel's rules.
    pub iptables: Arc<dyn Iptables>,
    /// This node's range of addresses.
    pub subnet: watch::Receiver<Option<Subnet>>,
    /// What is known of the cluster.
    pub catalog: watch::Receiver<Arc<Catalog>>,
    /// What other nodes may know; a `StatusWriter` writes it.
    pub status: watch::Sender<Option<RulesStatus>>,
    /// What people are told.
    pub events: EventRecorder,
    /// Newest revision of etcd's services that the rules follow: whoever takes an endpoint down waits
    /// for it.
    pub programmed: watch::Sender<i64>,
}

/// The loop.
pub struct ServicesLoop {
    deps: ServicesDeps,
    names: ServiceNames,
    /// Asked once: it can't change while we run.
    random_fully: Option<bool>,
    rendered: Rendered,
    reading: Reading,
    /// Somebody changed rules; they are read after this time.
    read_again: Option<Duration>,
    /// What was written, and how this iptables prints it.
    spellings: Spellings<Fingerprint>,
    udp_settled: Option<UdpSettled>,
    /// When the rules came to the revision that is told.
    programmed_at: Option<Timestamp>,
    /// The last input was refused.
    was_refused: bool,
}

/// The rules of the catalog that was seen last: a service that is the same is not rendered again.
#[derive(Default)]
struct Rendered {
    place: Option<Place>,
    catalog: Option<Arc<Catalog>>,
    services: BTreeMap<NamespacedName, (Arc<Versioned<ServiceRecord>>, Arc<ServiceRules>)>,
    wanted: Arc<Wanted>,
    /// Services whose rules iptables does not take.
    refused: Refusals,
}

impl ServicesLoop {
    /// A loop that has seen nothing yet.
    pub fn new(deps: ServicesDeps) -> Self {
        Self {
            names: ServiceNames::of(&deps.instance),
            deps,
            random_fully: None,
            rendered: Rendered::default(),
            reading: Reading::default(),
            read_again: None,
            spellings: Spellings::default(),
            udp_settled: None,
            programmed_at: None,
            was_refused: false,
        }
    }
}

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
        if catalog.source == Source::Unknown {
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
        self.tell(&observed, &outcome)
    }
}
