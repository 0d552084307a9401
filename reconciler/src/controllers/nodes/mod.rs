//! The nodes controller: pod address ranges, conditions, and cleanup of nodes that are gone.
//!
//! Reads Node objects, nodes, subnets, heartbeats, bindings and pod status; writes `subnets/` and `nodestate/`, and
//! deletes the keys of nodes that Git declares gone.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod conditions;
mod plan;
#[cfg(test)]
mod tests;

pub struct Nodes;

impl Controller for Nodes {
    const NAME: &'static str = "nodes";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(seen, now)
    }
}
