//! The autoscaler controller: sets the number of pods of a workload from the resources that its pods use.
//!
//! Reads objects, pods, bindings, pod status, usage, `scale/` and `autoscalers/`; writes the last two. `decide.rs`
//! does not depend on the snapshot, so that `minik8s simulate hpa` runs the same code on a recorded load.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod behavior;
mod decide;
mod model;
mod plan;
mod replicas;
mod target;
#[cfg(test)]
mod tests;

pub use decide::{FAILED_GET_METRIC, decide};
pub use model::{
    AutoscalerMemory, Basis, Decision, Input, Limit, MetricResult, PerResource, Pod, Proposal, Sample,
    Tolerance, Tuning,
};
pub use plan::{EVALUATION_SECONDS, plan};
pub use replicas::resource_name;
pub(super) use target::SampleAges;

pub struct Autoscaler;

impl Controller for Autoscaler {
    const NAME: &'static str = "autoscaler";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan(&seen.snapshot, &seen.last_known, &seen.outdated_usage, now)
    }
}
