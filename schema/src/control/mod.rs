//! Control loops, the building blocks of both daemons: observe, plan, act, report.
//!
//! A driver decides when a loop runs; the loop itself waits only for its own steps.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

pub mod disk_record;
mod driver;
pub mod logging;
mod nudge;
mod process;
mod row;
mod runtime;
pub mod shutdown;

pub use crate::errors::{causes, error_chain, root_cause, with_causes};
pub use disk_record::{DiskRecord, Fsync};
pub use driver::{Driver, LastRun, LastRunReader, Pulse};
pub use nudge::{Nudge, NudgeReceiver, publish};
pub use process::{FileLock, LockOutcome, is_file_locked, lock_file};
pub use process::{close_state_dir, spare_from_oom_killer};
pub use row::{ChangeSource, Row};
pub use runtime::Runtime;
pub use runtime::{LoopRuns, LoopStatus};

pub use crate::mutex::lock;

/// A control loop of a daemon.
#[async_trait]
pub trait Loop: Send + 'static {
    /// Observed state, with time and seed in it where the plan needs more than `now`.
    type Observed: Send + Sync;
    /// Decision based on the observed state.
    type Plan: Plan;
    /// Outcome of each step.
    type Outcome: Send;

    /// Short name for logs, metrics and events: `pods`, `gitops`, `scheduler`.
    fn name(&self) -> &'static str;

    /// Reads the current state. Returns [`Observation::NotReady`] while there is nothing to decide on.
    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError>;

    /// Decides what to do. Total, without I/O, clock or randomness; has no `self` on purpose.
    fn plan(observed: &Self::Observed, now: Timestamp) -> Self::Plan;

    /// Carries out the plan: idempotent steps, each with its outcome recorded.
    async fn act(&mut self, observed: &Self::Observed, plan: Self::Plan) -> Self::Outcome;

    /// Folds observation and outcome into status; the only writer of this loop's status.
    async fn report(&mut self, observed: Self::Observed, outcome: Self::Outcome) -> Result<Next, LoopError>;
}

/// A decision that can be logged.
pub trait Plan: Debug + Send {
    /// True if there is nothing to do.
    fn is_empty(&self) -> bool;

    /// Latest time of the next plan, even if nothing changes before: the end of a wait.
    fn replan_at(&self) -> Option<Timestamp> {
        None
    }
}

/// Result of observing.
#[derive(Debug)]
pub enum Observation<T> {
    /// The observed state.
    Ready(T),
    /// Not ready yet, and why: a prefix is not listed, this reconciler does not lead.
    NotReady(String),
}

/// Time of the loop's next run, unless a nudge comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At the loop's own interval.
    Interval,
    /// After this long, if that is sooner than the interval.
    After(Duration),
}

impl Next {
    /// Returns this or `After(wait)`, whichever is sooner.
    fn within(self, wait: Duration) -> Self {
        match self {
            Self::After(sooner) if sooner <= wait => self,
            _ => Self::After(wait),
        }
    }
}

/// Error of a failed run. The driver logs the chain once and backs off.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct LoopError {
    /// The failed step and its subject.
    pub context: String,
    /// Cause of the failure.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl LoopError {
    /// Creates an error with its cause.
    pub fn new(context: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { context: context.into(), source: Some(Box::new(source)) }
    }

    /// Creates an error without a cause.
    pub fn message(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None }
    }
}
