//! (in work)
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Loop, Nudged};

/// How a loop is driven.
#[derive(Debug, Clone)]
pub struct Driver {
    /// Longest time between two runs that go well.
    pub interval: Duration,
    /// Time after a first failure; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest time after a failure.
    pub backoff_max: Duration,
}

/// What the last run was like, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    /// When it began.
    pub started_at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// The plan had steps.
    pub did_something: bool,
    /// Why it failed, the whole chain.
    pub error: Option<String>,
    /// Why there was nothing to decide on.
    pub not_ready: Option<String>,
}

impl Driver {
    /// Runs `the_loop` until `shutdown`; a run under way is finished first.
    pub async fn run<L: Loop>(
        self,
        the_loop: L,
        nudged: Nudged,
        shutdown: CancellationToken,
        last_run: tokio::sync::watch::Sender<Option<LastRun>>,
    ) {
        let _ = (the_loop, nudged, shutdown, last_run);
    }
}
