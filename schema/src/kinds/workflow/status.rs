//! What is known of a workflow's runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One run in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Its id.
    pub id: String,
    /// How far it is.
    pub phase: RunPhase,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The state that it is in, or ended in.
    pub state: String,
    /// Name of the error that ended it, for example `States.Timeout`; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The error in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// How far a run is. The words are those of Step Functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// In some state.
    Running,
    /// Ended in a Succeed, or in a state with `end`.
    Succeeded,
    /// Ended by an error that nothing caught, or in a Fail.
    Failed,
    /// Ended by its time limit.
    TimedOut,
    /// Ended by a person, or because its workflow was removed.
    Aborted,
}
