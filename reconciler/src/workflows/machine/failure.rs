//! Errors of states: names, matching of handlers, and waits of retriers.

use jiff::SignedDuration;
use schema::kinds::workflow::{COUNT_MAX, JitterStrategy, Retrier};
use serde::{Deserialize, Serialize};

use super::context::Random;

/// Names of errors that the machine itself raises or knows.
pub mod errors {
    /// Matches any error but [`DATA_LIMIT`] and [`RUNTIME`].
    pub const ALL: &str = "States.ALL";
    /// A branch of a Parallel failed. Matches whatever the branch's error is called.
    pub const BRANCH_FAILED: &str = "States.BranchFailed";
    /// An input, output or payload is larger than 256 KiB.
    pub const DATA_LIMIT: &str = "States.DataLimitExceeded";
    /// More items of a Map failed than are tolerated.
    pub const TOLERATED_FAILURES: &str = "States.ExceedToleratedFailureThreshold";
    /// A function sent no heartbeat for too long.
    pub const HEARTBEAT_TIMEOUT: &str = "States.HeartbeatTimeout";
    /// An intrinsic function failed.
    pub const INTRINSIC: &str = "States.IntrinsicFailure";
    /// No rule of a Choice without default matches.
    pub const NO_CHOICE: &str = "States.NoChoiceMatched";
    /// A path of a payload template leads nowhere.
    pub const PARAMETER_PATH: &str = "States.ParameterPathFailure";
    /// A result can't be placed at its path.
    pub const RESULT_PATH: &str = "States.ResultPathMatchFailure";
    /// The data is not what the state needs. Nothing retries or catches it.
    pub const RUNTIME: &str = "States.Runtime";
    /// Matches any error of a function except a timeout.
    pub const TASK_FAILED: &str = "States.TaskFailed";
    /// A function took too long.
    pub const TIMEOUT: &str = "States.Timeout";
    /// The run entered too many states; nothing catches it. Not part of the language.
    pub const STEP_LIMIT: &str = "Minik8s.StepLimitExceeded";
    /// The journal has too many entries; nothing catches it. Not part of the language.
    pub const EVENT_LIMIT: &str = "Minik8s.EventLimitExceeded";
    /// The functions' answers and errors have too many bytes in all, or the run's strands hold too many; nothing
    /// catches it. Not part of the language.
    pub const RUN_DATA_LIMIT: &str = "Minik8s.RunDataLimitExceeded";
    /// Reconcilers ended or failed while they worked on the run, again and again. Not part of the language.
    pub const CRASHED: &str = "Minik8s.RunCrashed";
    /// The journal can't be read, or can't be written for a reason other than etcd being away. Not part of the
    /// language.
    pub const JOURNAL: &str = "Minik8s.JournalUnreadable";
}

/// Failure of a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failure {
    pub(super) error: String,
    pub(super) cause: String,
    /// Set if a function failed, here or in a branch.
    pub(super) of_task: bool,
    /// Set if the failure comes from a branch of this state.
    pub(super) of_branch: bool,
}

impl Failure {
    pub(super) fn new(error: &str, cause: impl Into<String>) -> Self {
        Self { error: error.to_owned(), cause: cause.into(), of_task: false, of_branch: false }
    }

    /// Creates the failure of a state whose data is not what it needs.
    pub(super) fn runtime(cause: impl Into<String>) -> Self {
        Self::new(errors::RUNTIME, cause)
    }

    /// True if the failure ends the run regardless of handlers.
    pub(super) fn is_fatal(&self) -> bool {
        [errors::RUNTIME, errors::STEP_LIMIT, errors::EVENT_LIMIT, errors::RUN_DATA_LIMIT]
            .contains(&self.error.as_str())
    }

    /// True if the names of a handler match.
    pub(super) fn fits(&self, names: &[String]) -> bool {
        names.iter().any(|name| match name.as_str() {
            errors::ALL => self.error != errors::DATA_LIMIT,
            errors::TASK_FAILED if self.of_task => {
                ![errors::TIMEOUT, errors::HEARTBEAT_TIMEOUT].contains(&self.error.as_str())
            }
            // As the language defines it: longer than the timeout, or without a heartbeat for too long.
            errors::TIMEOUT if self.error == errors::HEARTBEAT_TIMEOUT => true,
            errors::BRANCH_FAILED if self.of_branch => true,
            name => name == self.error,
        })
    }
}

/// Reason why an intrinsic function gives no result.
pub(super) enum IntrinsicError {
    /// Part of a sentence.
    Because(String),
    /// The result, or the results of the arguments, are too large.
    TooLarge,
}

impl From<String> for IntrinsicError {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// Returns the retrier's wait before attempt `n`, counted from 1.
pub(super) fn delay(retrier: &Retrier, n: u32, random: &Random<'_>) -> SignedDuration {
    let exponent = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
    let longest = f64::from(retrier.max_delay_seconds.unwrap_or(COUNT_MAX).min(COUNT_MAX));
    let whole = (f64::from(retrier.interval_seconds) * retrier.backoff_rate.powi(exponent)).min(longest);
    let seconds = match retrier.jitter_strategy {
        JitterStrategy::None => whole,
        JitterStrategy::Full => whole * random.unit(),
    };
    SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::from_secs(i64::from(COUNT_MAX)))
}
