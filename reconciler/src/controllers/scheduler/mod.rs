//! The scheduler: assigns each pod to one node.
//!
//! Reads Node objects and the Cluster object, pods, bindings, nodes, subnets, heartbeats, `nodestate/` and status;
//! writes `bindings/`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod cluster;
mod explain;
mod fit;
mod node;
mod plan;
mod strategy;
#[cfg(test)]
mod tests;

pub use explain::{Explainer, explain};
pub use fit::{Failure, FitFailures};
pub use node::Needs;
pub use plan::bind;

pub struct Scheduler;

impl Controller for Scheduler {
    const NAME: &'static str = "scheduler";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(seen, now)
    }
}
