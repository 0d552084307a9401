//! The loop that everything in both daemons is: observe, plan, act, report.
//!
//! One driver decides when a loop runs; a loop itself waits for nothing but its own steps.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

pub mod disk_record;
mod driver;
mod errors;
mod lock;
pub mod logging;
mod nudge;
mod row;
mod runs;
mod runtime;
pub mod shutdown;

pub use disk_record::{DiskRecord, Fsync};
pub use driver::{Driver, LastRun, LastRunReader};
pub use errors::{causes, error_chain, root_cause, with_causes};
pub use lock::{FileLock, FileLocking, is_file_locked, lock_file};
pub use nudge::{Nudge, Nudged};
pub use row::{Changes, Row};
pub use runs::{LoopRuns, LoopStatus};
pub use runtime::Runtime;

pub use crate::mutex::lock;

/// One loop of a daemon.
#[async_trait]
pub trait Loop: Send + 'static {
    /// What it saw, with time and seed in it where the plan needs more than `now`.
    type Observed: Send + Sync;
    /// What it decided.
    type Plan: Plan;
    /// What became of each step.
    type Outcome: Send;

    /// Short name for logs, metrics and events: `pods`, `gitops`, `scheduler`.
    fn name(&self) -> &'static str;

    /// Reads the world. [`Observation::NotReady`] when there is nothing to decide on yet.
    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError>;

    /// Decides. Total, without I/O, clock or randomness; it has no `self` on purpose.
    fn plan(observed: &Self::Observed, now: Timestamp) -> Self::Plan;

    /// Carries the plan out: idempotent steps, each outcome kept.
    async fn act(&mut self, observed: &Self::Observed, plan: Self::Plan) -> Self::Outcome;

    /// Folds what was seen and done into status; the only writer of this loop's status.
    async fn report(&mut self, observed: Self::Observed, outcome: Self::Outcome) -> Result<Next, LoopError>;
}

/// A decision that can be printed.
pub trait Plan: Debug + Send {
    /// Nothing to do.
    fn is_empty(&self) -> bool;

    /// When to plan again at the latest, although nothing changes before: the end of a wait.
    fn again_at(&self) -> Option<Timestamp> {
        None
    }
}

/// What a loop saw.
#[derive(Debug)]
pub enum Observation<T> {
    /// The world.
    Ready(T),
    /// Not yet, and why: a prefix is not listed, this reconciler does not lead.
    NotReady(String),
}

/// When the loop runs next, unless it is nudged before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At the loop's own interval.
    Interval,
    /// After this long, if that is sooner than the interval.
    After(Duration),
}

impl Next {
    /// This or after `wait`, whichever is sooner.
    fn within(self, wait: Duration) -> Self {
        match self {
            Self::After(sooner) if sooner <= wait => self,
            _ => Self::After(wait),
        }
    }
}

/// A run failed. The driver logs the chain once and backs off.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct LoopError {
    /// Which step, on what.
    pub context: String,
    /// Why.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl LoopError {
    /// An error with its cause.
    pub fn new(context: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { context: context.into(), source: Some(Box::new(source)) }
    }

    /// An error without another behind it.
    pub fn message(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None }
    }
}
