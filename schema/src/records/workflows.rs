//! `workflows/<ns>/<name>` and `triggers/<kind>/<ns>/<name>/<trigger>`. What is below `/minik8s-runs/` is the reconcilers' own (`reconciler/src/runs/`).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::kinds::trigger::Schedule;
use crate::kinds::workflow::{RunSummary, WorkflowStatus};

/// How the runs of a workflow go: written by the workflows controller, which runs them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRecord {
    /// Hash of the spec whose run was started last for a push; empty before the first. Unlike a generation it is the
    /// same after etcd was lost, so nothing runs again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started_hash: String,
    /// The generation of the object that the rest speaks of.
    pub generation: u64,
    /// The last run that a push started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunSummary>,
    /// Runs under way.
    pub running: u32,
    /// Runs that wait for others to end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u32,
}

/// What a trigger did and will do: written by the workflows controller, with the beginning of the run that it started.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerRecord {
    /// The schedule that `next` is of: another one begins anew, with its first tick from then on. None of a trigger that
    /// has none.
    pub schedule: Option<Schedule>,
    /// The first tick that nothing was decided on yet; none if there will be none.
    pub next: Option<Timestamp>,
    /// The last run that it started.
    pub last: Option<TriggerStart>,
    /// Ticks without a run of their own since the last one that had one: what was missed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
}

/// A run that a trigger started.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerStart {
    /// Its id.
    pub run: String,
    /// The tick that it is of, if it is of one.
    pub tick: Option<Timestamp>,
    /// The commit that it is of, if it is of one.
    pub commit: Option<String>,
    /// When it began.
    pub started_at: Timestamp,
    /// Ticks before its own that were missed and have no run: it stands for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl WorkflowRecord {
    /// What the workflow is, for its health.
    pub fn status(&self) -> WorkflowStatus {
        WorkflowStatus { run_generation: self.generation, last_run: self.last_run.clone() }
    }
}
