//! Hands the record to its writer. While etcd is away, the newest one waits there.

use schema::control::LoopError;

use super::UsageLoop;
use super::plan::UsagePlan;

impl UsageLoop {
    /// Returns true if there was a record.
    pub(super) fn carry_out(&self, plan: UsagePlan) -> Result<bool, LoopError> {
        match plan {
            UsagePlan::Write(usage) => {
                self.deps.records.send_replace(Some(usage));
                Ok(true)
            }
            UsagePlan::SecondLook => Ok(false),
            UsagePlan::TooLarge(bytes) => {
                let why = format!("what this node uses is {bytes} bytes of JSON, more than a key takes");
                Err(LoopError::message(why))
            }
        }
    }
}
