//! What is known of a workflow's runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kinds::Health;

/// How a workflow's runs go. Written by the workflow engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowStatus {
    /// Generation that the last run of a push belongs to.
    pub run_generation: u64,
    /// The last run that a push started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunSummary>,
}

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

impl WorkflowStatus {
    /// How well the workflow of this generation is. One without params has no run of its own and is well.
    pub fn health(&self, has_params: bool, generation: u64) -> Health {
        let Some(run) = self.last_run.as_ref().filter(|_| has_params) else {
            return if has_params { waits_for_run() } else { Health::Healthy };
        };
        if self.run_generation < generation {
            return waits_for_run();
        }
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

    fn status(phase: RunPhase, error: &str) -> WorkflowStatus {
        let last_run = Some(RunSummary {
            id: "r1".to_owned(),
            phase,
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: None,
            state: "add".to_owned(),
            error: error.to_owned(),
            cause: String::new(),
        });
        WorkflowStatus { run_generation: 2, last_run }
    }

    #[test]
    fn health_is_that_of_the_run_of_this_generation() {
        let running = status(RunPhase::Running, "").health(true, 2);
        assert_eq!(running, Health::Progressing { why: "run r1 is in state add".to_owned() });
        assert_eq!(status(RunPhase::Succeeded, "").health(true, 2), Health::Healthy);
        let failed = status(RunPhase::Failed, "States.TaskFailed").health(true, 2);
        assert_eq!(
            failed,
            Health::Degraded { why: "run r1 failed in state add: States.TaskFailed".to_owned() }
        );
        let aborted = status(RunPhase::Aborted, "").health(true, 2);
        assert_eq!(aborted, Health::Degraded { why: "run r1 was aborted in state add".to_owned() });
        assert_eq!(status(RunPhase::Succeeded, "").health(true, 3), waits_for_run());
        assert_eq!(WorkflowStatus::default().health(true, 1), waits_for_run());
        assert_eq!(WorkflowStatus::default().health(false, 1), Health::Healthy);
    }
}
