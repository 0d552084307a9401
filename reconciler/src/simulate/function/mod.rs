//! `minik8s simulate function`: what the decider would have said, or what a load would cost and its callers feel. Pure:
//! text in, numbers out.
//!
//! `trace.rs` says what was, or what comes. `steps.rs` asks the decider alone; `closed_loop.rs` lets calls arrive at
//! replicas that `fleet.rs` has by its decisions.

use serde::Serialize;
use serde_json::Number;

mod calls;
mod closed_loop;
mod fleet;
mod run;
mod steps;
#[cfg(test)]
mod tests;
mod trace;

pub use run::run;
pub use trace::Trace;

/// What came of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of one with `steps`.
    Steps {
        /// One for each step.
        steps: Vec<Entry>,
    },
    /// Of one with `arrivals`.
    Load(LoadReport),
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Seconds, as the trace counts them.
    pub at: Number,
    /// Replicas; 0 without data: `valid` says whether it is a decision.
    pub desired: u32,
    /// There was data to decide on.
    pub valid: bool,
    /// The decider is in panic.
    pub panic: bool,
    /// Calls that could come at once beyond `targetBurstCapacity`; 0 without data.
    pub excess_burst_capacity: i64,
    /// Replicas that were ready, for the table.
    #[serde(skip)]
    pub ready: Option<u32>,
    /// The averages of the stable and the panic window, for the table.
    #[serde(skip)]
    pub averages: (Option<f64>, Option<f64>),
}

/// What a load costs, and what its callers feel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    /// What became of the calls.
    pub calls: CallCounts,
    /// How long those that waited did; none when none did.
    pub wait_seconds: Option<Waits>,
    /// Replicas over time: an entry for each change.
    pub replicas: Vec<Change>,
    /// Most replicas that there were at once, those that start and those that end included.
    pub most_replicas: u32,
    /// Sum of the times for which each replica was there.
    pub replica_seconds: Number,
    /// When the function was as small again as it may be, as the trace counts seconds.
    pub ends_at: Number,
}

/// What became of the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallCounts {
    /// All of them.
    pub arrived: u64,
    /// Those that a replica took.
    pub answered: u64,
    /// Those of them that waited for one.
    pub waited: u64,
    /// Those that found the queue full: 503.
    pub refused: u64,
    /// Those that waited for `coldStartTimeoutSeconds`: 503.
    pub timed_out: u64,
}

/// Waiting times, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waits {
    /// Half of the calls that waited did so for no longer.
    pub p50: Number,
    /// 95 of 100 of them.
    pub p95: Number,
    /// All of them.
    pub max: Number,
}

/// How a function is from one time on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Seconds, as the trace counts them.
    pub at: Number,
    /// Replicas that there should be.
    pub wanted: u32,
    /// Replicas that take calls.
    pub ready: u32,
    /// Calls that run.
    pub in_flight: u32,
    /// Calls that wait for a replica.
    pub waiting: u32,
    /// The decider is in panic.
    pub panic: bool,
}
