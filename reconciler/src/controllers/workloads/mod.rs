//! The workloads controller: decides which pods should exist, and rolls out new templates.
//!
//! Reads objects, pods, bindings and what nodes report; writes `pods/`, `rollouts/` and `templates/`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod bare;
mod daemon_nodes;
mod daemon_set;
mod owned;
mod plan;
mod replica_set;
mod rollout;
#[cfg(test)]
mod tests;
mod victims;
mod workload;

pub use plan::plan;

pub struct Workloads;

impl Controller for Workloads {
    const NAME: &'static str = "workloads";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan(&seen.snapshot, &seen.last_known, seen.waits_until(now), now)
    }
}
