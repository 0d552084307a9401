//! Writes the node's record and keeps its heartbeat.

use schema::codec::encode;
use schema::control::LoopError;
use schema::keys::Key;
use schema::records::{Heartbeat, NodeRecord};
use schema::store::{Guard, LeaseId, Op, StoreError, TxnOutcome};

use super::plan::{HeartbeatAction, NodePlan};
use super::{HEARTBEAT_TTL, NodeLoop};

/// Outcome of a plan.
#[derive(Debug)]
pub struct NodeOutcome {
    pub registered: bool,
    /// Reason why the heartbeat is on a new lease, if it is.
    pub beat_anew: Option<String>,
    /// True if another process sends heartbeats under this node's name.
    pub rival: bool,
    pub failure: Option<LoopError>,
}

impl NodeLoop {
    pub(super) async fn carry_out(&mut self, plan: NodePlan) -> NodeOutcome {
        let mut outcome = NodeOutcome {
            registered: false,
            beat_anew: None,
            rival: plan.rival_since.is_some(),
            failure: None,
        };
        if let Some((record, guard)) = plan.record {
            match self.write_record(&record, guard).await {
                Ok(()) => outcome.registered = true,
                Err(error) => outcome.failure = Some(error),
            }
        }
        let beat = match plan.beat {
            HeartbeatAction::KeepAlive(lease) => self.keep_alive(lease).await,
            HeartbeatAction::NewLease(why) => {
                let result = self.new_lease_reason().await;
                outcome.beat_anew = result.is_ok().then_some(why);
                result
            }
        };
        if let Err(error) = beat {
            // Another lease next time: whatever happened to this one, the key must not vanish with it.
            self.lease = None;
            outcome.failure.get_or_insert(LoopError::new("cannot renew the heartbeat", error));
        }
        outcome
    }

    async fn write_record(&self, record: &NodeRecord, guard: Guard) -> Result<(), LoopError> {
        let value = encode(record).map_err(|e| LoopError::new("cannot write this node's record", e))?;
        let op = Op::put(Key::Node(self.deps.node.clone()), value);
        match self.deps.store.txn(vec![guard], vec![op]).await {
            Ok(TxnOutcome::Committed(_)) => Ok(()),
            Ok(TxnOutcome::Conflict) => Err(LoopError::message(
                "this node's record changed while it was written; is the name used twice?",
            )),
            Err(error) => Err(LoopError::new("cannot write this node's record", error)),
        }
    }

    async fn keep_alive(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        match self.deps.store.lease_keep_alive(lease).await {
            // etcd was away for longer than the lease, or is another one: the key is gone with the lease.
            Err(StoreError::LeaseLost(_)) => self.new_lease_reason().await,
            other => other,
        }
    }

    async fn new_lease_reason(&mut self) -> Result<(), StoreError> {
        let lease = self.deps.store.lease_grant(HEARTBEAT_TTL).await?;
        let value = encode(&Heartbeat { since: self.deps.since })
            .map_err(|error| StoreError::Request { act: "the heartbeat", message: error.to_string() })?;
        let key = Key::Heartbeat(self.deps.node.clone()).to_string();
        let put = Op::Put { key, value: value.into(), lease: Some(lease) };
        // No guard: this agent is alive, even if another sends heartbeats under this name.
        let _: TxnOutcome = self.deps.store.txn(vec![], vec![put]).await?;
        self.lease = Some(lease);
        Ok(())
    }
}
