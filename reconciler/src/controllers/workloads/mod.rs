//! Workloads: which pods should exist. Bare pods so far; ReplicaSets come with their own file.
//!
//! Reads objects and pods; writes `pods/`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod plan;
#[cfg(test)]
mod tests;

pub(super) use plan::plan;

/// The workloads controller.
pub struct Workloads;

impl Controller for Workloads {
    const NAME: &'static str = "workloads";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan(&seen.snapshot)
    }
}
