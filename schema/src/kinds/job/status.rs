//! How a job is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::JobSpec;
use crate::kinds::Health;

/// How a job is. The agent that took it writes it; `attempt` before each submission.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// Where it is.
    pub phase: JobPhase,
    /// Submissions so far.
    pub attempt: u32,
    /// Slurm's number of the job; numbers are used again, so only together with `submitted`.
    pub slurm_id: Option<u64>,
    /// When Slurm took it, as Slurm writes it.
    pub submitted: Option<String>,
    /// Slurm's own word for the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// What it waits for, or why it failed: Slurm's reason, or what the agent met.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How it failed.
    pub class: Option<FailureClass>,
    /// `code:signal` of the script.
    pub exit_code: Option<String>,
    /// The highest exit code of a step, which the script may have swallowed.
    pub derived_exit_code: Option<String>,
    /// The nodes of Slurm that run it, as Slurm writes them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// Tasks of an array by Slurm's word for their state; empty where there is one task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, u32>,
}

/// How a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureClass {
    /// The script ended with another code than 0.
    ExitCode,
    /// A signal ended it.
    Signal,
    /// Its time limit.
    Timeout,
    /// Its deadline.
    Deadline,
    /// It used more memory than it may.
    OutOfMemory,
    /// A node of Slurm failed, or the job was preempted.
    NodeFailure,
    /// Slurm did not take it.
    Submission,
    /// The job that it waits for did not end as it should.
    Dependency,
}

impl JobPhase {
    /// Nothing more becomes of it.
    pub fn is_final(self) -> bool {
        matches!(self, JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled)
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobPhase {
    /// No agent has taken it.
    #[default]
    Pending,
    /// Its files go to the login host.
    Uploading,
    /// It is being given to Slurm.
    Submitting,
    /// Slurm holds it back.
    Queued,
    /// It runs.
    Running,
    /// Slurm stopped it for a while.
    Suspended,
    /// Its outputs are fetched.
    Fetching,
    /// It ended well and its outputs are here.
    Succeeded,
    /// It ended otherwise.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Unknown: Slurm's word for it is new to us, or Slurm does not answer.
    Unknown,
    /// Its manifest is gone; it is being cancelled and cleaned up.
    Deleting,
}

impl JobSpec {
    /// How well the job is. What waits in Slurm's queue is well.
    pub fn health(&self, status: &JobStatus) -> Health {
        let why = || {
            let class = status.class.map(|class| format!(" ({class:?})")).unwrap_or_default();
            match status.reason.as_str() {
                "" => format!("{:?}{class}", status.phase),
                reason => format!("{:?}{class}: {reason}", status.phase),
            }
        };
        match status.phase {
            // What Slurm took is no longer this cluster's to bring on: its queue may be days long.
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
