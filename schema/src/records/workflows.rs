//! `workflows/<ns>/<name>` and `triggers/<kind>/<ns>/<name>/<trigger>`. Keys below `/minik8s-runs/` belong to the
//! reconcilers (`reconciler/src/workflows/`).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::kinds::Health;
use crate::kinds::trigger::Schedule;
use crate::kinds::workflow::{RunPhase, RunSummary};

/// State of a workflow's runs. Written by the workflows controller, which runs them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRecord {
    /// Hash of the spec that a push last started a run of; empty before the first. Unlike a generation it survives
    /// the loss of etcd, so nothing runs again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started_hash: String,
    /// Generation of the object that the other fields describe.
    pub generation: u64,
    /// Last run started by a push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunSummary>,
    /// Number of runs in progress.
    pub running: u32,
    /// Number of runs that wait for others to end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting: u32,
}

/// Past and next run of a trigger. Written by the workflows controller together with the start of the run.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerRecord {
    /// Schedule that `next` belongs to: a new schedule starts over, with its first tick from then on. `None` for a
    /// trigger without a schedule.
    pub schedule: Option<Schedule>,
    /// First tick without a decision; `None` if there are no more ticks.
    pub next: Option<Timestamp>,
    /// Last run that it started.
    pub last: Option<TriggerStart>,
    /// Ticks missed since the last one that had its own run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skipped: u32,
}

/// A run that a trigger started.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerStart {
    /// Id of the run.
    pub run: String,
    /// Tick that started the run, if any.
    pub tick: Option<Timestamp>,
    /// Commit that started the run, if any.
    pub commit: Option<String>,
    /// Start of the run.
    pub started_at: Timestamp,
    /// Missed ticks before its own, which it stands for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: u32,
}

impl WorkflowRecord {
    /// Returns the health of the workflow of this generation. A workflow without params has no run of its own and
    /// is healthy.
    pub fn health(&self, has_params: bool, generation: u64) -> Health {
        if !has_params {
            return Health::Healthy;
        }
        let Some(run) = self.last_run.as_ref().filter(|_| self.generation >= generation) else {
            return waits_for_run();
        };
        let ended = |how: &str| Health::Degraded {
            why: format!("run {} {how} in state {}: {} {}", run.id, run.state, run.error, run.cause)
                .trim_end_matches([' ', ':'])
                .to_owned(),
        };
        match run.phase {
            RunPhase::Running => {
                Health::Progressing { why: format!("run {} is in state {}", run.id, run.state) }
            }
            RunPhase::Succeeded => Health::Healthy,
            RunPhase::Failed => ended("failed"),
            RunPhase::TimedOut => ended("timed out"),
            RunPhase::Aborted => ended("was aborted"),
        }
    }
}

fn waits_for_run() -> Health {
    Health::Progressing { why: "its run has not started".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: RunPhase, error: &str) -> WorkflowRecord {
        let last_run = Some(RunSummary {
            id: "r1".to_owned(),
            phase,
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: None,
            state: "add".to_owned(),
            error: error.to_owned(),
            cause: String::new(),
        });
        WorkflowRecord { generation: 2, last_run, ..WorkflowRecord::default() }
    }

    #[test]
    fn health_is_that_of_the_run_of_this_generation() {
        let running = record(RunPhase::Running, "").health(true, 2);
        assert_eq!(running, Health::Progressing { why: "run r1 is in state add".to_owned() });
        assert_eq!(record(RunPhase::Succeeded, "").health(true, 2), Health::Healthy);
        let failed = record(RunPhase::Failed, "States.TaskFailed").health(true, 2);
        assert_eq!(
            failed,
            Health::Degraded { why: "run r1 failed in state add: States.TaskFailed".to_owned() }
        );
        let aborted = record(RunPhase::Aborted, "").health(true, 2);
        assert_eq!(aborted, Health::Degraded { why: "run r1 was aborted in state add".to_owned() });
        assert_eq!(record(RunPhase::Succeeded, "").health(true, 3), waits_for_run());
        assert_eq!(WorkflowRecord::default().health(true, 1), waits_for_run());
        assert_eq!(WorkflowRecord::default().health(false, 1), Health::Healthy);
    }
}
