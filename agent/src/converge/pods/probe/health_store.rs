//! Health of containers, by Docker id and per run, and its copy on the node's disk.
//!
//! The pods loop gets new results only after they were written: the next agent then knows everything that this one
//! acted on. If the disk rejects the write the loop gets them anyway, and the write is retried until it succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{DiskRecord, Fsync, Nudge, lock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::machine::ProbeHealth;

/// Initial delay before a failed write is retried; doubles up to `RETRY_MAX`.
const RETRY: Duration = Duration::from_secs(1);

/// Maximum delay before a failed write is retried.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Health of one run of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunHealth {
    /// Start of that run; `None` if Docker does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(flatten)]
    pub health: ProbeHealth,
}

impl RunHealth {
    /// Returns the health if it may belong to the run that began then.
    pub fn for_run(&self, started_at: Option<Timestamp>) -> Option<ProbeHealth> {
        may_be_same_run(self.started_at, started_at).then_some(self.health)
    }
}

/// True if both may be the start of the same run of a container.
pub fn may_be_same_run(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// Health by Docker id.
pub type HealthById = BTreeMap<String, RunHealth>;

/// Messages of failing probes, by Docker id.
pub type FailuresById = BTreeMap<String, String>;

/// The shared book; clones refer to the same one.
#[derive(Debug, Clone)]
pub struct HealthBook(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    record: DiskRecord,
    pages: Mutex<Contents>,
    changed: Notify,
    nudge: Nudge,
}

#[derive(Debug, Default)]
struct Contents {
    newest: HealthById,
    /// Health for the pods loop: written, or impossible to write.
    kept: HealthById,
    /// Messages of probes that failed last and keep a container from being ready; in memory only.
    failing: FailuresById,
}

impl HealthBook {
    /// Reads the results kept by the former agent; unreadable ones count as unknown. Blocks on the disk.
    pub fn open(state_dir: &Path, nudge: Nudge) -> Self {
        // Without fsync: everything that a power failure loses ended with it.
        let record = DiskRecord::new(state_dir.join("agent/probes.json")).fsync(Fsync::None);
        let kept: HealthById = record.read_or_warn("the former results of probes").unwrap_or_default();
        let pages = Mutex::new(Contents { newest: kept.clone(), kept, failing: FailuresById::new() });
        Self(Arc::new(Inner { record, pages, changed: Notify::new(), nudge }))
    }

    fn pages(&self) -> MutexGuard<'_, Contents> {
        lock(&self.0.pages)
    }

    /// Returns the health that was written, or could not be.
    pub fn kept(&self) -> HealthById {
        self.pages().kept.clone()
    }

    /// Records the health of the run that began then.
    pub fn set(&self, id: &str, started_at: Option<Timestamp>, health: ProbeHealth) {
        let known = RunHealth { started_at, health };
        let mut pages = self.pages();
        if pages.newest.get(id) != Some(&known) {
            pages.newest.insert(id.to_owned(), known);
            self.0.changed.notify_one();
        }
    }

    /// Returns the last messages of failing probes.
    pub fn failing(&self) -> FailuresById {
        self.pages().failing.clone()
    }

    /// Records the message of a failing probe, or that it no longer fails. The first failure wakes the loop.
    pub fn set_failing(&self, id: &str, said: Option<String>) {
        let first = {
            let mut pages = self.pages();
            match said {
                Some(said) => pages.failing.insert(id.to_owned(), said).is_none(),
                None => {
                    pages.failing.remove(id);
                    false
                }
            }
        };
        if first {
            self.0.nudge.nudge();
        }
    }

    /// Forgets containers that no longer exist.
    pub fn keep_only(&self, there: &BTreeSet<&str>) {
        let mut pages = self.pages();
        let before = pages.newest.len();
        pages.newest.retain(|id, _| there.contains(id.as_str()));
        pages.failing.retain(|id, _| there.contains(id.as_str()));
        if pages.newest.len() != before {
            self.0.changed.notify_one();
        }
    }

    /// Writes changes, publishes them, and wakes the pods loop, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut failures = 0;
        // Cancel-safe: results not written yet are found again by the next checks.
        while shutdown.run_until_cancelled(self.wait_for_change(failures)).await.is_some() {
            let newest = self.pages().newest.clone();
            let (record, pages) = (self.0.record.clone(), newest.clone());
            let written = tokio::task::spawn_blocking(move || record.write(&pages)).await;
            failures = match written {
                Ok(Err(error)) => {
                    let path = self.0.record.path().display();
                    tracing::warn!(%path, %error, "probe results not saved; they are tried again");
                    failures.saturating_add(1)
                }
                _ => 0,
            };
            let is_news = {
                let mut pages = self.pages();
                // A removed container is no reason to wake the loop.
                let is_news = newest.iter().any(|(id, health)| pages.kept.get(id) != Some(health));
                pages.kept = newest;
                is_news
            };
            if is_news {
                self.0.nudge.nudge();
            }
        }
    }

    /// Waits for a change, or until a failed write is due for a retry.
    async fn wait_for_change(&self, failures: u32) {
        let wait = match failures {
            0 => Duration::MAX,
            some => RETRY.saturating_mul(1 << some.saturating_sub(1).min(10)).min(RETRY_MAX),
        };
        // Continue either way.
        let _ = tokio::time::timeout(wait, self.0.changed.notified()).await;
    }
}
