//! Scheduler: gives every pod one node.
//!
//! Reads pods, bindings, nodes, subnets, heartbeats and status; writes `bindings/`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod cluster;
mod explain;
mod fit;
mod plan;
#[cfg(test)]
mod tests;

pub use explain::{Explainer, explain};
pub use fit::{Demand, Failure, Unfit};

/// The scheduler.
pub struct Scheduler;

impl Controller for Scheduler {
    const NAME: &'static str = "scheduler";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan::plan(&seen.snapshot, &seen.settings.sources)
    }
}
