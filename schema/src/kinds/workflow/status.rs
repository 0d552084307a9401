//! Summaries of a workflow's runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Summary of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Id of the run.
    pub id: String,
    /// Current phase.
    pub phase: RunPhase,
    /// Start time.
    pub started_at: Timestamp,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Current state, or the last one.
    pub state: String,
    /// Name of the error that ended the run, for example `States.Timeout`; empty without an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Description of the error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// Phase of a run, in the terms of Step Functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// Running in some state.
    Running,
    /// Ended in a Succeed state, or in a state with `end`.
    Succeeded,
    /// Ended by an error that nothing caught, or in a Fail state.
    Failed,
    /// Ended by its time limit.
    TimedOut,
    /// Ended by a person, or because its workflow was removed.
    Aborted,
}
