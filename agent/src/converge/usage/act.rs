//! Writes the record.

use schema::control::LoopError;
use schema::keys::Key;
use schema::store::{Guard, Op, TxnOutcome};

use super::UsageLoop;
use super::plan::UsagePlan;

impl UsageLoop {
    /// Whether it was written. With etcd away nothing is kept: the next look is the newer one.
    pub(super) async fn carry_out(&self, plan: UsagePlan) -> Result<bool, LoopError> {
        let bytes = match plan {
            UsagePlan::Write(bytes) => bytes,
            UsagePlan::SecondLook => return Ok(false),
            UsagePlan::TooLarge(bytes) => {
                let why = format!("what this node uses is {bytes} bytes of JSON, more than a key takes");
                return Err(LoopError::message(why));
            }
        };
        let key = Key::Usage(self.node.clone()).to_string();
        let failed = |error| LoopError::new("cannot write what this node uses", error);
        let guard = match self.store.get(&key).await.map_err(failed)? {
            Some(former) => Guard::ModRevision(key.clone(), former.mod_revision),
            None => Guard::Absent(key.clone()),
        };
        match self.store.txn(vec![guard], vec![Op::put(key, bytes)]).await.map_err(failed)? {
            TxnOutcome::Committed(_) => Ok(true),
            TxnOutcome::Conflict => Err(LoopError::message(
                "what this node uses was written by another; is the node's name used twice?",
            )),
        }
    }
}
