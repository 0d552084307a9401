//! `workflows/<ns>/<name>`. What is below `/minik8s-runs/` is the reconcilers' own (`reconciler/src/runs/`).

use serde::{Deserialize, Serialize};

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

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl WorkflowRecord {
    /// What the workflow is, for its health.
    pub fn status(&self) -> WorkflowStatus {
        WorkflowStatus { run_generation: self.generation, last_run: self.last_run.clone() }
    }
}
