//! The last run of every loop of a daemon, served by `GET /v1/loops`.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::Serialize;

use super::{LastRun, LastRunReader, lock};

/// The loops of a daemon in the order of its table. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct LoopRuns(Arc<Mutex<Vec<(String, LastRunReader)>>>);

/// A loop and its last run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoopStatus {
    /// Name of the loop; `gitops/<source>` where there is one for each source.
    pub name: String,
    /// Start of the last run; `None` before the first has ended.
    pub started_at: Option<Timestamp>,
    /// Duration of the last run in milliseconds.
    pub took_ms: u64,
    /// True if its plan had steps.
    pub did_something: bool,
    /// Error of the last run, if it failed.
    pub error: Option<String>,
    /// Reason why there was nothing to decide on.
    pub not_ready: Option<String>,
    /// Runs since the start of the process.
    pub runs: u64,
    /// Failed runs since the start of the process.
    pub failures: u64,
}

impl LoopRuns {
    /// Adds a loop.
    pub fn add(&self, name: impl Into<String>, last_run: LastRunReader) {
        lock(&self.0).push((name.into(), last_run));
    }

    /// Returns the status of every loop.
    pub fn statuses(&self) -> Vec<LoopStatus> {
        lock(&self.0).iter().map(|(name, last)| status(name, last.borrow().as_ref())).collect()
    }

    /// Returns the newest run of any loop whose name begins with `prefix`.
    pub fn newest(&self, prefix: &str) -> Option<LastRun> {
        let loops = lock(&self.0);
        let runs = loops.iter().filter(|(name, _)| name.starts_with(prefix));
        runs.filter_map(|(_, last)| last.borrow().clone()).max_by_key(|run| run.started_at)
    }
}

fn status(name: &str, last: Option<&LastRun>) -> LoopStatus {
    LoopStatus {
        name: name.to_owned(),
        started_at: last.map(|run| run.started_at),
        took_ms: last.map_or(0, LastRun::took_ms),
        did_something: last.is_some_and(|run| run.did_something),
        error: last.and_then(|run| run.error.clone()),
        not_ready: last.and_then(|run| run.not_ready.clone()),
        runs: last.map_or(0, |run| run.runs),
        failures: last.map_or(0, |run| run.failures),
    }
}
