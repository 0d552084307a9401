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

// Slurm's formats of times and array indices, as in sbatch(1).

/// Largest index of an array that Slurm can be configured for (slurm.conf(5), MaxArraySize).
pub const ARRAY_INDEX_MAX: u32 = 4_000_000;
/// Number of array tasks that Slurm accepts unless it is configured for more (MaxArraySize 1001).
pub const ARRAY_TASKS_DEFAULT_MAX: u32 = 1_000;

/// True for Slurm's words for no time limit of its own.
pub fn is_unlimited(text: &str) -> bool {
    ["unlimited", "infinite"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Parses the seconds of a time limit: `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`. `None` if it is
/// malformed, zero, or longer than a year.
pub fn time_limit_seconds(text: &str) -> Option<u64> {
    /// A job longer than this is a typing mistake.
    const YEAR: u64 = 366 * 24 * 3600;
    let number = |text: &str| -> Option<u64> {
        let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let numbers = |text: &str| text.split(':').map(number).collect::<Option<Vec<u64>>>();
    let seconds = match text.split_once('-') {
        Some((days, rest)) => {
            let (hours, minutes, seconds) = match numbers(rest)?[..] {
                [hours] => (hours, 0, 0),
                [hours, minutes] => (hours, minutes, 0),
                [hours, minutes, seconds] => (hours, minutes, seconds),
                _ => return None,
            };
            number(days)? * 86_400 + hours * 3600 + minutes * 60 + seconds
        }
        None => match numbers(text)?[..] {
            [minutes] => minutes * 60,
            [minutes, seconds] => minutes * 60 + seconds,
            [hours, minutes, seconds] => hours * 3600 + minutes * 60 + seconds,
            _ => return None,
        },
    };
    (1..=YEAR).contains(&seconds).then_some(seconds)
}

/// Counts the tasks of an array: indices and ranges with a step joined by commas, optionally followed by `%` and
/// the number that may run at a time. `None` if it is malformed or an index is too large. Overlapping ranges count
/// twice.
pub fn array_tasks(text: &str) -> Option<u32> {
    let number = |text: &str| -> Option<u32> {
        let is_number = (1..=7).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten().filter(|number| *number <= ARRAY_INDEX_MAX)
    };
    let indices = match text.split_once('%') {
        Some((indices, at_once)) => {
            number(at_once).filter(|at_once| *at_once > 0)?;
            indices
        }
        None => text,
    };
    let mut tasks: u32 = 0;
    for part in indices.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number(step).filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let count = match range.split_once('-') {
            Some((first, last)) => number(last)?.checked_sub(number(first)?)? / step + 1,
            None if part == range => number(range).map(|_| 1)?,
            None => return None,
        };
        tasks = tasks.checked_add(count)?;
    }
    Some(tasks)
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

#[cfg(test)]
mod slurm_tests {
    use super::*;

    #[test]
    fn times_are_read_as_sbatch_reads_them() {
        for (text, seconds) in [
            ("30", 1800),
            ("10:30", 630),
            ("1:00:00", 3600),
            ("1-0", 86_400),
            ("2-12", 216_000),
            ("1-1:30", 91_800),
            ("0-0:0:5", 5),
        ] {
            assert_eq!(time_limit_seconds(text), Some(seconds), "{text}");
        }
        assert!(is_unlimited("UNLIMITED") && is_unlimited("infinite") && !is_unlimited("1"));
        for bad in ["", "0", "1:2:3:4", "1-", "-1", "1h", "1:", " 1", "1-1-1", "99999999", "1\n"] {
            assert_eq!(time_limit_seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn arrays_are_read_as_sbatch_reads_them() {
        for (text, tasks) in
            [("0", 1), ("0-15", 16), ("1,3,5-7", 5), ("0-15:4", 4), ("0-15%4", 16), ("1-7:2%1", 4)]
        {
            assert_eq!(array_tasks(text), Some(tasks), "{text}");
        }
        for bad in
            ["", "a", "5-1", "0-", "0-15%0", "0-15%", "0-9:0", "3:1", "1,,2", "0-4000001", "1;2", "0-1 "]
        {
            assert_eq!(array_tasks(bad), None, "{bad}");
        }
    }
}
