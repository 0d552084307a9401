//! `minik8s simulate function`: the decisions of the decider, or the cost of a load and the waiting times of its
//! callers. Pure: text in, numbers out.
//!
//! `trace.rs` parses observations or arrivals. `steps.rs` runs only the decider; `closed_loop.rs` sends calls to the
//! replicas of `fleet.rs`, which follow its decisions.

use serde::Serialize;
use serde_json::Number;

mod calls;
mod closed_loop;
mod fleet;
#[cfg(test)]
mod tests;
mod trace;

pub use closed_loop::run;
pub use trace::Trace;

/// Result of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Result of a trace with `steps`.
    Steps {
        /// Decision of each step.
        steps: Vec<StepDecision>,
    },
    /// Result of a trace with `arrivals`.
    Load(LoadReport),
}

/// A decision of the decider.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepDecision {
    /// Time in seconds of the trace.
    pub at: Number,
    /// Desired replicas; 0 without data, when `valid` is false.
    pub desired: u32,
    /// True if there was data to decide on.
    pub valid: bool,
    /// True while the decider is in panic.
    pub panic: bool,
    /// Capacity for a burst of calls beyond `targetBurstCapacity`; 0 without data.
    pub excess_burst_capacity: i64,
    /// Ready replicas, for the table.
    #[serde(skip)]
    pub ready: Option<u32>,
    /// Averages of the stable and the panic window, for the table.
    #[serde(skip)]
    pub averages: (Option<f64>, Option<f64>),
}

/// Cost of a load, and the waiting times of its callers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    /// Outcomes of the calls.
    pub calls: CallCounts,
    /// Waiting times of the calls that waited; `None` if no call did.
    pub wait_seconds: Option<WaitPercentiles>,
    /// Replicas over time: an entry for each change.
    pub replicas: Vec<ReplicaChange>,
    /// Maximum number of replicas at any time, including starting and draining ones.
    pub most_replicas: u32,
    /// Sum of the lifetimes of all replicas.
    pub replica_seconds: Number,
    /// Time in seconds of the trace at which the function was as small again as it may be.
    pub ends_at: Number,
}

/// Outcomes of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallCounts {
    /// Number of calls.
    pub arrived: u64,
    /// Calls that a replica took.
    pub answered: u64,
    /// Answered calls that waited for a replica.
    pub waited: u64,
    /// Calls answered with 503 because the queue was full.
    pub refused: u64,
    /// Calls answered with 503 after they had waited for `coldStartTimeoutSeconds`.
    pub timed_out: u64,
}

/// Waiting times, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitPercentiles {
    /// Median of the calls that waited.
    pub p50: Number,
    /// 95th percentile.
    pub p95: Number,
    /// Maximum.
    pub max: Number,
}

/// State of a function from a time on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaChange {
    /// Time in seconds of the trace.
    pub at: Number,
    /// Desired replicas.
    pub wanted: u32,
    /// Replicas that take calls.
    pub ready: u32,
    /// Running calls.
    pub in_flight: u32,
    /// Waiting calls.
    pub waiting: u32,
    /// True while the decider is in panic.
    pub panic: bool,
}
