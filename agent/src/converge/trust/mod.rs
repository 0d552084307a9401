//! The trust loop: this node's certificate, and whom it trusts.
//!
//! Reads the certificate and the record of the cluster's trust in etcd; decides in `plan.rs`; renews the certificate at
//! a reconciler, and puts authorities, revoked keys and addresses of the record in force. All of it is on the node's own
//! disk, too: `agent/pki/` and `agent/cluster.json`.

mod act;
mod observe;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::backoff::Backoff;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::store::SharedStore;
use schema::store::etcd::LazyStore;

pub use act::{NodeTrust, NodeTrustError, TrustSettings};
use plan::{Observed, RETRY_MAX, TrustPlan};

/// Interval between reads of the record. A revoked key is refused at the latest after this time.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// Longest run: each reconciler may take 15 s to refuse.
pub const MAY_TAKE: Duration = Duration::from_secs(180);

/// Wait after the first renewal that failed, of which jitter takes half.
const RETRY_MIN: Duration = Duration::from_secs(10);

pub struct TrustLoop {
    trust: NodeTrust,
    store: SharedStore,
    /// The same etcd, which may refuse the node's certificate.
    etcd: Option<Arc<LazyStore>>,
    retry_at: Option<Timestamp>,
    failing: Backoff,
    /// Error of the last renewal, while another one is needed.
    not_renewed: Option<String>,
    /// Reason why the record can't be read.
    unreadable: Option<String>,
}

impl TrustLoop {
    /// Creates a loop.
    pub fn new(trust: NodeTrust, store: SharedStore, etcd: Option<Arc<LazyStore>>) -> Self {
        let failing = Backoff::new(RETRY_MIN, RETRY_MAX);
        Self { trust, store, etcd, retry_at: None, failing, not_renewed: None, unreadable: None }
    }

    async fn carry_out(&mut self, plan: TrustPlan) -> Result<(), NodeTrustError> {
        let applied = plan.apply.map_or(Ok(()), |changes| self.trust.apply(changes));
        let Some(reason) = plan.renew else {
            // One that waits is still needed.
            if plan.renew_at.is_none() {
                self.not_renewed = None;
            }
            return applied;
        };
        match self.trust.renew().await {
            Ok(()) => {
                (self.retry_at, self.not_renewed) = (None, None);
                self.failing.reset();
                let until = self.trust.credentials().certificate().not_after().ok();
                tracing::info!(%reason, ?until, "certificate renewed");
            }
            Err(error) => {
                self.retry_at = Some(Timestamp::now() + self.failing.after_failure(rand::random()));
                self.not_renewed = Some(schema::control::error_chain(&error));
            }
        }
        applied
    }
}

#[async_trait]
impl Loop for TrustLoop {
    type Observed = Observed;
    type Plan = TrustPlan;
    type Outcome = Result<(), NodeTrustError>;

    fn name(&self) -> &'static str {
        "trust"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.gather().await
    }

    fn plan(observed: &Observed, now: Timestamp) -> TrustPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, _: &Observed, plan: TrustPlan) -> Result<(), NodeTrustError> {
        self.carry_out(plan).await
    }

    async fn report(&mut self, _: Observed, outcome: Result<(), NodeTrustError>) -> Result<Next, LoopError> {
        outcome.map_err(|error| LoopError::new("cannot put the cluster's trust in force", error))?;
        if let Some(why) = &self.not_renewed {
            return Err(LoopError::message(why.clone()));
        }
        match &self.unreadable {
            Some(why) => {
                Err(LoopError::message(format!("cannot read the record of the cluster's trust: {why}")))
            }
            None => Ok(Next::Interval),
        }
    }
}
