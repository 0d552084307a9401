//! The usage loop: resource usage of this node and its pods.
//!
//! Reads Docker's listing, cgroups, the machine's links, the files in volumes and the space on the disk of the state
//! directory; `plan.rs` computes usage from two samples; writes `usage/<node>` once per [`INTERVAL`]. This does not wake
//! controllers (see `Snapshot::is_same_for_plans`). Each sample also becomes the figures of `GET /metrics`
//! (`totals.rs`), which stay while Docker does not answer.

mod observe;
pub mod plan;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::NodeUsage;
use tokio::sync::watch;
use tokio::time::Instant;

use self::plan::{Observed, PreviousSample, UsagePlan, VolumeSizes};
use self::totals::Totals;
use crate::metrics::Resources;
use crate::worlds::cgroups::{CgroupPaths, Cgroups};
use crate::worlds::docker::Docker;
use crate::worlds::host::Disk;

/// Interval between writes. The driver comes up to a tenth sooner, so that nodes do not all write at the same time,
/// and never more often than every 15 s.
pub const INTERVAL: Duration = Duration::from_millis(16_667);

/// Delay between the first sample and the second: short, because someone may be waiting for a new node's usage.
const SECOND_LOOK: Duration = Duration::from_secs(3);

/// Dependencies of the loop.
pub struct UsageDeps {
    pub instance: String,
    pub state_dir: PathBuf,
    pub docker: Arc<dyn Docker>,
    pub cgroups: Arc<dyn Cgroups>,
    pub disk: Arc<dyn Disk>,
    /// Memory of the machine; 0 if unknown.
    pub memory_bytes: u64,
    /// The newest record; a `StatusWriter` writes it.
    pub records: watch::Sender<Option<NodeUsage>>,
    /// The newest figures, for metrics; `None` before the first sample.
    pub resources: watch::Sender<Option<Arc<Resources>>>,
}

pub struct UsageLoop {
    deps: UsageDeps,
    /// Cgroup and start time by container id, which do not change while the container runs.
    known: BTreeMap<String, (CgroupPaths, Option<Timestamp>)>,
    /// Containers that could not be inspected, and the time until which they are not tried again.
    uninspectable: BTreeMap<String, Instant>,
    /// Time and result of the last walk through a pod's volumes, by uid.
    walked: BTreeMap<String, (Instant, VolumeSizes)>,
    former: Option<(PreviousSample, Instant)>,
    totals: Totals,
    /// Set once the log says that containers can't be measured.
    has_warned: bool,
}

impl UsageLoop {
    /// Creates a loop that has observed nothing yet.
    pub fn new(deps: UsageDeps) -> Self {
        Self {
            deps,
            known: BTreeMap::new(),
            uninspectable: BTreeMap::new(),
            walked: BTreeMap::new(),
            former: None,
            totals: Totals::default(),
            has_warned: false,
        }
    }
}

#[async_trait]
impl Loop for UsageLoop {
    type Observed = Observed;
    type Plan = UsagePlan;
    type Outcome = Result<bool, LoopError>;

    fn name(&self) -> &'static str {
        "usage"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.gather().await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, now: Timestamp) -> UsagePlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, _observed: &Observed, plan: UsagePlan) -> Result<bool, LoopError> {
        self.carry_out(plan)
    }

    async fn report(
        &mut self,
        observed: Observed,
        outcome: Result<bool, LoopError>,
    ) -> Result<Next, LoopError> {
        self.totals.add(&observed, Timestamp::now());
        let resources = self.totals.resources(&observed, &self.deps.instance, self.deps.memory_bytes);
        self.deps.resources.send_replace(Some(Arc::new(resources)));
        Ok(if outcome? { Next::Interval } else { Next::After(SECOND_LOOK) })
    }
}

// Hands the record to its writer. While etcd is away, the newest one waits there.

impl UsageLoop {
    /// Returns true if there was a record.
    fn carry_out(&self, plan: UsagePlan) -> Result<bool, LoopError> {
        match plan {
            UsagePlan::Write(usage) => {
                self.deps.records.send_replace(Some(usage));
                Ok(true)
            }
            UsagePlan::SecondLook => Ok(false),
            UsagePlan::TooLarge(bytes) => {
                let why = format!("this node's usage is {bytes} bytes of JSON, more than fits in a key");
                Err(LoopError::message(why))
            }
        }
    }
}
