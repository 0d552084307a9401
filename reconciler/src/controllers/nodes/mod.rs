//! Nodes: a range of pod addresses for each, and what their heartbeats say.
//!
//! Reads nodes, subnets and heartbeats; writes `subnets/`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod plan;
#[cfg(test)]
mod tests;

/// The nodes controller.
pub struct Nodes;

impl Controller for Nodes {
    const NAME: &'static str = "nodes";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan::plan(seen)
    }
}
