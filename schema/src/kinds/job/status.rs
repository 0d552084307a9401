//! How a job is.

use serde::{Deserialize, Serialize};

use super::JobSpec;
use crate::kinds::Health;

/// How a job is. The agent that took it writes it; `attempt` before each submission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// Where it is.
    pub phase: JobPhase,
    /// Submissions so far.
    pub attempt: u32,
    /// Slurm's number of the job; numbers are used again, so only together with `submitted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_id: Option<u64>,
    /// When Slurm took it, as Slurm writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<String>,
    /// Slurm's own word for the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// What it waits for, or why it failed: Slurm's reason, or what the agent met.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `code:signal` of the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<String>,
    /// The highest exit code of a step, which the script may have swallowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived_exit_code: Option<String>,
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
    /// How well the job is.
    pub fn health(&self, status: &JobStatus) -> Health {
        let why = || match status.reason.as_str() {
            "" => format!("{:?}", status.phase),
            reason => format!("{:?}: {reason}", status.phase),
        };
        match status.phase {
            JobPhase::Succeeded => Health::Healthy,
            JobPhase::Failed | JobPhase::Cancelled => Health::Degraded { why: why() },
            JobPhase::Unknown => Health::Unknown { why: why() },
            JobPhase::Pending
            | JobPhase::Uploading
            | JobPhase::Submitting
            | JobPhase::Queued
            | JobPhase::Running
            | JobPhase::Suspended
            | JobPhase::Fetching
            | JobPhase::Deleting => Health::Progressing { why: why() },
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
        assert_eq!(health(JobPhase::Queued), Health::Progressing { why: "Queued: Resources".to_owned() });
        assert_eq!(health(JobPhase::Succeeded), Health::Healthy);
        assert!(matches!(health(JobPhase::Failed), Health::Degraded { .. }));
    }
}
