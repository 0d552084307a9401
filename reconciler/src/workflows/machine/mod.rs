//! The state machine of a run: a pure function of its state and its events.
//!
//! A run is the list of its [`Event`]s, its journal: replaying them gives the same [`Run`] each time. So there is
//! neither a clock nor a random source here. Times come with the events, and random values follow from the run's id
//! and the number of earlier draws. [`Run::pending`] lists the actions that the run needs from outside: calls,
//! timers, or just to continue.

mod branches;
mod choice;
pub(crate) mod context;
mod data;
mod failure;
mod history;
mod intrinsic;
mod run;
mod simple_states;
mod strand;
mod task;
#[cfg(test)]
mod tests;
mod transition;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

pub use data::is_deeper_than;
pub use failure::errors;
pub use history::{History, HistoryDetail, HistoryEvent};
pub use run::Run;
#[cfg(test)]
pub(super) use transition::PANICS;

/// Parameters of a run, fixed when it begins and stored with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunContext {
    /// Namespace of the workflow.
    pub namespace: String,
    /// Name of the workflow.
    pub workflow: String,
    /// Id of the run, unique in its workflow.
    pub id: String,
    pub input: Json,
    pub started_at: Timestamp,
}

/// An event of a run. Each is one entry of its journal, except beats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Event {
    /// Advances by one state all branches that wait for nothing outside.
    Continue,
    /// A call returned.
    Returned { call: u64, output: Json },
    /// A call failed. The error's name is the function's own, or one of the language's.
    Failed { call: u64, error: String, cause: String },
    /// The called function is alive. Not journaled: a heartbeat timer that fires shows that no beat came.
    Beat { call: u64 },
    /// A timer is due.
    Due { timer: u64 },
    /// A person cancelled the run, or the workflow was removed.
    Cancelled { cause: String },
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Outcome {
    Succeeded {
        output: Json,
    },
    /// Nothing caught an error, or the run entered a Fail state; the error's name is empty if the Fail has none.
    Failed {
        error: String,
        cause: String,
    },
    /// The run reached its time limit.
    TimedOut,
    /// A person cancelled the run, or its workflow was removed.
    Aborted {
        cause: String,
    },
}

/// A call of a function that the run waits for.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Id of the call: unique in the run, one for each attempt.
    pub id: u64,
    pub state: String,
    /// Name as written in the state: `name`, or `namespace/name`.
    pub function: String,
    pub payload: Json,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of the visit to the state, the same for all its attempts: with the run's id, the idempotency key.
    pub step: u64,
    /// Time limit of the call; the run has a timer for it as well.
    pub timeout_seconds: Option<u32>,
    /// Maximum time between heartbeats; the run has a timer for it as well, which each beat postpones.
    pub heartbeat_seconds: Option<u32>,
}

/// A time that the run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Unique in the run; 0 is the run's own limit.
    pub id: u64,
    /// Time at which [`Event::Due`] is expected. A beat postpones the timer of a heartbeat under the same id.
    pub due: Timestamp,
}

/// Actions that the run needs from outside now. A state and no edges: asking again gives the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending<'a> {
    /// Set if the run needs [`Event::Continue`].
    pub continues: bool,
    /// Calls to make, or already in progress.
    pub calls: Vec<&'a Call>,
    /// Times to wait for, including the run's own limit.
    pub timers: Vec<Timer>,
    /// Ids of the timers that a beat postpones.
    pub heartbeats: Vec<u64>,
}
