//! Reads this node's keys in etcd, and the machine's facts.

use std::time::Duration;

use schema::codec::decode;
use schema::control::{LoopError, Observation};
use schema::keys::Key;
use schema::records::{Heartbeat, NodeRecord};
use schema::snapshot::VersionedValue;
use schema::store::KeyValue;
use schema::trust::{Certificate, TrustError};
use tokio::time::Instant;

use super::NodeLoop;
use super::plan::Observed;
use crate::node_address::api_url;
use crate::worlds::host::MachineFacts;

/// Maximum wait for the machine's facts. Docker is one of the sources, and must not cost the heartbeat when it hangs.
const FACTS_MAX: Duration = Duration::from_secs(3);

/// Maximum wait for statuses of pods before this node registers. Their writer takes up to 10 s to find that etcd
/// was lost.
const REPORTED_MAX: Duration = Duration::from_secs(15);

impl NodeLoop {
    /// True while the node must not register yet: in an etcd that was lost it then gets pods, so those that run
    /// here must be reported first.
    fn waits_for_reports(&mut self) -> bool {
        let since = *self.unreported_since.get_or_insert_with(Instant::now);
        !*self.deps.reported.borrow() && since.elapsed() < REPORTED_MAX
    }

    pub(super) async fn gather(&mut self) -> Result<Observation<Observed>, LoopError> {
        let read = |error| LoopError::new("cannot read this node's record", error);
        let record =
            self.deps.store.get(&Key::Node(self.deps.node.clone()).to_string()).await.map_err(read)?;
        if record.is_none() && self.waits_for_reports() {
            return Ok(Observation::NotReady(
                "the statuses of this node's pods are not in etcd yet".to_owned(),
            ));
        }
        self.unreported_since = None;
        let heartbeat =
            self.deps.store.get(&Key::Heartbeat(self.deps.node.clone()).to_string()).await.map_err(read)?;
        Ok(Observation::Ready(Observed {
            node: self.deps.node.clone(),
            facts: self.facts().await?,
            api: api_url(self.deps.listen, self.deps.address.or_loopback()),
            calls: api_url(self.deps.functions_listen, self.deps.address.or_loopback()),
            age_recipient: self.deps.age_recipient.clone(),
            cluster_recipient: self.deps.cluster_recipient.borrow().clone(),
            pod_cidr: self.deps.subnet.borrow().as_ref().map(|subnet| subnet.cidr),
            vtep: self.deps.vtep.borrow().clone(),
            authorities: self.authorities()?,
            record: record.as_ref().map(versioned),
            // A heartbeat that can't be read is written again, like a missing one.
            heartbeat: heartbeat.and_then(|pair| decode::<Heartbeat>(&pair.value).ok()),
            lease: self.lease,
            since: self.deps.since,
        }))
    }

    /// Returns the digests of the authorities that this node trusts.
    fn authorities(&self) -> Result<Vec<String>, LoopError> {
        let trusted = self.deps.trust.current();
        let digests: Result<_, TrustError> = trusted.authorities().iter().map(Certificate::digest).collect();
        digests.map_err(|error| LoopError::new("cannot read the authorities that this node trusts", error))
    }

    async fn facts(&mut self) -> Result<MachineFacts, LoopError> {
        if let Ok(facts) = tokio::time::timeout(FACTS_MAX, self.deps.machine.facts()).await {
            self.facts = Some(facts);
        }
        let unknown = || LoopError::message("cannot read this machine's facts: Docker does not answer");
        self.facts.clone().ok_or_else(unknown)
    }
}

fn versioned(pair: &KeyValue) -> Result<VersionedValue<NodeRecord>, (String, i64)> {
    match decode(&pair.value) {
        Ok(value) => Ok(VersionedValue {
            value,
            create_revision: pair.create_revision,
            mod_revision: pair.mod_revision,
        }),
        Err(error) => Err((error.to_string(), pair.mod_revision)),
    }
}
