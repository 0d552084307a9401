//! Status of a Slurm job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::JobSpec;
use crate::kinds::Health;

/// Status of a Slurm job. Written by the agent that took the job; `attempt` before each submission.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// Current phase.
    pub phase: JobPhase,
    /// Number of submissions so far.
    pub attempt: u32,
    /// Slurm's number of the job. Slurm reuses numbers, so it is unique only together with `submitted`.
    pub slurm_id: Option<u64>,
    /// Time of submission, as Slurm writes it.
    pub submitted: Option<String>,
    /// State in Slurm's terms.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Reason for waiting or failure: Slurm's reason, or the agent's error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Class of the failure.
    pub class: Option<FailureClass>,
    /// `code:signal` of the script.
    pub exit_code: Option<String>,
    /// Highest exit code of a step, which the script may have ignored.
    pub derived_exit_code: Option<String>,
    /// Slurm nodes that run the job, as Slurm writes them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// Number of array tasks by their state in Slurm's terms; empty if there is a single task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, u32>,
}

/// Class of a job failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureClass {
    /// The script ended with a nonzero exit code.
    ExitCode,
    /// A signal ended the script.
    Signal,
    /// The time limit was exceeded.
    Timeout,
    /// The deadline was missed.
    Deadline,
    /// The memory limit was exceeded.
    OutOfMemory,
    /// A Slurm node failed, or the job was preempted.
    NodeFailure,
    /// Slurm rejected the job.
    Submission,
    /// The job that it depends on did not end as required.
    Dependency,
}

impl JobPhase {
    /// True if the phase never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled)
    }
}

/// Phase of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobPhase {
    /// No agent has taken the job.
    #[default]
    Pending,
    /// Files are being uploaded to the login host.
    Uploading,
    /// The job is being submitted to Slurm.
    Submitting,
    /// Slurm holds the job back.
    Queued,
    /// The job is running.
    Running,
    /// Slurm has suspended the job.
    Suspended,
    /// Outputs are being fetched.
    Fetching,
    /// The job succeeded, and its outputs have been fetched.
    Succeeded,
    /// The job ended otherwise.
    Failed,
    /// Somebody cancelled the job.
    Cancelled,
    /// Slurm does not answer, or reports a state that is unknown here.
    Unknown,
    /// The manifest is gone; the job is being cancelled and cleaned up.
    Deleting,
}

impl JobSpec {
    /// Returns the health of the job. Waiting in Slurm's queue is healthy.
    pub fn health(&self, status: &JobStatus) -> Health {
        let why = || {
            let class = status.class.map(|class| format!(" ({class:?})")).unwrap_or_default();
            match status.reason.as_str() {
                "" => format!("{:?}{class}", status.phase),
                reason => format!("{:?}{class}: {reason}", status.phase),
            }
        };
        match status.phase {
            // A job that Slurm accepted no longer depends on this cluster: Slurm's queue may be days long.
            JobPhase::Queued
            | JobPhase::Running
            | JobPhase::Suspended
            | JobPhase::Fetching
            | JobPhase::Succeeded => Health::Healthy,
            JobPhase::Failed | JobPhase::Cancelled => Health::Degraded { why: why() },
            JobPhase::Unknown => Health::Unknown { why: why() },
            JobPhase::Pending | JobPhase::Uploading | JobPhase::Submitting | JobPhase::Deleting => {
                Health::Progressing { why: why() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_state_is_never_a_failure() {
        let health = |phase| {
            let status = JobStatus { phase, reason: "Resources".to_owned(), ..JobStatus::default() };
            JobSpec::default().health(&status)
        };
        assert!(matches!(health(JobPhase::Unknown), Health::Unknown { .. }));
        assert_eq!(health(JobPhase::Queued), Health::Healthy);
        let why = "Submitting: Resources".to_owned();
        assert_eq!(health(JobPhase::Submitting), Health::Progressing { why });
        assert_eq!(health(JobPhase::Succeeded), Health::Healthy);
        assert!(matches!(health(JobPhase::Failed), Health::Degraded { .. }));
    }
}
