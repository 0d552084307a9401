//! The state machine of a run: a pure function of its state and of what happened.
//!
//! A run is the list of its [`Event`]s, its journal: stepping through them gives the same [`Run`] each time.
//! So there is no clock here and no random source. Time rides beside the event, and what is random follows
//! from the run's id and from how often it was asked for. What the run wants of the world is
//! [`Run::pending`]: calls, timers, or just to go on.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

mod branches;
mod choice;
mod context;
mod data;
mod failure;
mod history;
mod intrinsic;
pub mod limits;
mod plain;
mod random;
mod run;
mod strand;
mod task;
#[cfg(test)]
mod tests;
mod transition;

pub use data::is_deeper_than;
pub use failure::errors;
pub use history::{History, HistoryDetail, HistoryEvent};
pub use run::Run;
#[cfg(test)]
pub(super) use transition::PANICS;

/// What a run is begun with, kept with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunContext {
    /// Namespace of the workflow.
    pub namespace: String,
    /// The workflow's name.
    pub workflow: String,
    /// The run's id, unique in its workflow.
    pub id: String,
    pub input: Json,
    /// When it was begun.
    pub started_at: Timestamp,
}

/// What happened to a run; one of these is one entry of its journal, but for beats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Event {
    /// All branches that wait for nothing outside go on by one state.
    Continue,
    /// A call was answered.
    Returned { call: u64, output: Json },
    /// A call failed. The error's name is the function's own, or one of the language's.
    Failed { call: u64, error: String, cause: String },
    /// The function that was called is alive. Not journaled: that the timer of a heartbeat fired says that none came.
    Beat { call: u64 },
    /// The time of a timer has come.
    Due { timer: u64 },
    /// By a person, or because the workflow was removed.
    Cancelled { cause: String },
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Outcome {
    /// Well.
    Succeeded { output: Json },
    /// By an error that nothing caught, or in a Fail; the error's name is empty where a Fail has none.
    Failed { error: String, cause: String },
    /// By its time limit.
    TimedOut,
    /// By a person, or because its workflow was removed.
    Aborted { cause: String },
}

/// A call of a function that the run waits for.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Unique in the run, one for each attempt.
    pub id: u64,
    pub state: String,
    /// As the state has it: `name`, or `namespace/name`.
    pub function: String,
    pub payload: Json,
    /// From 1.
    pub attempt: u32,
    /// The same for all attempts of one visit of the state: with the run's id, the idempotency key.
    pub step: u64,
    /// The run has a timer for it, too.
    pub timeout_seconds: Option<u32>,
    /// The run has a timer for it, too, which each beat puts off.
    pub heartbeat_seconds: Option<u32>,
}

/// A time that the run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Unique in the run; 0 is the run's own limit.
    pub id: u64,
    /// When [`Event::Due`] is wanted. A beat puts off the timer of a heartbeat under the same id.
    pub due: Timestamp,
}

/// What is to be done outside for a run as it is. Not edges: who asks again gets the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending<'a> {
    /// [`Event::Continue`] is wanted.
    pub continues: bool,
    /// Calls to be made, or under way.
    pub calls: Vec<&'a Call>,
    /// Times to wait for, that of the run's own limit among them.
    pub timers: Vec<Timer>,
    /// Ids of those among the timers that a beat puts off.
    pub heartbeats: Vec<u64>,
}
