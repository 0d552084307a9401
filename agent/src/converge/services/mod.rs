//! The services loop: packet rules that lead from a service's addresses and ports to its endpoints, laid out like
//! kube-proxy's. Reads the catalog, this node's range, the kernel's rules; decides in `plan.rs`; writes its own
//! chains and the jumps to them, then makes the kernel forget UDP connections that lead nowhere. A restarted agent
//! finds its rules by their names.

mod act;
pub mod names;
mod observe;
pub mod plan;
pub mod present;
pub mod refused;
pub mod render;
mod state;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::kinds::Kind;
use schema::records::{EventType, RulesStatus};
use schema::store::events::EventDraft;

use self::plan::{Observed, ServicesPlan};
use crate::desired::StateOrigin;
use act::Refusal;
use refused::RETRY;
use schema::control::publish;

pub use act::Outcome;
pub use state::{ServicesDeps, ServicesLoop};

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
        if catalog.known_from == StateOrigin::Unknown {
            return Ok(Observation::NotReady("the services have not been listed yet".to_owned()));
        }
        self.read_inputs(&subnet, &catalog).await.map(Observation::Ready)
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

// Reports the progress of the rules: to this node's own loops immediately, to others through etcd on change, at
// most once a second.

/// Pause after a service was left out: enough for the other services, not a fix of the cause.
const AGAIN: Duration = Duration::from_millis(100);

impl ServicesLoop {
    fn publish_status(&mut self, observed: &Observed, outcome: &Outcome) -> Result<Next, LoopError> {
        outcome.tolerated.iter().for_each(|error| tracing::warn!(error, "UDP connections not cleaned up"));
        outcome.refused.iter().for_each(|refusal| self.record_refusal(refusal));
        self.record_withheld();
        let error = outcome.failed.join("; ");
        let is_done = error.is_empty() && outcome.refused.is_empty() && !outcome.is_outdated;
        // A catalog from disk has no revision to report.
        if let Some(revision) = observed.revision {
            if is_done && publish(&self.deps.programmed, revision) {
                self.programmed_at = Some(Timestamp::now());
            }
            let (left_out, more) = self.rendered.refused.named();
            let (revision, programmed_at) = (*self.deps.programmed.borrow(), self.programmed_at);
            let mut status = RulesStatus { revision, programmed_at, error: error.clone(), left_out };
            if more > 0 && status.error.is_empty() {
                // These must not count as programmed.
                status.error = format!("{more} more services are not programmed; see the events");
            }
            publish(&self.deps.status, Some(status));
        }
        match error.is_empty() {
            true if !is_done => Ok(Next::After(AGAIN)),
            true => Ok(self.rules.read_again().map_or(Next::Interval, Next::After)),
            false => Err(LoopError::message(error)),
        }
    }

    /// Records an event for each service whose external IPs are newly withheld from it.
    fn record_withheld(&mut self) {
        let (Some(place), Some(catalog)) = (&self.rendered.place, &self.rendered.catalog) else { return };
        if place.withheld == self.withheld_reported {
            return;
        }
        for (id, service) in &catalog.services {
            let is_news = |address: &&Ipv4Addr| {
                place.withheld.contains(address) && !self.withheld_reported.contains(address)
            };
            let addresses = service.value.external_ips.iter().filter(is_news).map(ToString::to_string);
            let addresses: Vec<String> = addresses.collect();
            if addresses.is_empty() {
                continue;
            }
            let (node, addresses) = (&self.deps.node, addresses.join(", "));
            tracing::warn!(object = %id.of_kind(Kind::Service), addresses, "external IPs withheld");
            let why = match self.deps.forbids_external_ips {
                true => "its --pod-security sets forbidExternalIPs",
                false => "they are addresses of a node, of etcd or a reconciler, or in the cluster's ranges",
            };
            let message = format!("node {node} does not route {addresses} to this service: {why}");
            let draft =
                EventDraft::about(EventType::Warning, Kind::Service, id, "ExternalIPWithheld", message);
            self.deps.events.record(draft);
        }
        self.withheld_reported.clone_from(&place.withheld);
    }

    fn record_refusal(&self, Refusal { service: id, why, is_news }: &Refusal) {
        let object = id.of_kind(Kind::Service);
        if !is_news {
            tracing::debug!(%object, error = why, "service refused by iptables again");
            return;
        }
        let (node, seconds) = (&self.deps.node, RETRY.as_secs());
        tracing::warn!(
            %object, retry_every = ?RETRY, error = why,
            "service refused by iptables; it is left out until it changes or a retry succeeds"
        );
        let message = format!("node {node} could not program it; retrying every {seconds} s: {why}");
        let draft = EventDraft::about(EventType::Warning, Kind::Service, id, "RulesRefused", message);
        self.deps.events.record(draft);
    }
}
