//! Writes the record.

use schema::control::LoopError;
use schema::keys::Key;
use schema::store::{Op, TxnOutcome};

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
        // No guard: this agent alone writes the key, and each record stands for itself.
        let op = Op::put(Key::Usage(self.node.clone()), bytes);
        let written = self.store.txn(vec![], vec![op]).await;
        let written = written.map_err(|error| LoopError::new("cannot write what this node uses", error))?;
        Ok(matches!(written, TxnOutcome::Committed(_)))
    }
}
