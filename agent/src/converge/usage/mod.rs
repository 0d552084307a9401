//! The usage loop: what this node and its pods use.
//!
//! Reads Docker's listing, cgroups and the files in volumes; `plan.rs` makes figures of two looks;
//! writes `usage/<node>` once per [`INTERVAL`]. Controllers are not woken by it (see
//! `Snapshot::plans_as`).

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

mod act;
mod observe;
pub mod plan;
#[cfg(test)]
mod tests;
mod walk;

use self::plan::{Former, Observed, UsagePlan, Volumes};
use crate::worlds::cgroups::{Cgroups, Place};
use crate::worlds::docker::Docker;

/// Between two writes. The driver comes up to a tenth sooner, so that nodes do not all write at once,
/// and never more often than every 15 s.
pub const INTERVAL: Duration = Duration::from_millis(16_667);

/// Between the first look and the second: soon, for someone may be waiting to see what a new node does.
const SECOND_LOOK: Duration = Duration::from_secs(3);

/// What the loop stands on.
pub struct UsageDeps {
    pub instance: String,
    pub state_dir: PathBuf,
    pub docker: Arc<dyn Docker>,
    pub cgroups: Arc<dyn Cgroups>,
    /// The newest record; a `StatusWriter` writes it.
    pub records: watch::Sender<Option<NodeUsage>>,
}

/// The loop.
pub struct UsageLoop {
    deps: UsageDeps,
    /// By container id, what does not change while it runs: where it is counted, and when it started.
    known: BTreeMap<String, (Place, Option<Timestamp>)>,
    /// Containers that could not be inspected, and till when none of them is asked for again.
    opaque: BTreeMap<String, Instant>,
    /// By pod uid, when its volumes were walked through, and what was found.
    walked: BTreeMap<String, (Instant, Volumes)>,
    former: Option<(Former, Instant)>,
    /// It was said that containers can't be seen.
    blind: bool,
}

impl UsageLoop {
    /// A loop that has not looked yet.
    pub fn new(deps: UsageDeps) -> Self {
        Self {
            deps,
            known: BTreeMap::new(),
            opaque: BTreeMap::new(),
            walked: BTreeMap::new(),
            former: None,
            blind: false,
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
        self.look().await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, now: Timestamp) -> UsagePlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, _observed: &Observed, plan: UsagePlan) -> Result<bool, LoopError> {
        self.carry_out(plan)
    }

    async fn report(
        &mut self,
        _observed: Observed,
        outcome: Result<bool, LoopError>,
    ) -> Result<Next, LoopError> {
        Ok(if outcome? { Next::Interval } else { Next::After(SECOND_LOOK) })
    }
}
