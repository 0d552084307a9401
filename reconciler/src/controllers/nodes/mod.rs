//! Nodes: a range of pod addresses for each, how they fare, and the end of those that are gone.
//!
//! Reads Node objects, nodes, subnets, heartbeats, bindings and pod status; writes `subnets/` and `nodestate/`, and
//! deletes the keys of nodes that Git says are gone.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod conditions;
mod gone;
mod plan;
mod subnets;
#[cfg(test)]
mod tests;

/// The nodes controller.
pub struct Nodes;

impl Controller for Nodes {
    const NAME: &'static str = "nodes";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(seen, now)
    }
}
