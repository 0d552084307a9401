//! `workflows/<ns>/<name>` and `triggers/<kind>/<ns>/<name>/<trigger>`. What is below `/minik8s-runs/` is the reconcilers' own (`reconciler/src/runs/`).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::kinds::Health;
use crate::kinds::trigger::Schedule;
use crate::kinds::workflow::{RunPhase, RunSummary};

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
    #[serde(default, skip_serializing_if = "is_default")]
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
    #[serde(default, skip_serializing_if = "is_default")]
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: u32,
}

impl WorkflowRecord {
    /// How well the workflow of this generation is. One without params has no run of its own and is well.
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
